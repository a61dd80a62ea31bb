"""The loaders of `fit`: the same batches for any start, shards and workers, resumable or not."""

import contextlib
import gc
import io
import itertools
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import threading
from collections import namedtuple
from subprocess import PIPE

import forked
import numpy as np
import paddle
import pytest
from conftest import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st

from paddle_mnist.data import batch_reader
from paddle_mnist.data.collate import mapped
from paddle_mnist.data.external import (
    ExternalLoader,
    ResumableBatchSampler,
    open_loader,
)
from paddle_mnist.data.loader import BatchLoader, epoch_batches, shards_of
from paddle_mnist.data.sampler import ShardSpec
from paddle_mnist.data.seeding import generators_restored, seed_generators, seed_of
from paddle_mnist.errors import ConfigError, DataError, ProcessError, StoppedError
from paddle_mnist.system import signals

Views = namedtuple("Views", "near far")


class Numbered(paddle.io.Dataset):
    """Samples that a function makes of their index."""

    def __init__(self, length, make=lambda index: np.array([index])):
        self.length, self.make = length, make

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.make(index)


class Stream(paddle.io.IterableDataset):
    """The samples of a dataset, one after the other."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __iter__(self):
        return map(self.dataset.__getitem__, range(len(self.dataset)))


def noisy(index):
    """A sample with random numbers of every generator that a dataset may draw from."""
    return {
        "index": index,
        "noise": (random.random(), np.random.rand(2), paddle.rand([3])),
    }


def plain(batch):
    """A batch with lists in place of tensors, and their dtypes, to compare."""

    def values(leaf):
        if not isinstance(leaf, paddle.Tensor):
            return leaf
        return str(leaf.dtype), tuple(leaf.shape), leaf.astype("complex128").numpy().tobytes()

    return mapped(batch, values)


def epochs_of(loader, epochs=(0, 1)):
    return [[plain(batch) for batch in loader.epoch(epoch)] for epoch in epochs]


def indices(batch):
    return batch.flatten().tolist()


def joined(lists):
    return [*itertools.chain.from_iterable(lists)]


loaders = st.builds(
    BatchLoader,
    st.builds(Numbered, st.integers(1, 40)),
    batch_size=st.integers(1, 12),
    seed=st.integers(0, 5),
    shuffle=st.booleans(),
)


@given(loaders, st.integers(0, 3))
def test_every_sample_comes_once_an_epoch(loader, epoch):
    batches = [indices(batch) for batch in loader.epoch(epoch)]
    assert sorted(joined(batches)) == list(range(len(loader.dataset)))
    assert len(batches) == len(loader)
    if not loader.sampler.shuffle:
        assert joined(batches) == list(range(len(loader.dataset)))


@given(loaders, st.integers(0, 3), st.integers(0, 42), st.integers(1, 4))
def test_batches_from_any_start_are_those_of_the_whole_epoch(loader, epoch, start, stride):
    whole = [indices(batch) for batch in loader.epoch(epoch)]
    assert [indices(batch) for batch in loader.epoch(epoch, start, stride)] == whole[start::stride]


specs = st.builds(
    lambda per_process, world_size: [
        ShardSpec(per_process * world_size, rank, world_size) for rank in range(world_size)
    ],
    st.integers(1, 4),
    st.integers(1, 3),
)


@given(loaders, specs, st.integers(1, 3), st.integers(0, 4))
def test_shards_of_all_processes_together_are_the_batch_in_order(loader, specs, batches, start):
    large = BatchLoader(
        loader.dataset,
        loader.sampler.batch_size * batches,
        loader.sampler.seed,
        loader.sampler.shuffle,
    )
    divided = [loader.sharded(spec, batches) for spec in specs]
    assert {len(one) for one in divided} == {len(large)}
    whole = [indices(batch) for batch in large.epoch(1, start)]
    parts = list(zip(*(one.epoch(1, start) for one in divided)))
    assert len(parts) == len(whole)
    for batch, of_processes in zip(whole, parts):
        assert [len(shards) for shards in of_processes] == [one.passes_per_step for one in divided]
        shards = joined(of_processes)
        assert [shard.index for shard in shards] == list(range(specs[0].num_shards))
        assert {shard.batch_size for shard in shards} == {len(batch)}
        assert sum(shard.samples for shard in shards) == len(batch)
        assert joined(indices(shard.batch)[: shard.samples] for shard in shards) == batch
        assert all(len(shard.batch) == max(1, shard.samples) for shard in shards)


def test_dividing_a_loader_leaves_it_as_it_was():
    loader = BatchLoader(Numbered(10), 2)
    loader.sharded(ShardSpec(2), 3)
    assert [indices(batch) for batch in loader] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]


# ------------------------------------------------------------------ an order of one's own


@settings(max_examples=30)
@given(st.data(), st.integers(1, 20), st.integers(1, 6), specs)
def test_batches_follow_an_order_of_ones_own(data, length, batch_size, specs):
    """Such an order leaves samples out, and repeats some; from any start, divided or not."""
    size = data.draw(st.integers(1, 30))
    orders = data.draw(st.lists(st.permutations(range(size)), min_size=2, max_size=2))
    orders = [np.array(order, "int32") % length for order in orders]
    loader = BatchLoader(Numbered(length), batch_size, shuffle=True, order=orders.__getitem__)
    assert len(loader) == -(-size // batch_size)
    for epoch, order in enumerate(orders):
        batches = [indices(batch) for batch in loader.epoch(epoch)]
        assert joined(batches) == order.tolist()
        start = data.draw(st.integers(0, len(loader)))
        assert [indices(batch) for batch in loader.epoch(epoch, start)] == batches[start:]
        for number, batch in enumerate(batches):
            assert loader.indices(epoch, number).tolist() == batch
        divided = [loader.sharded(spec) for spec in specs]
        for batch, of_processes in zip(batches, zip(*(one.epoch(epoch) for one in divided))):
            shards = joined(of_processes)
            assert joined(indices(shard.batch)[: shard.samples] for shard in shards) == batch


@pytest.mark.parametrize(
    ("order", "said"),
    [
        (lambda epoch: np.arange(5), "epoch 0 has indices from 0 to 4; expected .* 0 to 3, int64"),
        (lambda epoch: [1, -1], "epoch 0 has indices from -1 to 1; expected indices from 0"),
        (lambda epoch: np.zeros((2, 2), int), r"epoch 0 is int64 \[2, 2\]; expected"),
        (lambda epoch: [0.5], r"epoch 0 is float64 \[1\]; expected"),
        (lambda epoch: [], r"epoch 0 is float64 \[0\]; expected"),
        (
            lambda epoch: range(4 - epoch),
            "has 3 samples in epoch 1, 4 in epoch 0; expected as many",
        ),
        (lambda epoch: [3, 2][epoch:] + [0] * (1 // (epoch - 1)), "epoch 1 fails with ZeroDiv"),
    ],
)
def test_an_order_that_is_none_is_said(order, said):
    with pytest.raises((ConfigError, DataError), match=f"the order .*{said}"):
        loader = BatchLoader(Numbered(4), 2, order=order)
        for epoch in range(2):
            list(loader.epoch(epoch))


@pytest.mark.parametrize("data", [Stream(Numbered(3)), BatchLoader(Numbered(3), 1), list])
def test_an_order_of_what_cannot_be_indexed_is_refused(data):
    with pytest.raises(ConfigError, match="has an order of its own; expected"):
        open_loader(data, 2, order=np.arange)


# ------------------------------------------------------------------ many samples at once


class AtOnce(Numbered):
    """Samples that are read at once, as a list or as what a function makes of their indices."""

    def __init__(self, length, make=lambda index: np.array([index]), make_batch=None):
        super().__init__(length, make)
        self.make_batch = make_batch or (lambda indices: [make(index) for index in indices])
        self.requests = []

    def __getitems__(self, indices):
        self.requests.append(indices)
        return self.make_batch(indices)


def columns(index):
    """A sample in every structure; the same function makes many at once."""
    index = np.asarray(index)
    halves = (index * 0.5).astype("float64")[..., np.newaxis]
    return {"pair": (halves, index.astype("uint16")), 3: index[..., np.newaxis] > [2, 4]}


@settings(max_examples=30)
@given(loaders, specs, st.integers(0, 2), st.integers(0, 8), st.integers(1, 3))
def test_batches_that_are_read_at_once_are_those_of_their_samples(
    loader, specs, epoch, start, stride
):
    length = len(loader.dataset)
    options = {"seed": loader.sampler.seed, "shuffle": loader.sampler.shuffle}
    one_by_one, *at_once = (
        BatchLoader(dataset, loader.sampler.batch_size, **options)
        for dataset in (
            Numbered(length, columns),
            AtOnce(length, columns),
            AtOnce(length, columns, columns),
        )
    )
    for other in at_once:
        for spec in (None, *specs):
            expected, found = (
                [
                    (shard.index, shard.samples, plain(shard.batch))
                    for batch in each.sharded(spec).epoch(epoch, start, stride)
                    for shard in shards_of(batch)
                ]
                for each in (one_by_one, other)
            )
            assert found == expected
        assert all(type(index) is int for request in other.dataset.requests for index in request)


DTYPES = "bool int8 uint8 int16 int32 int64 float16 bfloat16 float32 float64 complex64".split()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [[9], [9, 2]])
def test_tensors_are_read_as_their_samples(dtype, shape):
    values = paddle.arange(np.prod(shape)).reshape(shape).astype("float32").astype(dtype)
    values.stop_gradient = not values.is_floating_point()
    dataset = paddle.io.TensorDataset([values, paddle.arange(9)])
    at_once, one_by_one = (
        epochs_of(BatchLoader(data, 2, seed=3, shuffle=True))
        for data in (dataset, paddle.io.Subset(dataset, range(9)))
    )
    assert at_once == one_by_one


def test_an_epoch_of_tensors_takes_one_operation_for_each_of_them_and_batch(monkeypatch):
    reads, gather = [], paddle.gather
    monkeypatch.setattr(paddle, "gather", lambda *args: reads.append(args) or gather(*args))
    monkeypatch.delattr(paddle.io.TensorDataset, "__getitem__")
    data = paddle.io.TensorDataset([paddle.rand([40, 3]), paddle.arange(40)])
    assert len(list(BatchLoader(data, 16))) == 3 and len(reads) == 6


class Seeded(Numbered):
    """Samples of the seeds that the loader gives."""

    def __getitems__(self, indices, seeds):
        noise = [np.random.RandomState(seed).rand(2) for seed in seeds]
        return {"index": np.array(indices), "seed": np.array(seeds), "noise": np.array(noise)}


def test_seeds_follow_from_seed_epoch_and_index():
    def samples(epoch, start=0, stride=1, workers=0, spec=None, **options):
        loader = BatchLoader(Seeded(23), 4, seed=7, num_workers=workers, **options).sharded(spec)
        return {
            int(index): (int(seed), noise.tobytes())
            for batch in loader.epoch(epoch, start, stride)
            for shard in shards_of(batch)
            for index, seed, noise in zip(*(values.numpy() for values in shard.batch.values()))
        }

    for epoch in (0, 2):
        whole = samples(epoch)
        assert {index: seed for index, (seed, _) in whole.items()} == {
            index: seed_of(7, epoch, index) for index in range(23)
        }
        assert samples(epoch, shuffle=True) == samples(epoch, workers=2) == whole
        assert samples(epoch, spec=ShardSpec(3)) == whole
        assert samples(epoch, start=3, stride=2).items() <= whole.items()


DRAWS = {
    "random": lambda: random.gauss(0, 1),
    "numpy": np.random.randn,
    "paddle": lambda: paddle.rand([]).item(),
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("generator", DRAWS)
def test_what_draws_without_seeds_is_read_one_by_one(generator, workers, lines):
    draw = DRAWS[generator]

    class Drawing(AtOnce):
        pass

    def make(index):
        return index, draw()

    for _ in range(3):  # a second number is kept for the next call, which draws it
        draw()
    dataset = Drawing(11, make)
    whole = epochs_of(BatchLoader(Numbered(11, make), 4, seed=3, shuffle=True))
    loader = BatchLoader(dataset, 4, seed=3, shuffle=True, num_workers=workers)
    assert epochs_of(loader) == whole
    assert [plain(batch) for batch in loader.sharded(None).epoch(1, start=1)] == whole[1][1:]
    resumed = BatchLoader(dataset, 4, seed=3, shuffle=True, num_workers=workers)
    assert [plain(batch) for batch in resumed.epoch(1, start=1)] == whole[1][1:]
    (line,) = {line for line in lines() if "Drawing: its __getitems__ draws" in line}
    assert "read one by one" in line and "expected __getitems__(indices, seeds)" in line
    assert len(dataset.requests) == (0 if workers else 2)  # the first batch of each loader


def test_what_draws_nothing_leaves_the_generators_alone(lines):
    seed_generators(5)
    expected = draws()
    seed_generators(5)
    list(BatchLoader(paddle.io.TensorDataset([paddle.arange(9)]), 4))
    list(BatchLoader(Seeded(11), 4))
    assert draws() == expected
    seed_generators(5)
    loader = BatchLoader(AtOnce(11), 4)
    list(loader), list(loader)
    assert draws()[-1] == expected[-1]  # Paddle's, from which nets draw
    assert not lines()


def test_a_loop_of_ones_own_draws_other_numbers_after_each_batch():
    """The generators are seeded to see whether samples draw; in a resumed epoch, alike."""

    def drawn(start):
        batches = BatchLoader(AtOnce(11), 2, seed=3).epoch(0, start)
        return [(random.random(), np.random.rand()) for _ in batches]

    whole = drawn(0)[1:]  # nothing is seeded for the first batch
    assert len({*whole}) == len(whole) == 5
    assert drawn(2)[1:] == whole[2:]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [Numbered, AtOnce])
@pytest.mark.parametrize("generator", DRAWS)
def test_samples_that_begin_to_draw_are_refused_unless_that_is_said(generator, kind, workers):
    def make(index):
        return index, DRAWS[generator]() if index > 8 else 0.0

    def read(**options):
        return epochs_of(BatchLoader(kind(11, make), 4, seed=3, num_workers=workers, **options))

    said = f"{kind.__name__}: reading samples 8, 9, 10 draws random numbers, unlike the first batch"
    with pytest.raises(ConfigError, match=rf"{said}.*expected .*Loading\(random=True\)"):
        read()
    assert read(random=True) == read(random=True)


def test_samples_that_are_said_to_draw_are_not_said_to_have_drawn(lines):
    class Declared(AtOnce):
        pass

    list(BatchLoader(Declared(11), 4, random=True))
    (line,) = lines()
    assert "Declared: random=True says that its samples draw" in line
    assert "read one by one" in line and "__getitems__ draws" not in line


def test_what_cannot_draw_is_not_said_to_draw(lines):
    """`random` is for all datasets of a training, whichever way they are read."""
    for data in (paddle.io.TensorDataset([paddle.arange(9)]), Seeded(9)):
        assert len(list(BatchLoader(data, 4, random=True))) == 3
    assert not lines()


def test_only_samples_that_draw_are_seeded_each(monkeypatch):
    keys = []
    monkeypatch.setattr(batch_reader, "seed_generators", lambda *key: keys.append(key))
    list(BatchLoader(Numbered(5), 2, seed=7))
    assert keys.pop() == (7, 0, 0) and not keys  # for the first batch
    reads = []
    list(BatchLoader(Numbered(5, lambda index: reads.append(index) or random.random()), 2, seed=7))
    assert keys == [(7, 0, 0), *((7, 0, index) for index in range(5))]
    assert reads == [0, 1, *range(5)]  # the first batch again
    keys.clear(), reads.clear()
    list(
        BatchLoader(Numbered(5, lambda index: reads.append(index) or index), 2, seed=7, random=True)
    )
    assert keys == [(7, 0, index) for index in reads] and len(reads) == 5


class Changed(AtOnce):
    """Overrides how a sample is read, and inherits how many are."""

    def __getitem__(self, index):
        return -super().__getitem__(index)


class ChangedTensors(paddle.io.TensorDataset):
    def __getitem__(self, index):
        return -super().__getitem__(index)[0]


class Wrapped(Numbered):
    """Has what another has."""

    def __getattr__(self, name):
        return getattr(AtOnce(9, lambda index: None), name)


@pytest.mark.parametrize(
    "dataset",
    [
        Changed(9),
        ChangedTensors([paddle.arange(9)]),
        Wrapped(9, lambda index: -np.array([index])),
        paddle.io.Subset(Changed(9), range(9)),
    ],
)
def test_a_method_for_many_that_is_not_of_the_same_samples_is_not_used(dataset):
    assert joined(indices(-batch) for batch in BatchLoader(dataset, 4)) == list(range(9))


def test_samples_of_a_list_are_collated():
    dataset = AtOnce(7, lambda index: np.arange(index + 1))
    own, other = (
        epochs_of(BatchLoader(data, 3, collate_fn=collate))
        for data, collate in (
            (dataset, widened),
            (Numbered(7, dataset.make), widened),
        )
    )
    assert own == other and dataset.requests


def widened(samples):
    return np.array([np.resize(sample, 9) for sample in samples])


def test_tensors_with_a_collate_fn_are_read_one_by_one():
    dataset = paddle.io.TensorDataset([paddle.arange(9)])
    loader = BatchLoader(dataset, 4, collate_fn=lambda samples: np.array([len(samples)] * 4))
    assert [indices(batch)[0] for batch in loader] == [4, 4, 1]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("make_batch", "collate_fn", "said"),
    [
        (lambda indices: [1, 2], None, "returned 2 samples; expected 6"),
        (lambda indices: np.zeros(5), None, "returned a ndarray of 5 rows; expected a list of 6"),
        (lambda indices: {"x": (np.zeros([3, 6]),)}, None, "returned a dict of 3 rows; expected"),
        (lambda indices: None, None, "returned a NoneType of no rows; expected a list of 6 samp"),
        (lambda indices: np.zeros(6), np.stack, "returned a ndarray, which is a whole batch, .*"),
        (lambda indices: indices[9], None, "fails with IndexError: list index out of range"),
    ],
)
def test_what_is_no_batch_is_said(make_batch, collate_fn, said, workers):
    dataset = AtOnce(9, make_batch=make_batch)
    loader = BatchLoader(dataset, 6, collate_fn=collate_fn, num_workers=workers)
    with pytest.raises(DataError, match=f"AtOnce: __getitems__ of samples 0, 1, 2, 3, ... {said}"):
        list(loader)


class ToldEpoch(AtOnce):
    """Samples of an epoch."""

    def set_epoch(self, epoch):
        self.make_batch = lambda indices: np.array(indices) + 100 * epoch


def test_a_dataset_is_told_the_epoch_of_each_batch():
    """Also where two epochs are read in turns, and where a first batch is read between."""
    loader = BatchLoader(ToldEpoch(6), 2)
    first, second = loader.epoch(1), loader.epoch(2)
    assert [indices(next(each)) for each in (first, second, first)] == [
        [100, 101],
        [200, 201],
        [102, 103],
    ]
    assert loader.first_batch(3).tolist() == [300, 301]
    assert [indices(next(each)) for each in (second, first)] == [[202, 203], [104, 105]]


class Rounds(Numbered):
    """A dataset that counts what it calls epochs."""

    def epoch(self):
        raise AssertionError("is not asked")


class Flow(Stream):
    epoch = Rounds.epoch


def batches_of(rounds):
    """Return a function that has a method `epoch`."""

    def batches():
        return iter([np.arange(2), np.arange(2, 3)])

    batches.epoch = rounds.epoch
    return batches


@pytest.mark.parametrize("make", [lambda rounds: rounds, Flow, batches_of])
def test_data_with_a_method_epoch_are_no_loader(make):
    loader = open_loader(make(Rounds(3)), 2)
    assert [indices(batch) for batch in loader.epoch(0)] == [[0, 1], [2]]
    assert [indices(batch) for batch in epoch_batches(loader, 0, start=1)] == [[2]]
    assert open_loader(loader, 1) is loader


# ------------------------------------------------------------------ in workers


STRUCTURES = {
    "random numbers": noisy,
    "a named tuple": lambda index: Views(np.float32(index), np.arange(index, index + 2)),
    "a tuple of tuples": lambda index: ((index, (float(index),)), [index]),
    "texts alone": lambda index: f"text {index}",
    "texts and bytes": lambda index: {"text": f"{index}", "bytes": b"\0", 3: index % 2 == 0},
    "bfloat16": lambda index: (paddle.full([2], index + 0.5, "bfloat16"),),
    "float16": lambda index: np.full(2, index, "float16"),
    "complex": lambda index: np.array([index, 1j]),
    "uint16": lambda index: np.array([index], "uint16"),
    "without elements": lambda index: (np.zeros((0, 3), "float32"), index),
    "nothing but no elements": lambda index: np.zeros(0),
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_batches_are_the_same_for_any_number_of_workers(name):
    workers = (0, 1, 2) if name == "random numbers" else (0, 2)
    dataset = Numbered(9, STRUCTURES[name])
    own, *others = (
        epochs_of(BatchLoader(dataset, 2, seed=3, shuffle=True, num_workers=number))
        for number in workers
    )
    assert len(own[0]) == 5
    assert all(other == own for other in others)


def padded(samples):
    """A collate_fn whose batch has everything: a transposed array, scalars, texts, None."""
    longest = max(len(sample) for sample in samples)
    table = np.array([np.resize(sample, longest) for sample in samples], "float32")
    return {
        "table": table.T,
        "longest": np.array(longest),
        "tensor": paddle.to_tensor(table).sum(),
        "draw": random.random(),
        "none": None,
        "set": {longest},
    }


def test_what_a_collate_fn_makes_is_the_same_for_any_number_of_workers():
    dataset = Numbered(7, lambda index: np.arange(index + 1))
    own, other = (
        epochs_of(BatchLoader(dataset, 3, collate_fn=padded, num_workers=number))
        for number in (0, 2)
    )
    assert own == other
    assert [batch["set"] for batch in own[0]] == [{3}, {6}, {7}]


def test_shards_with_workers_are_those_without():
    def shards(number):
        loader = BatchLoader(Numbered(11, noisy), 4, shuffle=True, num_workers=number)
        return [
            [(shard.index, shard.samples, plain(shard.batch)) for shard in batch]
            for batch in loader.sharded(ShardSpec(4, 1, 2)).epoch(2, start=1)
        ]

    assert [[samples for _, samples, _ in batch] for batch in shards(0)] == [[1, 1], [1, 0]]
    assert shards(2) == shards(0)


class StrangeError(Exception):
    """One that does not pickle: its argument is not its constructor's."""

    def __init__(self, code, place):
        super().__init__(f"{code} in {place}")


