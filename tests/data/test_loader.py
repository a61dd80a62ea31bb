"""The loaders of `fit`: the same batches for any start, shards and workers, resumable or not."""

import contextlib
import itertools
import multiprocessing
import os
import random
import resource
import signal
import sys
import threading
from collections import namedtuple

import forked
import numpy as np
import paddle
import pytest
from conftest import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st

from paddle_mnist.data.collate import mapped
from paddle_mnist.data.external import (
    ExternalLoader,
    ResumableBatchSampler,
    open_loader,
)
from paddle_mnist.data.loader import BatchLoader, epoch_batches, shards_of
from paddle_mnist.data.sampler import ShardSpec
from paddle_mnist.data.seeding import generators_restored, reseed, seed_generators, seed_of
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


@given(loaders, st.integers(0, 3), st.integers(0, 42), st.integers(1, 4))
def test_batch_loader_any_start_yields_the_rest_of_the_epoch(loader, epoch, start, stride):
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
def test_sharded_all_processes_together_yield_the_batch_in_order(loader, specs, batches, start):
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


# ------------------------------------------------------------------ an order of one's own


@settings(max_examples=30)
@given(st.data(), st.integers(1, 20), st.integers(1, 6), specs)
def test_batch_loader_custom_order_is_followed(data, length, batch_size, specs):
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
    ("order", "message"),
    [
        (lambda epoch: np.arange(5), "indices from 0 to 4"),
        (lambda epoch: [1, -1], "indices from -1 to 1"),
        (lambda epoch: np.zeros((2, 2), int), r"int64 \[2, 2\]"),
        (lambda epoch: [], r"float64 \[0\]"),
        (lambda epoch: range(4 - epoch), "3 samples in epoch 1, 4 in epoch 0"),
        (lambda epoch: [3, 2, 1 // (1 - epoch)], "epoch 1 fails with ZeroDiv"),
    ],
)
def test_batch_loader_wrong_order_raises(order, message):
    with pytest.raises((ConfigError, DataError), match=f"the order .*{message}"):
        loader = BatchLoader(Numbered(4), 2, order=order)
        for epoch in range(2):
            list(loader.epoch(epoch))


@pytest.mark.parametrize("data", [Stream(Numbered(3)), BatchLoader(Numbered(3), 1), list])
def test_open_loader_order_of_data_without_indices_raises(data):
    with pytest.raises(ConfigError, match="order"):
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
def test_getitems_batches_equal_those_read_one_by_one(loader, specs, epoch, start, stride):
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
def test_tensor_dataset_batches_equal_those_read_one_by_one(dtype):
    values = paddle.arange(18).reshape([9, 2]).astype("float32").astype(dtype)
    values.stop_gradient = not values.is_floating_point()
    dataset = paddle.io.TensorDataset([values, paddle.arange(9)])
    at_once, one_by_one = (
        epochs_of(BatchLoader(data, 2, seed=3, shuffle=True))
        for data in (dataset, paddle.io.Subset(dataset, range(9)))
    )
    assert at_once == one_by_one


class Seeded(Numbered):
    """Samples of the seeds that the loader gives."""

    def __getitems__(self, indices, seeds):
        noise = [np.random.RandomState(seed).rand(2) for seed in seeds]
        return {"index": np.array(indices), "seed": np.array(seeds), "noise": np.array(noise)}


def test_getitems_seeds_follow_from_seed_epoch_and_index():
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


@pytest.mark.parametrize(("generator", "workers"), [("random", 0), ("numpy", 2), ("paddle", 0)])
def test_getitems_that_draw_without_seeds_are_read_one_by_one(generator, workers, lines):
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


def test_batch_loader_samples_that_draw_nothing_keep_the_generators(lines):
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


@pytest.mark.parametrize(
    ("generator", "kind", "workers"),
    [("random", Numbered, 0), ("numpy", AtOnce, 0), ("paddle", Numbered, 2)],
)
def test_samples_that_draw_after_the_first_batch_raise_unless_declared(generator, kind, workers):
    def make(index):
        return index, DRAWS[generator]() if index > 8 else 0.0

    def read(**options):
        return epochs_of(BatchLoader(kind(11, make), 4, seed=3, num_workers=workers, **options))

    message = rf"{kind.__name__}: reading samples 8, 9, 10 draws .*Loading\(random=True\)"
    with pytest.raises(ConfigError, match=message):
        read()
    assert read(random=True) == read(random=True)


@pytest.mark.parametrize(
    ("make_batch", "collate_fn", "workers", "message"),
    [
        (lambda indices: [1, 2], None, 0, "returned 2 samples; expected 6"),
        (lambda indices: {"x": (np.zeros([3, 6]),)}, None, 0, "returned a dict of 3 rows"),
        (lambda indices: np.zeros(6), np.stack, 0, "returned a ndarray"),
        (lambda indices: indices[9], None, 2, "fails with IndexError"),
    ],
)
def test_getitems_wrong_batch_raises(make_batch, collate_fn, workers, message):
    dataset = AtOnce(9, make_batch=make_batch)
    loader = BatchLoader(dataset, 6, collate_fn=collate_fn, num_workers=workers)
    with pytest.raises(DataError, match=f"AtOnce: __getitems__ of samples 0, 1, .* {message}"):
        list(loader)


class ToldEpoch(AtOnce):
    """Samples of an epoch."""

    def set_epoch(self, epoch):
        self.make_batch = lambda indices: np.array(indices) + 100 * epoch


def test_set_epoch_is_called_for_each_batch_of_another_epoch():
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


# ------------------------------------------------------------------ in workers


PARTS = {
    "drawn": noisy,
    "named": lambda index: Views(np.float32(index), np.arange(index, index + 2)),
    "nested": lambda index: ((index, (float(index),)), [index]),
    "texts": lambda index: {"text": f"{index}", "bytes": b"\0", 3: index % 2 == 0},
    "bfloat16": lambda index: (paddle.full([2], index + 0.5, "bfloat16"),),
    "float16": lambda index: np.full(2, index, "float16"),
    "complex": lambda index: np.array([index, 1j]),
    "uint16": lambda index: np.array([index], "uint16"),
    "empty": lambda index: (np.zeros((0, 3), "float32"), index),
}
STRUCTURES = {
    "parts of every kind": lambda index: {name: make(index) for name, make in PARTS.items()},
    "texts alone": lambda index: f"text {index}",
    "empty alone": lambda index: np.zeros(0),
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_batch_loader_any_number_of_workers_yields_the_same_batches(name):
    dataset = Numbered(9, STRUCTURES[name])
    own, *others = (
        epochs_of(BatchLoader(dataset, 2, seed=3, shuffle=True, num_workers=number))
        for number in (0, 1, 2)
    )
    assert len(own[0]) == 5
    assert all(other == own for other in others)


class StrangeError(Exception):
    """One that does not pickle: its argument is not its constructor's."""

    def __init__(self, code, place):
        super().__init__(f"{code} in {place}")


def fails_with(error):
    def make(index):
        if index == 5 and error:
            raise error
        return None if index == 5 else index

    return make


TORN = fails_with(DataError("image 5 is torn"))
STRANGE = fails_with(StrangeError(5, "five"))
KEY = fails_with(KeyError("five"))
IS_NONE = fails_with(None)
RAGGED = lambda index: np.zeros(2 + (index == 5))  # noqa: E731


@pytest.mark.parametrize(
    ("make", "kind", "workers", "message"),
    [
        (TORN, "dataset", 2, "^image 5 is torn$"),
        (STRANGE, "DataLoader", 2, "sample 5 fails with .*: 5 in five$"),
        (KEY, "dataset", 0, "^Numbered: sample 5 fails with KeyError: 'five'$"),
        (KEY, "stream", 0, "^Stream: sample 5 of an epoch fails with KeyError: 'five'$"),
        (IS_NONE, "DataLoader", 2, "sample 5 is None"),
        (RAGGED, "dataset", 2, r"samples 4 and 5 .* float64 \[2\] and float64 \[3\]"),
    ],
)
def test_error_of_a_sample_names_it(make, kind, workers, message, capfd):
    dataset = Numbered(9, make)
    if kind == "DataLoader":
        dataset = paddle.io.DataLoader(dataset, batch_size=2, num_workers=workers)
    elif kind == "stream":
        dataset = Stream(dataset)
    loader = open_loader(dataset, 2, num_workers=workers if kind == "dataset" else 0)
    with pytest.raises(DataError, match=message) as failure:
        list(loader.epoch(0))
    if workers:
        cause = str(failure.value.__cause__)  # the traceback there
        assert "in make" in cause or "stack_samples" in cause
    assert "Traceback" not in capfd.readouterr().err  # Paddle's, of its thread


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


def test_resumable_sampler_yields_the_order_of_the_loader():
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
def test_external_loader_repeats_its_epochs(kind):
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


def test_external_loader_resumed_reads_samples_again_unless_resumable():
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
def test_external_loader_groups_batches_into_steps(length, batch_size, group):
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


def draws():
    return (
        random.random(),
        random.gauss(0, 1),
        np.random.rand(),
        np.random.randn(),
        paddle.rand([]).item(),
    )


@pytest.mark.parametrize("drawn_before", [0, 1])
def test_generators_restored_leaves_no_trace(drawn_before):
    """A generator also keeps the second of two normal numbers for the next call."""

    def next_draws(trace):
        seed_generators(drawn_before)
        for _ in range(drawn_before):
            draws()
        if trace:
            with contextlib.suppress(ZeroDivisionError), generators_restored():
                draws(), seed_generators(1, 2), paddle.seed(4), draws()
                raise ZeroDivisionError
        return draws()

    assert next_draws(trace=True) == next_draws(trace=False)


def test_seed_of_depends_on_the_whole_key():
    keys = [(1,), (1, 2), (2, 1), (12,), (1, 2, 0), ("1", "2x")]
    assert len({seed_of(*key) for key in keys}) == len(keys)
    assert seed_of(1, 2) == 4271380983  # of runs that are resumed with a later version


def test_reseed_draws_other_numbers_for_each_seed_step_and_shard():
    keys = [(1, 2), (2, 2), (1, 3), (1, 2, 1), (1, 2)]
    drawn = []
    for key in keys:
        reseed(*key)
        drawn.append(draws())
    assert drawn[0] == drawn[-1]
    for generator in zip(*drawn[:-1]):
        assert len({*generator}) == len(generator)


@pytest.mark.parametrize(("make", "batches"), [(float, 1), (float, None), (KEY, None)])
def test_workers_end_with_their_epoch(make, batches):
    """Paddle's live as long as the program, unless an epoch is read beyond its last batch."""
    others = set(multiprocessing.active_children())  # of the tests before
    loader = BatchLoader(Numbered(12, lambda index: make(index) * np.ones(1)), 1, num_workers=2)
    for epoch in range(2):
        with contextlib.suppress(DataError), contextlib.closing(loader.epoch(epoch)) as iterator:
            for _ in itertools.islice(iterator, batches):
                pass
    assert set(multiprocessing.active_children()) <= others


def test_workers_end_when_a_signal_stops_the_wait_for_a_batch():
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


def killed(index):
    if index == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return index


@pytest.mark.slow  # Paddle asks after its workers every five seconds
def test_worker_that_is_killed_raises_one_line_in_any_thread():
    errors = []

    def read():
        with pytest.raises(ProcessError) as failure:
            list(BatchLoader(Numbered(9, killed), 2, num_workers=2))
        errors.append(str(failure.value))

    reader = threading.Thread(target=read)
    reader.start()
    reader.join()
    (error,) = errors
    assert error.startswith("one of the 2 workers that read the data has died")
    assert "\n" not in error


def test_workers_that_cannot_start_exit_with_7(tmp_path):
    """Too few descriptors for their pipes; those that have started end."""
    words = ["--recipe", "digits", "--train_limit", 64, "--num_workers", 60, "--output", tmp_path]
    limits = {resource.RLIMIT_NOFILE: (100, 100)}
    command = [sys.executable, str(ROOT / "tools/train.py"), *words]
    done = forked.run(command, cwd=ROOT, timeout=50, limits=limits)
    assert done.returncode == 7, done.stderr
    (line,) = (line for line in done.stderr.splitlines() if "Warning" not in line)
    assert "the 60 workers" in line and "Too many open files" in line


class Lines(paddle.io.Dataset):
    """The numbers in a file, which is opened at once, or for the first sample."""

    def __init__(self, path, open_file=None):
        self.path, self.file = path, open_file and open_file(path)

    def __len__(self):
        return 8

    def __getitem__(self, index):
        self.file = self.file or open(self.path, "rb")  # noqa: SIM115
        return np.array([index])


@pytest.mark.parametrize("kind", ["Dataset", "DataLoader"])
@pytest.mark.parametrize("is_open", [True, False])
def test_loader_with_workers_warns_of_an_open_file(is_open, kind, tmp_path, lines):
    path = tmp_path / "numbers"
    path.touch()
    # Of each class it warns once.
    data = dataset = type("Lines", (Lines,), {})(path, open if is_open else None)
    if kind == "DataLoader":
        data = paddle.io.DataLoader(dataset, batch_size=4, num_workers=1)
    list(open_loader(data, 4, num_workers=1).epoch(0))
    if is_open:
        dataset.file.close()
    warned = [line for line in lines() if "share the position" in line]
    assert len(warned) == is_open and all(line.startswith("Lines: ") for line in warned)
