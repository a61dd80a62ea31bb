#!/usr/bin/env python
"""Train as `tools/train.py` does, with a change that the package has no option for.

These are candidates of the race that `tools/reproduce.py --only candidates` runs: one that wins is
made an option, one that loses stays here. All are resumed to the same bits, as any training is.

nesterov   Nesterov's momentum (Sutskever et al., "On the importance of initialization and momentum
           in deep learning", 2013)
mixup      each image and label mixed with another of the batch (Zhang et al., "mixup: Beyond
           Empirical Risk Minimization", 2018), alpha 0.2
erase      a black square in half of the images (Zhong et al., "Random Erasing Data Augmentation",
           2020), 4 to 12 pixels wide
distilled  learn what an ensemble answers to the same distorted image (Hinton et al., "Distilling
           the Knowledge in a Neural Network", 2015), at a temperature of 2, without the labels.
           Each image has 20 distortions, the same for every seed, so that the ensemble answers
           once: its answers are kept beside the run
"""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from paddle_mnist.commands import Parser, run_command, run_script
from paddle_mnist.commands._train_options import add_train_options, train_config
from paddle_mnist.errors import ConfigError
from paddle_mnist.mnist.config import TrainConfig
from paddle_mnist.mnist.options import distortion_amounts
from paddle_mnist.system.devices import require_paddle

MIXUP_ALPHA = 0.2
ERASED = (4, 12)  # pixels, the side of the square
VIEWS, TEMPERATURE = 20, 2.0
BLOCK = 500  # images that teachers are asked at once


def nesterov(arguments: dict[str, Any], config: TrainConfig, teachers: Sequence[Path]) -> None:
    import paddle

    from paddle_mnist.nn.schedule import scheduler_of

    plain = arguments["optimizer"]

    def optimizer(parameters: list) -> paddle.optimizer.Optimizer:
        return paddle.optimizer.Momentum(
            learning_rate=scheduler_of(plain(parameters)),
            momentum=config.optimizer.momentum,
            parameters=parameters,  # which carry their weight decay, since `plain` had them
            use_nesterov=True,
        )

    arguments["optimizer"] = optimizer


def mixup(arguments: dict[str, Any], config: TrainConfig, teachers: Sequence[Path]) -> None:
    import numpy as np
    import paddle

    from paddle_mnist.nn.cross_entropy import CrossEntropy

    plain, loss = arguments["step"], CrossEntropy(config.loss.label_smoothing)

    def step(model, batch) -> Mapping[str, Any]:
        if not model.training:
            return plain(model, batch)
        images, labels = batch
        # The generators are seeded before each step.
        order = paddle.to_tensor(np.random.permutation(len(labels)))
        share = float(np.random.beta(MIXUP_ALPHA, MIXUP_ALPHA))
        logits = model(share * images + (1 - share) * paddle.gather(images, order))
        own, other = (loss(logits, y) for y in (labels, paddle.gather(labels, order)))
        return {"loss": share * own + (1 - share) * other}

    arguments["step"] = step


def erase(arguments: dict[str, Any], config: TrainConfig, teachers: Sequence[Path]) -> None:
    import numpy as np
    import paddle

    images = arguments["train"]
    plain = images.distortion or (lambda images, epoch, indices: images)
    low, high = ERASED

    def distortion(images: paddle.Tensor, epoch: int, indices) -> paddle.Tensor:
        images = plain(images, epoch, indices)
        kept = np.ones(images.shape, np.float32)
        for mask, index in zip(kept[:, 0], indices):
            # Another stream of the generator that the distortions are drawn from.
            bits = np.random.Philox(key=[config.seed, epoch], counter=[0, int(index), 1, 0])
            happens, side, row, column = (bits.random_raw(4) >> np.uint64(11)) * 2.0**-53
            if happens < 0.5:
                side = low + int(side * (high - low + 1))
                top, left = (int(place * (len(mask) - side + 1)) for place in (row, column))
                mask[top : top + side, left : left + side] = 0
        return images * paddle.to_tensor(kept)

    images.distortion = distortion