def fails_with(error):
    def make(index):
        if index == 5:
            raise error
        return index

    return make


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (fails_with(DataError("image 5 is torn")), "^image 5 is torn$"),
        (fails_with(KeyError("five")), "^Numbered: sample 5 fails with KeyError: 'five'$"),
        (fails_with(KeyError()), "^Numbered: sample 5 fails with KeyError$"),
        (fails_with(StrangeError(5, "five")), "^Numbered: sample 5 fails with .*: 5 in five$"),
        (lambda index: None if index == 5 else 1, "^Numbered: sample 5 is None; expected numbers"),
        (
            lambda index: np.zeros(2 + (index == 5)),
            "samples 4 and 5 of a batch differ in their dtype or shape: "
            r"float64 \[2\] and float64 \[3\]",
        ),
    ],
)
@pytest.mark.parametrize("kind", ["dataset", "DataLoader", "an IterableDataset"])
def test_errors_name_the_sample_for_any_number_of_workers(make, message, workers, kind, capfd):
    dataset = Numbered(9, make)
    if kind == "dataset":
        loader = open_loader(dataset, 2, num_workers=workers)
    elif kind == "DataLoader":
        loader = open_loader(paddle.io.DataLoader(dataset, batch_size=2, num_workers=workers), 2)
    else:
        loader = open_loader(Stream(dataset), 2)
        message = message.replace("Numbered: sample 5", "Stream: sample 5 of an epoch")
        message = message.replace("sample 5 of an epoch is", "sample 5 is")
    with pytest.raises(DataError, match=message) as failure:
        list(loader.epoch(0))
    if workers and kind != "an IterableDataset":
        cause = str(failure.value.__cause__)  # the traceback there
        assert "in make" in cause or "stack_samples" in cause
    assert "Traceback" not in capfd.readouterr().err  # Paddle's, of its thread


