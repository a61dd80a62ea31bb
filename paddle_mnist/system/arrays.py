"""Convert tensors and other values to NumPy arrays."""

import math
import mmap
import sys
from collections.abc import Callable, Iterable
from typing import Any, Optional

import numpy as np

# The dtypes of arrays in the files of checkpoints, without their byte order.
SAVED_DTYPES = frozenset("b1 i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8 c8 c16".split())
_SHARED = {"paddle.float32", "paddle.float64"}  # dtypes whose memory NumPy can share with Paddle
_LARGE_BYTES = 2**20  # bytes of an array that has memory of its own


def as_array(values: Any) -> np.ndarray:
    """Return values as a NumPy array; of a tensor, only its own values are copied.

    For a view, such as `images[i]`, Paddle's `numpy` copies the whole tensor behind it, so an epoch
    of views would take time in proportion to the square of their number.
    """
    if is_tensor(values):
        # bfloat16 comes as uint16, as `to_tensor` takes it
        array: np.ndarray = own_memory(values.detach()).numpy()
        return array
    return np.asarray(values)


def is_saved_dtype(dtype: np.dtype) -> bool:
    """Return whether the files of checkpoints hold arrays of a dtype as they are."""
    return dtype.isnative and dtype.str[1:] in SAVED_DTYPES


def shared_array(tensor: Any) -> np.ndarray:
    """Return the values of a tensor, only to be read: in its own memory where NumPy can have it."""
    owner = own_memory(tensor.detach())
    return np.from_dlpack(owner) if _can_share(owner) else as_array(owner)


def copied_array(
    values: Any, allocate: Callable[[tuple[int, ...], np.dtype], np.ndarray] = np.empty
) -> np.ndarray:
    """Return a NumPy array that shares no memory with the values.

    allocate: (shape, dtype) -> the array that they are copied into.
    """
    # A copy of shared memory takes a third of the time of `numpy`.
    array = shared_array(values) if is_tensor(values) else np.asarray(values)
    copy = allocate(array.shape, array.dtype)
    np.copyto(copy, array)
    return copy


def _can_share(tensor: Any) -> bool:
    """Return whether NumPy can share the memory of a tensor."""
    return bool(
        hasattr(tensor, "__dlpack__")  # not in Paddle 2
        and tensor.place.is_cpu_place()
        and str(tensor.dtype) in _SHARED
        and 0 not in tensor.shape
    )


class TensorCopies:
    """Copies of the values of tensors, to restore them; `renew` copies the present values.

    values: (attribute) the copies, tensors, by the `id` of the tensors.
    """

    def __init__(self, tensors: Iterable[Any]):
        self._tensors = [*tensors]
        self.values: dict[int, Any] = {}

    def present(self, tensor: Any) -> np.ndarray:
        """Return the present values of a tensor."""
        return tensor.numpy()  # type: ignore[no-any-return]

    def renew(self) -> None:
        """Copy the present values."""
        self.values = {id(tensor): tensor.detach().clone() for tensor in self._tensors}

    def restore(self) -> None:
        """Give the tensors the copied values."""
        for tensor in self._tensors:
            tensor.set_value(self.values[id(tensor)])


class ArrayCopies(TensorCopies):
    """Copies in arrays, which take a fifth of the time, of tensors whose memory NumPy can share."""

    def __init__(self, tensors: Iterable[Any]):
        super().__init__(())  # which copies the others
        self._all = [*tensors]
        self._pointers: Optional[list[int]] = None  # to the memory of those in `_shared`
        self._shared: list[tuple[Any, np.ndarray, np.ndarray]] = []  # tensor, memory and copy
        self._memory: dict[int, tuple[int, np.ndarray]] = {}  # by the `id` of the tensors

    def renew(self) -> None:
        if self._pointers != [tensor.data_ptr() for tensor, _, _ in self._shared]:
            self._find_memory()
        for _, memory, values in self._shared:
            values[...] = memory
        super().renew()

    def present(self, tensor: Any) -> np.ndarray:
        pointer, memory = self._memory.get(id(tensor), (None, None))
        return memory if memory is not None and pointer == tensor.data_ptr() else tensor.numpy()

    def restore(self) -> None:
        for tensor, _, values in self._shared:
            tensor.set_value(values)
        super().restore()

    def _find_memory(self) -> None:
        self._shared, self._tensors = [], []
        for tensor in self._all:
            detached = tensor.detach()
            if own_memory(detached) is detached and _can_share(detached):
                memory = np.from_dlpack(detached)
                self._shared.append((tensor, memory, np.empty_like(memory)))
            else:
                self._tensors.append(tensor)
        self._pointers = [tensor.data_ptr() for tensor, _, _ in self._shared]
        self._memory = {
            id(tensor): (pointer, memory)
            for pointer, (tensor, memory, _) in zip(self._pointers, self._shared)
        }


def unforked_array(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return an array without values, whose memory a forked process does not have.

    Such a process, like the workers of a loader, would otherwise keep it for as long as it lives.
    Raises MemoryError.
    """
    size = math.prod(shape) * dtype.itemsize
    if size < _LARGE_BYTES or not hasattr(mmap, "MADV_DONTFORK"):  # not Linux
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