def distilled(arguments: dict[str, Any], config: TrainConfig, teachers: Sequence[Path]) -> None:
    import paddle
    from paddle.nn import functional as F

    from paddle_mnist.mnist.augment import Distortion
    from paddle_mnist.mnist.step import METRICS
    from paddle_mnist.system.arrays import as_array

    if not teachers:
        raise ConfigError("distilled has no teachers; expected --teachers FILE,FILE")
    images = arguments["train"]
    views = Distortion(distortion_amounts(config.images.augment), seed=0)
    answers = answers_of(teachers, views, config, images.new)

    class Taught(paddle.io.Dataset):
        """Images in one of the views, their labels, and the teachers' logits of this view."""

        def __len__(self) -> int:
            return len(images)

        def set_epoch(self, epoch: int) -> None:
            self.view = epoch % VIEWS
            images.set_epoch(self.view)

        def __getitems__(self, indices: Sequence[int]) -> tuple:
            logits = answers[self.view, indices].astype("float32")
            return (*images.__getitems__(indices), logits)

        def __getitem__(self, index: int) -> tuple:
            return tuple(as_array(part)[0] for part in self.__getitems__([index]))

    plain = arguments["step"]

    def step(model, batch) -> Mapping[str, Any]:
        if not model.training:
            return plain(model, batch[:2])
        inputs, labels, answered = batch
        logits = model(inputs)
        soft = F.softmax(answered / TEMPERATURE)
        losses = F.cross_entropy(logits / TEMPERATURE, soft, soft_label=True, reduction="none")
        metrics = {name: metric(logits, labels) for name, metric in METRICS.items()}
        return {"loss": TEMPERATURE**2 * losses.mean(), **metrics}

    images.distortion = views
    arguments["train"], arguments["step"] = Taught(), step


def answers_of(teachers: Sequence[Path], distortion, config: TrainConfig, dataset) -> Any:
    """Return the teachers' mean logits, float16 [VIEWS, N, 10], from a file beside the run."""
    import numpy as np
    import paddle
    from filelock import FileLock

    from paddle_mnist import MNIST
    from paddle_mnist.checkpoint.safe_load import safe_load
    from paddle_mnist.checkpoint.weights import load_weights

    asked = config.images.augment, VIEWS, dataset.data.hash, len(dataset)
    digest = hashlib.sha256(repr(asked).encode())
    for path in teachers:
        digest.update(path.read_bytes())
    path = Path(config.output).parent / f"answers-{digest.hexdigest()[:16]}.float16"
    shape = (VIEWS, len(dataset), 10)
    with FileLock(f"{path}.lock"):
        if path.exists():
            return np.memmap(path, np.float16, "r", shape=shape)
        nets = []
        for file in teachers:
            nets.append(MNIST(fast_conv=config.net.threads or "auto"))
            load_weights(nets[-1], safe_load(file), file)
            nets[-1].eval()
        unfinished = path.with_suffix(".unfinished")
        answers = np.memmap(unfinished, np.float16, "w+", shape=shape)
        with paddle.no_grad():
            for view in range(VIEWS):
                for start in range(0, len(dataset), BLOCK):
                    indices = np.arange(start, min(start + BLOCK, len(dataset)))
                    images = paddle.to_tensor(dataset.batch(indices)[0])
                    images = distortion(images, view, indices)
                    logits = sum(net(images) for net in nets) / len(nets)
                    answers[view, indices] = logits.numpy()
        answers.flush()
        os.replace(unfinished, path)
    return np.memmap(path, np.float16, "r", shape=shape)


CANDIDATES: Mapping[str, Callable] = {
    change.__name__: change for change in (nesterov, mixup, erase, distilled)
}


def train(config: TrainConfig, candidate: str, teachers: Sequence[Path]) -> None:
    """Train, or resume a training, as `train_and_evaluate` does in one process."""
    from paddle_mnist import fit
    from paddle_mnist.mnist.setup import parts

    arguments = parts(config)
    CANDIDATES[candidate](arguments, config, teachers)
    must_match = {**arguments["must_match"], "candidate": candidate}
    fit(**{**arguments, "must_match": must_match, "device": "cpu"})


def main(argv: Sequence[str]) -> None:
    parser = Parser(prog="tools/train_candidate.py", description=__doc__)
    parser.add_argument("--candidate", required=True, choices=CANDIDATES)
    parser.add_argument("--teachers", default="", metavar="FILE,FILE", help="weights to learn from")
    add_train_options(parser)
    args = parser.parse_args(argv)
    config = train_config(args)
    require_paddle()
    train(config, args.candidate, [Path(name) for name in args.teachers.split(",") if name])


if __name__ == "__main__":
    run_script(lambda argv: run_command(main, argv, prints_data=True))