def fails(samples):
    raise ZeroDivisionError("by hand")


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("collate_fn", "what"),
    [
        (lambda samples: None, "returned None; expected"),
        (fails, "fails with ZeroDivisionError: by"),
    ],
)
def test_what_a_collate_fn_cannot_make_is_said_with_its_samples(collate_fn, what, workers):
    options = {"collate_fn": collate_fn, "num_workers": workers}
    for loader in (
        open_loader(Numbered(9), 6, **options),
        open_loader(paddle.io.DataLoader(Numbered(9), batch_size=6, **options), 6),
    ):
        with pytest.raises(DataError, match=f"collate_fn of samples 0, 1, 2, 3, ... {what}"):
            list(loader.epoch(0))


def test_random_samples_depend_on_seed_epoch_and_index_alone():
    def noise(seed=1, epoch=0, index=2, start=0):
        loader = BatchLoader(Numbered(4, noisy), 1, seed)
        paddle.rand([3]), np.random.rand(), random.random()  # whatever was drawn before
        return plain(list(loader.epoch(epoch, start))[index - start])

    assert noise() == noise(start=2)
    assert all(noise() != other for other in (noise(seed=2), noise(epoch=1), noise(index=3)))
    values = [noise(epoch=epoch)["noise"] for epoch in range(5)]
    for generator in range(3):
        assert len({value[generator] for value in values}) == 5


