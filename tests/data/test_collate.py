"""Samples of any structure become batches; what does not fit together is refused with its place."""

from collections import namedtuple

import numpy as np
import paddle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from paddle_mnist.data.collate import leaves, num_samples, stack_samples, tensors
from paddle_mnist.errors import DataError

Pair = namedtuple("Pair", "left right")

DTYPES = "bool int8 uint8 int16 int32 int64 float16 float32 float64 complex64 complex128".split()


def of_dtype(dtype):
    return arrays.arrays(dtype, arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))


def containers(parts):
    return st.one_of(
        st.lists(parts, min_size=1, max_size=3),
        st.tuples(parts, parts),
        st.builds(Pair, parts, parts),
        st.dictionaries(st.one_of(st.text(max_size=3), st.integers(0, 9)), parts, min_size=1),
    )


structures = st.recursive(
    st.one_of(
        st.sampled_from(DTYPES).flatmap(of_dtype),
        st.booleans(),
        st.integers(-(2**40), 2**40),
        st.floats(width=32, allow_nan=False),
        st.text(max_size=3),
        st.binary(max_size=3),
    ),
    containers,
    max_leaves=5,
)


def is_text(leaf):
    return isinstance(leaf, (str, bytes))


@given(structures, st.integers(1, 4))
def test_stack_samples_any_structure_is_kept(sample, count):
    batch = stack_samples([sample] * count)
    for leaf, values in zip(leaves(sample), in_parallel(sample, batch)):
        if is_text(leaf):
            assert values == [leaf] * count
            continue
        dtype = np.float32 if isinstance(leaf, float) else np.asarray(leaf).dtype
        assert (values.dtype, values.shape) == (dtype, (count, *np.shape(leaf)))
        np.testing.assert_array_equal(values, np.stack([leaf] * count))


def in_parallel(sample, batch):
    """The parts of a batch in the places of the sample's leaves."""
    if isinstance(sample, (dict, tuple, list)):
        assert type(batch) is type(sample)
    if isinstance(sample, dict):
        assert list(sample) == list(batch)
        sample, batch = list(sample.values()), list(batch.values())
    if isinstance(sample, (tuple, list)):
        assert len(sample) == len(batch)
        for part, values in zip(sample, batch):
            yield from in_parallel(part, values)
    else:
        yield batch


def test_tensors_keep_their_dtype_and_values():
    for dtype in (*DTYPES, "bfloat16"):
        values = paddle.ones([2, 3], "float32").astype(dtype)
        batch = tensors(stack_samples([values, values]))
        assert batch.dtype == values.dtype, dtype
        assert np.array_equal(batch.astype("complex64").numpy(), np.ones([2, 2, 3])), dtype
    # Paddle has neither of these, and takes the first for the bits of bfloat16.
    for dtype, expected in (("uint16", paddle.int32), ("uint32", paddle.int64)):
        batch = tensors(stack_samples([np.array([40_000], dtype)] * 2))
        assert (batch.dtype, batch.tolist()) == (expected, [[40_000]] * 2)


x, other = np.zeros(2, "float32"), np.zeros(3, "float32")
REFUSED = {
    "ragged": ([x, other], "samples 0 and 1", "float32 [2] and"),
    "ragged, inside": ([{"a": (0, x)}, {"a": (0, other)}], "samples 0['a'][1] and 1['a'][1]", ""),
    "dtypes": ([(x,), (x.astype("float64"),)], "samples 0[0] and 1[0]", "dtype"),
    "int and float": ([1, 2.5], "samples 0 and 1", "int64 [] and float32 []"),
    "keys of one text": ([{1: 1}, {"1": 1}], "samples 0 and 1", "keys: [1] and ['1']"),
    "lengths, inside": ([{"a": [1]}, {"a": []}], "samples 0['a'] and 1['a']", "1 and 0"),
    "tuple and array": ([(1, 2), np.array([1, 2])], "samples 0 and 1", "number or array"),
    "None, inside": ([{"a": [None]}], "sample 0['a'][0]", "is None"),
    "objects": ([np.array([None, 1])], "sample 0", "is a ndarray"),
    "uint64": ([{"n": np.uint64(2**63)}], "sample 0['n']", "is uint64"),
}


@pytest.mark.parametrize("wrong", REFUSED)
def test_stack_samples_that_do_not_fit_raises_with_their_place(wrong):
    samples, place, message = REFUSED[wrong]
    with pytest.raises(DataError) as refusal:
        stack_samples(samples, source="Digits")
    assert str(refusal.value).startswith(f"Digits: {place} ") and message in str(refusal.value)


def test_num_samples_is_the_length_of_the_first_array():
    assert num_samples({"names": ["a", "b", "c"], "total": np.float32(1), "x": {"y": other}}) == 3
    assert num_samples((paddle.to_tensor(2.0), paddle.zeros([4]), x)) == 4
    assert num_samples(np.zeros((0, 3))) == 0
    for batch in ([], {"a": "texts"}, 3, (paddle.to_tensor(2.0),)):
        with pytest.raises(DataError, match=type(batch).__name__):
            num_samples(batch)
