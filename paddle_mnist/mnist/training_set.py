"""`TrainingSet`, new and replayed images; `ReplayOrder`, which draws the replayed ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional, Union

import numpy as np
import paddle

from paddle_mnist.errors import ConfigError
from paddle_mnist.mnist.augment import Distortion
from paddle_mnist.mnist.dataset import MnistDataset
from paddle_mnist.mnist.splits import SIZE
from paddle_mnist.system.arrays import as_array

Values = Union[np.ndarray, paddle.Tensor]


class TrainingSet(paddle.io.Dataset):  # type: ignore[type-arg]  # Paddle 2's has none
    """New images, followed by those of an earlier run, of which `ReplayOrder` draws some.

    distortion: changes each image, differently in each epoch (see `set_epoch`).
    on_device: keep all images on the device, as float32, and gather batches there; by default on
        every device but a CPU.

    Item i is (image, label): float32 [1, 28, 28] and int64 [1].
    """

    def __init__(
        self,
        new: MnistDataset,
        replayed: Optional[MnistDataset] = None,
        distortion: Optional[Distortion] = None,
        on_device: Optional[bool] = None,
    ):
        super().__init__()
        self.new, self.replayed, self.distortion = new, replayed, distortion
        self.on_device = on_device
        self._images_and_labels: Optional[tuple[paddle.Tensor, paddle.Tensor]] = None
        self._epoch = 0

    def __len__(self) -> int:
        return len(self.new) + len(self.replayed or ())

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        images, labels = self.__getitems__([range(len(self))[index]])
        return as_array(images)[0], as_array(labels)[0]

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, counted from 0, on which the distortion depends."""
        self._epoch = epoch

    def __getitems__(self, indices: Sequence[int]) -> tuple[Values, Values]:
        """Return images as one batch: float32 [B, 1, 28, 28], and labels int64 [B, 1]."""
        rows = np.asarray(indices, np.int64)
        images: Values
        images, labels = self._gather(rows) if self._is_on_device() else self._copy(rows)
        if self.distortion is None:
            return images, labels
        if isinstance(images, np.ndarray):
            images = paddle.to_tensor(images)
        return self.distortion(images, self._epoch, rows), labels

    def _is_on_device(self) -> bool:
        """Return whether to keep the images on the device; never in workers, which have no GPU."""
        if paddle.io.get_worker_info() is not None:
            return False
        if self.on_device is None:
            self.on_device = paddle.device.get_device() != "cpu"
        return self.on_device

    def _copy(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if self.replayed is None:
            return self.new.batch(rows)
        images = np.empty((len(rows), 1, SIZE, SIZE), np.float32)
        labels = np.empty((len(rows), 1), np.int64)
        is_new, first = rows < len(self.new), len(self.new)
        images[is_new], labels[is_new] = self.new.batch(rows[is_new])
        images[~is_new], labels[~is_new] = self.replayed.batch(rows[~is_new] - first)
        return images, labels

    def _gather(self, rows: np.ndarray) -> tuple[paddle.Tensor, paddle.Tensor]:
        if self._images_and_labels is None:
            whole = self._copy(np.arange(len(self)))
            self._images_and_labels = paddle.to_tensor(whole[0]), paddle.to_tensor(whole[1])
        images, labels = self._images_and_labels
        places = paddle.to_tensor(rows)
        return paddle.gather(images, places), paddle.gather(labels, places)


@dataclass(frozen=True)
class ReplayOrder:
    """The order of an epoch of a `TrainingSet`: all new images, and a share of the old ones.

    The old ones are drawn for each epoch, by (seed, epoch), without replacement.

    num_new, num_old: the numbers of images. fraction: the share of old ones in every epoch, more
        than 0 and less than 1.
    Raises ConfigError for a fraction of less than one image, or of more than `num_old`.
    """

    num_new: int
    num_old: int
    fraction: float
    seed: int = 0
    shuffle: bool = True

    def __post_init__(self) -> None:
        count = self.num_replayed
        if not count:
            raise ConfigError(
                f"replay_fraction is {self.fraction}: less than one image to {self.num_new} new "
                f"ones; expected at least {1 / (self.num_new + 1):.2g}"
            )
        if count > self.num_old:
            largest = self.num_old / (self.num_old + self.num_new)
            raise ConfigError(
                f"replay_fraction is {self.fraction}: {count} images to {self.num_new} new ones, "
                f"but replay_data has {self.num_old}; expected at most {largest:.3f}"
            )

    @property
    def num_replayed(self) -> int:
        """The number of old images in each epoch."""
        return round(self.num_new * self.fraction / (1 - self.fraction))

    def __call__(self, epoch: int) -> np.ndarray:
        """Return the indices of an epoch's images, int64 [num_new + num_replayed]."""
        random = np.random.RandomState([self.seed, epoch])  # see `SeededOrder`
        drawn = random.permutation(self.num_old)[: self.num_replayed]
        samples = np.concatenate([np.arange(self.num_new), self.num_new + drawn])
        return random.permutation(samples) if self.shuffle else samples