def test_samplers_order_is_that_of_a_dataset_given_to_fit():
    dataset = Numbered(23)
    sampler = ResumableBatchSampler(dataset, 4, seed=7)
    loader = BatchLoader(dataset, 4, seed=7, shuffle=True)
    assert len(sampler) == len(loader) == 6
    for epoch, start in ((0, 0), (3, 0), (3, 2), (3, 6)):
        sampler.set_epoch(epoch, start)
        assert list(sampler) == [indices(batch) for batch in loader.epoch(epoch, start)]


def paddle_loader(length=23, make=lambda index: (index, np.float32(index)), **options):
    options = {"batch_size": 4, "shuffle": True, **options}
    if "batch_sampler" in options:
        del options["batch_size"], options["shuffle"]
    return paddle.io.DataLoader(Numbered(length, make), **options)


def resumable(**options):
    sampler = ResumableBatchSampler(Numbered(23), 4, seed=7, **options)
    return paddle_loader(batch_sampler=sampler)


def of_external(loader, epoch, **options):
    return [plain(batch) for batch in loader.epoch(epoch, **options)]


EXTERNAL = {
    "DataLoader": paddle_loader,
    "DataLoader with workers": lambda: paddle_loader(num_workers=2),
    "a function": lambda: lambda: iter(paddle_loader()),
    "a list": lambda: list(paddle_loader()),
    "a resumable sampler": resumable,
}


