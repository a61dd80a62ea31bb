"""Convert tensors and other values to NumPy arrays."""

import math
import mmap
import sys
from collections.abc import Callable
from typing import Any, Optional

import numpy as np

_SHARED = {"paddle.float32", "paddle.float64"}  # dtypes of which NumPy can have a tensor's memory
_LARGE = 2**20  # bytes of an array that has memory of its own


def as_array(values: Any) -> np.ndarray:
    """Return values as a NumPy array; those of a tensor at the cost of their own size.

    For the array of a view, such as `images[i]`, Paddle copies all of the tensor behind it, so that
    an epoch of views would take time in proportion to the square of their number.
    """
    if is_tensor(values):
        # bfloat16 comes as uint16, as `to_tensor` takes it
        array: np.ndarray = own_memory(values.detach()).numpy()
        return array
    return np.asarray(values)


def copied_array(
    values: Any, allocate: Callable[[tuple[int, ...], np.dtype], np.ndarray] = np.empty
) -> np.ndarray:
    """Return a NumPy array that shares no memory with the values.

    allocate: (shape, dtype) -> the array that they are copied into.
    """
    if is_tensor(values):
        tensor = own_memory(values.detach())
        # A copy from shared memory takes a third of the time of `numpy`.
        array = np.from_dlpack(tensor) if _can_share(tensor) else as_array(tensor)
    else:
        array = np.asarray(values)
    copy = allocate(array.shape, array.dtype)
    np.copyto(copy, array)
    return copy


def _can_share(tensor: Any) -> bool:
    """Return whether NumPy can have the memory of a tensor."""
    return bool(
        hasattr(tensor, "__dlpack__")  # not in Paddle 2
        and tensor.place.is_cpu_place()
        and str(tensor.dtype) in _SHARED
        and tensor.size
    )


class TensorCopy:
    """A copy of a tensor's values, which is renewed again and again.

    values: (attribute) the copy, a tensor.
    """

    def __init__(self, tensor: Any):
        self._tensor = tensor

    def renew(self) -> None:
        """Copy the present values."""
        self.values = self._tensor.detach().clone()

    def put_back(self) -> None:
        """Give the tensor the copied values."""
        self._tensor.set_value(self.values)


class ArrayCopy(TensorCopy):
    """A copy in an array; a renewal takes a fifth of the time where NumPy can have the memory.

    values: (attribute) the copy, an array or a tensor.
    """

    def __init__(self, tensor: Any):
        super().__init__(tensor)
        self._memory: Optional[np.ndarray] = None  # of the tensor
        self._pointer = 0

    def renew(self) -> None:
        if self._memory is not None and self._tensor.data_ptr() == self._pointer:
            np.copyto(self.values, self._memory)
            return
        tensor = self._tensor.detach()
        if own_memory(tensor) is tensor and _can_share(tensor):
            self._memory, self._pointer = np.from_dlpack(tensor), self._tensor.data_ptr()
            self.values = self._memory.copy()
        else:
            self._memory = None
            super().renew()


def unforked_array(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return an array without values, whose memory a forked process does not have.

    Such a process, like the workers of a loader, would otherwise keep it for as long as it lives.
    Raises MemoryError.
    """
    size = math.prod(shape) * dtype.itemsize
    if size < _LARGE or not hasattr(mmap, "MADV_DONTFORK"):  # not Linux
        return np.empty(shape, dtype)
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_DONTFORK)
    except OSError as error:  # which mmap raises where memory is short
        raise MemoryError(f"{size} bytes: {error.strerror}") from error
    return np.frombuffer(memory, dtype).reshape(shape)


def is_tensor(values: Any) -> bool:
    """Return whether values are a Paddle tensor, without importing Paddle."""
    paddle = sys.modules.get("paddle")  # without it there are no tensors
    return paddle is not None and isinstance(values, paddle.Tensor)


def own_memory(tensor: Any) -> Any:
    """Return a dense tensor that owns its memory: the same, or a copy of a view."""
    size = math.prod(tensor.shape) * tensor.element_size()  # the attribute `size` takes longer
    if not tensor.is_dense() or not size:  # Paddle 2 cannot copy one without elements
        return tensor
    owns_all = hasattr(tensor, "_holder_size") and tensor._holder_size() == size  # not in Paddle 2
    return tensor if owns_all else tensor.clone()
