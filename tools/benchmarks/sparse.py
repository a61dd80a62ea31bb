"""What an embedding gains from `sparse=True`: the time of a step, by the number of words."""

from collections.abc import Callable
from typing import Any

from benchmarks.timing import seconds_of
from benchmarks.turns import Benchmark, Figures, Report, Session

VOCABULARIES = (2_000, 20_000, 200_000)
WIDTH, BATCH, LENGTH = 64, 32, 20
STEPS = 30  # of each kind in a turn


def _kinds(session: Session) -> dict[str, Callable[[], Figures]]:
    return {f"{words:,}": _steps(words) for words in VOCABULARIES}


def _steps(words: int) -> Callable[[], Figures]:
    """Return what times steps of a text classifier with Adam; dense and sparse take turns.

    Only the rows of a batch's words are updated where the gradient is sparse and Adam's `lazy_mode`
    is on.
    """
    import numpy as np
    import paddle

    trainers = {"dense": _trainer(words, False), "sparse": _trainer(words, True)}

    def turn() -> Figures:
        seconds: dict[str, list[float]] = {kind: [] for kind in trainers}
        for _ in range(STEPS):
            batch = paddle.to_tensor(np.random.randint(0, words, (BATCH, LENGTH)))
            labels = paddle.to_tensor(np.random.randint(0, 2, (BATCH, 1)))
            for kind, trainer in trainers.items():
                seconds[kind].append(1000 * seconds_of(trainer.train_step, (batch, labels)))
        return seconds

    return turn


def _trainer(words: int, is_sparse: bool) -> Any:
    import paddle
    from paddle import nn

    from paddle_mnist import Trainer

    class MeanOfWords(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(words, WIDTH, sparse=is_sparse)
            self.out = nn.Linear(WIDTH, 2)

        def forward(self, batch: Any) -> Any:
            return self.out(self.words(batch).mean(axis=1))

    model = MeanOfWords()
    optimizer = paddle.optimizer.Adam(0.001, parameters=model.parameters(), lazy_mode=is_sparse)
    return Trainer("unused.pdparams", model, optimizer)


def _note(report: Report) -> str:
    return (
        f"{WIDTH} numbers a word, batches of {BATCH} x {LENGTH} words, Adam; medians of "
        f"{STEPS * report.rounds} steps of each kind, in turns."
    )


BENCHMARK = Benchmark(
    __doc__,
    code=(__name__, "paddle_mnist.nn.sparse_gradients", "paddle_mnist.training.trainer"),
    kinds=_kinds,
    head="words",
    columns={
        "dense, ms a step": (".3g", "dense"),
        "`sparse=True`, ms a step": (".3g", "sparse"),
        "times faster": (".1f", lambda row, rows: row["dense"] / row["sparse"]),
    },
    note=_note,
    warm_up=1,
)