@pytest.mark.parametrize("kind", EXTERNAL)
def test_epochs_of_external_data_are_repeated(kind):
    loader = ExternalLoader(EXTERNAL[kind](), seed=5)
    first, second = of_external(loader, 0), of_external(loader, 1)
    np.random.rand(3)
    assert (of_external(loader, 0), of_external(loader, 1)) == (first, second)
    assert (first == second) == (kind == "a list")
    if kind not in ("a list", "a resumable sampler"):
        assert of_external(ExternalLoader(EXTERNAL[kind](), seed=6), 0) != first
    if "worker" not in kind:
        assert of_external(loader, 1, start=2, stride=3) == second[2::3]
    assert loader.resumes_inside_epochs == (kind == "a resumable sampler")


class Counts(Numbered):
    """Notes which samples are read."""

    def __init__(self, length):
        super().__init__(length)
        self.read = []

    def __getitem__(self, index):
        self.read.append(index)
        return np.array([index])


def test_resuming_reads_no_sample_again_only_with_a_resumable_sampler():
    read = {}
    for is_resumable in (True, False):
        dataset = Counts(12)
        kind = ResumableBatchSampler if is_resumable else paddle.io.BatchSampler
        sampler = kind(dataset, batch_size=2, shuffle=False)
        loader = ExternalLoader(paddle.io.DataLoader(dataset, batch_sampler=sampler), group=2)
        shards = list(loader.epoch(0, start=2))
        assert [[indices(shard.batch) for shard in group] for group in shards] == [
            [[8, 9], [10, 11]]
        ]
        read[is_resumable] = dataset.read
    assert read == {True: [8, 9, 10, 11], False: list(range(12))}


