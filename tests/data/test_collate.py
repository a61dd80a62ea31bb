"""Samples of any structure become batches; mismatched samples raise an error that names them."""

import gc
import weakref
from collections import namedtuple

import numpy as np
import paddle
import pytest

from paddle_mnist.data.collate import make_batch
from paddle_mnist.data.structures import num_samples, tensors
from paddle_mnist.errors import DataError

Pair = namedtuple("Pair", "left right")

DTYPES = "bool int8 uint8 int16 int32 int64 float16 float32 float64 complex64 complex128".split()


def test_batch_keeps_structure_and_dtypes():
    def sample(number):
        return {
            "pair": Pair(np.full([2, 3], number, "float16"), 0.5 * number),
            3: [number, (number > 0,)],
            "texts": ("a", b"b"),
            "empty": np.zeros((0, 2), "int8"),
        }

    batch = make_batch([sample(0), sample(1)], "Digits", [0, 1])
    kinds = [type(part) for part in (batch["pair"], batch[3], batch[3][1])]
    assert list(batch) == ["pair", 3, "texts", "empty"] and kinds == [Pair, list, tuple]
    assert batch["texts"] == (["a", "a"], [b"b", b"b"])
    (left, right), (numbers, (flags,)), empty = batch["pair"], batch[3], batch["empty"]
    for values, dtype, expected in (
        (left, "float16", [[[0] * 3] * 2, [[1] * 3] * 2]),
        (right, "float32", [0, 0.5]),
        (numbers, "int64", [0, 1]),
        (flags, "bool", [False, True]),
        (empty, "int8", [[], []]),
    ):
        assert values.dtype == dtype and values.tolist() == expected
    assert empty.shape == (2, 0, 2)


def test_classes_that_a_dataset_makes_for_its_samples_are_freed():
    classes = [namedtuple("Single", "value") for _ in range(200)]
    for made in classes:
        make_batch([made(1.0)], "data", [0])
    first = weakref.ref(classes[0])
    del classes, made
    gc.collect()
    assert first() is None


def test_tensors_keep_their_dtype_and_values():
    for dtype in (*DTYPES, "bfloat16"):
        values = paddle.ones([2, 3], "float32").astype(dtype)
        batch = tensors(make_batch([values, values], "Digits", [0, 1]))
        assert batch.dtype == values.dtype, dtype
        assert np.array_equal(batch.astype("complex64").numpy(), np.ones([2, 2, 3])), dtype
    # Paddle has neither of these, and takes the first for the bits of bfloat16.
    for dtype, expected in (("uint16", paddle.int32), ("uint32", paddle.int64)):
        batch = tensors(make_batch([np.array([40_000], dtype)] * 2, "Digits", [0, 1]))
        assert (batch.dtype, batch.tolist()) == (expected, [[40_000]] * 2)
    mixed = [np.array([40_000], "uint16"), np.array([40_000], "int32")]
    assert tensors(make_batch(mixed, "Digits", [0, 1])).dtype == paddle.int32


x, other = np.zeros(2, "float32"), np.zeros(3, "float32")
REFUSED = {
    "ragged": ([x, other], "samples 4 and 7", "differ: float32 [2] and float32 [3];"),
    "ragged, inside": ([{"a": (0, x)}, {"a": (0, other)}], "samples 4 and 7", "(int, float32 [3])"),
    "dtypes": ([(x,), (x.astype("float64"),)], "samples 4 and 7", "(float64 [2],)"),
    "int and float": ([1, 2.5], "samples 4 and 7", "int and float"),
    "keys of one text": ([{1: 1}, {"1": 1}], "samples 4 and 7", "{1: int} and {'1': int}"),
    "lengths, inside": ([{"a": [1]}, {"a": []}], "samples 4 and 7", "{'a': [int]} and {'a': []}"),
    "tuple and array": ([(1, 2), np.array([1, 2])], "samples 4 and 7", "(int, int) and int64 [2]"),
    "None, inside": ([{"a": [1]}, {"a": [None]}], "sample 7", "is {'a': [None]}"),
    "objects": ([np.array([None, 1])], "sample 4", "is object [2]"),
    "uint64": ([{"n": np.uint64(2**63)}], "sample 4", "is {'n': uint64 []}"),
}


@pytest.mark.parametrize("wrong", REFUSED)
def test_samples_that_do_not_fit_raise_with_their_indices(wrong):
    samples, place, message = REFUSED[wrong]
    with pytest.raises(DataError) as refusal:
        make_batch(samples, "Digits", [4, 7][: len(samples)])
    assert str(refusal.value).startswith(f"Digits: {place} ") and message in str(refusal.value)


def test_num_samples_is_the_length_of_the_first_array():
    assert num_samples({"names": ["a", "b", "c"], "total": np.float32(1), "x": {"y": other}}) == 3
    assert num_samples((paddle.to_tensor(2.0), paddle.zeros([4]), x)) == 4
    assert num_samples(np.zeros((0, 3))) == 0
    for batch in ([], {"a": "texts"}, 3, (paddle.to_tensor(2.0),)):
        with pytest.raises(DataError, match=type(batch).__name__):
            num_samples(batch)
