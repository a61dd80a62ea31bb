"""What an embedding gains from `sparse=True`: the time of a step, by the number of words."""

import time

from markdown_tables import table as markdown_table

from benchmarks.timing import medians

VOCABULARIES = (2_000, 20_000, 200_000)
WIDTH, BATCH, LENGTH = 64, 32, 20
WARM_UP, STEPS = 5, 30  # of each kind, the latter in each round


def measure(source: str, rounds: int) -> dict:
    """Seconds of a step of a text classifier with Adam, medians over `rounds` x 30 steps.

    Dense and sparse take turns, a step each. Only the rows of a batch's words are updated where the
    gradient is sparse and Adam's `lazy_mode` is on.
    """
    import numpy as np
    import paddle

    seconds = {}
    for words in VOCABULARIES:
        kinds = {is_sparse: _trainer(words, is_sparse) for is_sparse in (False, True)}
        timed = {kind: [] for kind in kinds}
        for number in range(-WARM_UP, STEPS * rounds):
            batch = paddle.to_tensor(np.random.randint(0, words, (BATCH, LENGTH)))
            labels = paddle.to_tensor(np.random.randint(0, 2, (BATCH, 1)))
            for kind, trainer in kinds.items():
                began = time.perf_counter()
                trainer.train_step((batch, labels))
                if number >= 0:
                    timed[kind].append(time.perf_counter() - began)
        seconds[words] = medians(timed)
    rows = {words: {"dense": step[False], "sparse": step[True]} for words, step in seconds.items()}
    return {"steps": STEPS * rounds, "seconds": rows}


def _trainer(words: int, is_sparse: bool):
    import paddle
    from paddle import nn

    from paddle_mnist import Trainer

    class MeanOfWords(nn.Layer):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(words, WIDTH, sparse=is_sparse)
            self.out = nn.Linear(WIDTH, 2)

        def forward(self, batch):
            return self.out(self.words(batch).mean(axis=1))

    model = MeanOfWords()
    optimizer = paddle.optimizer.Adam(0.001, parameters=model.parameters(), lazy_mode=is_sparse)
    return Trainer("unused.pdparams", model, optimizer)


def table(report: dict) -> str:
    rows = [
        (f"{words:,}", step["dense"] * 1000, step["sparse"] * 1000, step["dense"] / step["sparse"])
        for words, step in report["seconds"].items()
    ]
    return markdown_table(
        {
            "words": "",
            "dense, ms a step": ".3g",
            "`sparse=True`, ms a step": ".3g",
            "times faster": ".1f",
        },
        rows,
        f"{WIDTH} numbers a word, batches of {BATCH} x {LENGTH} words, Adam; medians of "
        f"{report['steps']} steps of each kind, in turns.",
    )