@settings(max_examples=30)
@given(st.integers(1, 20), st.integers(1, 5), st.integers(2, 5))
def test_groups_of_batches_make_the_steps(length, batch_size, group):
    # not a DataLoader: Paddle 3.3.1 hangs now and then where hundreds are read
    data = [*BatchLoader(Numbered(length), batch_size)]
    loader = ExternalLoader(data, seed=1, group=group)
    steps = list(loader.epoch(0))
    assert (len(steps), loader.passes_per_step) == (len(loader), group)
    assert {len(step) for step in steps[:-1]} <= {group}
    samples = []
    for step in steps:
        assert [shard.index for shard in step] == list(range(len(step)))
        own = [indices(shard.batch) for shard in step]
        assert [shard.samples for shard in step] == list(map(len, own))
        assert {shard.batch_size for shard in step} == {sum(map(len, own))}
        samples += joined(own)
    assert sorted(samples) == list(range(length))
    for start in range(len(steps)):
        rest = [[plain(shard.batch) for shard in step] for step in loader.epoch(0, start)]
        assert rest == [[plain(shard.batch) for shard in step] for step in steps[start:]]


def test_arrays_of_external_data_become_tensors():
    (batch,) = ExternalLoader([(np.ones(2, "float32"), "text")]).epoch(0)
    assert isinstance(batch[0], paddle.Tensor) and batch[1] == "text"


def test_length_of_a_function_is_unknown():
    with pytest.raises(TypeError):
        len(ExternalLoader(lambda: iter([])))


@pytest.mark.parametrize("data", [3, None])
def test_what_yields_no_batches_is_refused(data):
    with pytest.raises(ConfigError, match=f"the data are a {type(data).__name__}; expected"):
        ExternalLoader(data)


def draws():
    return (
        random.random(),
        random.gauss(0, 1),
        np.random.rand(),
        np.random.randn(),
        paddle.rand([2]).tolist(),
    )


@pytest.mark.parametrize("drawn_before", [0, 1])
def test_restored_generators_bear_no_trace(drawn_before):
    """A generator also keeps the second of two normal numbers for the next call."""

    def next_draws(between):
        seed_generators(drawn_before)
        for _ in range(drawn_before):
            draws()
        between()
        return draws()

    def trace():
        with generators_restored():
            draws(), seed_generators(1, 2), paddle.seed(4), draws()

    def failing_trace():
        with pytest.raises(ZeroDivisionError), generators_restored():
            seed_generators(9)
            raise ZeroDivisionError

    untouched = next_draws(lambda: None)
    assert next_draws(trace) == next_draws(failing_trace) == untouched
    assert next_draws(draws) != untouched


def test_seeds_are_a_function_of_the_whole_key():
    keys = [(1,), (1, 2), (2, 1), (12,), (1, 2, 0), ("1", "2x")]
    assert len({seed_of(*key) for key in keys}) == len(keys)
    assert seed_of(1, 2) == 4271380983  # of runs that are resumed with a later version
    seed_generators(1, 2)
    first = draws()
    seed_generators(1, 2)
    assert draws() == first


@pytest.mark.parametrize("batches", [None, 1], ids=["all", "one"])
@pytest.mark.parametrize("make", [float, fails_with(KeyError())], ids=["read", "an error"])
def test_workers_end_with_their_epoch(make, batches):
    """Paddle's live as long as the program, unless an epoch is read beyond its last batch."""
    others = set(multiprocessing.active_children())  # of the tests before
    loader = BatchLoader(Numbered(12, lambda index: make(index) * np.ones(1)), 1, num_workers=2)
    for epoch in range(2):
        with contextlib.suppress(DataError), contextlib.closing(loader.epoch(epoch)) as iterator:
            for _ in itertools.islice(iterator, batches):
                pass
    assert set(multiprocessing.active_children()) <= others


def test_workers_end_when_a_signal_ends_the_wait_for_a_batch():
    """Not only once nobody holds the error any more."""
    others = set(multiprocessing.active_children())
    with signals.handlers_installed(), signals.deferred():
        with contextlib.closing(
            epoch_batches(BatchLoader(Numbered(12), 1, num_workers=2), 0)
        ) as one:
            next(one)
            os.kill(os.getpid(), signal.SIGTERM)
            with pytest.raises(StoppedError) as error:
                next(one)
        signals.clear()
    assert set(multiprocessing.active_children()) <= others, error.value


def test_workers_do_not_end_what_earlier_loaders_have_left():
    """They would wait for ever for threads that only this process has."""
    is_collecting = False

    def read(index):
        if is_collecting:
            gc.collect()
        return np.array([index])

    data = Numbered(40, read)
    gc.disable()
    try:
        left = [iter(paddle.io.DataLoader(data, batch_size=2, num_workers=2))]
        next(left[0])
        left.append(left)  # a cycle, which only the collector finds
        del left
        is_collecting = True
        assert len(list(BatchLoader(data, 4, num_workers=2))) == 10
    finally:
        gc.enable()
        gc.collect()


def killed(index):
    if index == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return index


@pytest.mark.slow  # Paddle asks after its workers every five seconds
@pytest.mark.parametrize("thread", [pytest.param(False, marks=pytest.mark.release), True])
def test_a_worker_that_is_killed_is_said_in_one_line(thread):
    errors = []

    def read():
        with pytest.raises(ProcessError) as failure:
            list(BatchLoader(Numbered(9, killed), 2, num_workers=2))
        errors.append(str(failure.value))

    if thread:
        reader = threading.Thread(target=read)
        reader.start()
        reader.join()
    else:
        read()
    assert [error.partition(" (")[0] for error in errors] == [
        "one of the 2 workers that read the data has died"
    ]
    assert "\n" not in errors[0]


@pytest.mark.parametrize("run", [forked.run, pytest.param(subprocess.run, marks=pytest.mark.slow)])
def test_workers_that_cannot_start_end_the_run_in_one_line(run, tmp_path):
    """Too few descriptors for their pipes; those that have started end. The latter: so does Python.

    What ends last closes the output.
    """
    program = (
        "import resource, sys\n"
        "from paddle_mnist.commands import run_script, train\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))\n"
        "run_script(train.main)\n"
    )
    words = ["--recipe", "digits", "--train_limit", 64, "--num_workers", 60, "--output", tmp_path]
    options = {} if run is forked.run else {"stdout": PIPE, "stderr": PIPE, "text": True}
    done = run(
        [sys.executable, "-c", program, *map(str, words)],
        cwd=ROOT,
        timeout=50,
        **options,
    )
    assert done.returncode == 7, done.stderr
    (line,) = (line for line in done.stderr.splitlines() if "Warning" not in line)
    assert line.startswith("error: the 60 workers that read the data cannot start (")
    assert "Too many open files" in line


def test_error_of_a_sampler_at_its_start_ends_the_workers():
    """Paddle asks it for indices after the workers have started."""

    class Broken(paddle.io.BatchSampler):
        def __init__(self):
            self.batch_size = 2

        def __iter__(self):
            raise FileNotFoundError("order.txt")
            yield

    data = paddle.io.DataLoader(Numbered(4), batch_sampler=Broken(), num_workers=2)
    before = set(multiprocessing.active_children())
    with pytest.raises(FileNotFoundError, match="order") as failure:
        next(open_loader(data, 2).epoch(0))
    assert set(multiprocessing.active_children()) <= before
    assert failure.tb  # which still holds Paddle's iterator


class Lines(paddle.io.Dataset):
    """The numbers in a file, which is opened at once, or for the first sample."""

    def __init__(self, path, open_file=None):
        self.path, self.file = path, open_file and open_file(path)

    def __len__(self):
        return 8

    def __getitem__(self, index):
        self.file = self.file or open(self.path, "rb")  # noqa: SIM115
        return np.array([index])


class Wrapped(Numbered):
    """Another dataset as an attribute."""

    def __init__(self, inner):
        super().__init__(8)
        self.inner = inner


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda new, path: new(path, open), "Lines: .* file file,"),
        (lambda new, path: new(path, lambda path: open(path, "ab")), None),  # noqa: SIM115
        (lambda new, path: Wrapped(new(path, open)), "Lines: .* file file,"),
        (lambda new, path: new(path, lambda _: io.BytesIO()), None),
        (lambda new, path: new(path), None),
    ],
    ids=["open", "only written", "in another", "in memory", "opened in workers"],
)
@pytest.mark.parametrize("kind", ["Dataset", "DataLoader"])
def test_loader_with_workers_warns_of_open_files(make, name, kind, tmp_path, lines):
    path = tmp_path / "numbers"
    path.touch()
    new = type("Lines", (Lines,), {})  # of each class it warns once
    for workers in (0, 1):
        data = make(new, path)
        if kind == "DataLoader":
            data = paddle.io.DataLoader(data, batch_size=4, num_workers=workers)
        loader = open_loader(data, 4, num_workers=workers)
        for epoch in range(2):
            list(loader.epoch(epoch))
        warnings = [line for line in lines() if "share the position" in line]
        assert len(warnings) == bool(name and workers)
    assert not name or re.match(name, warnings[0])
