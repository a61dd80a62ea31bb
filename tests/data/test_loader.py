"""The loaders of `fit`: the same batches for any start, shards and workers, resumable or not."""

import contextlib
import itertools
import multiprocessing
import os
import random
import signal
import subprocess
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

from paddle_mnist.data.external import (
    ExternalLoader,
    ResumableBatchSampler,
    as_loader,
    open_loader,
)
from paddle_mnist.data.loader import BatchLoader
from paddle_mnist.data.sampler import ShardSpec, shards_of
from paddle_mnist.data.seeding import reseed, seed_of
from paddle_mnist.data.structures import mapped
from paddle_mnist.errors import ConfigError, DataError, ProcessError

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
    return {"index": index, "noise": (random.random(), np.random.rand(2), paddle.rand([3]))}


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
        loader.batch_size * batches,
        loader.order.seed,
        loader.order.shuffle,
    )
    divided = [loader.sharded(spec, batches) for spec in specs]
    assert set(map(len, divided)) == {len(large)}
    whole = [indices(batch) for batch in large.epoch(1, start)]
    parts = list(zip(*(part.epoch(1, start) for part in divided)))
    assert len(parts) == len(whole)
    for batch, of_processes in zip(whole, parts):
        assert len({len(shards) for shards in of_processes}) == 1
        shards = joined(of_processes)
        assert [shard.index for shard in shards] == list(range(specs[0].num_shards))
        assert {shard.batch_size for shard in shards} == {len(batch)}
        expected = [part.tolist() for part in np.array_split(batch, specs[0].num_shards)]
        assert [indices(shard.batch)[: shard.samples] for shard in shards] == expected
        assert all(len(shard.batch) == max(1, shard.samples) for shard in shards)


# ------------------------------------------------------------------ a custom order


@settings(max_examples=30)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=30), st.integers(1, 6), st.data())
def test_batch_loader_custom_order_is_followed(order, batch_size, data):
    """Such an order leaves samples out, and repeats some; it may depend on the epoch."""
    orders = [np.array(order, "int32"), order[::-1]]
    loader = BatchLoader(Numbered(10), batch_size, shuffle=True, order=orders.__getitem__)
    assert len(loader) == -(-len(order) // batch_size)
    for epoch in range(2):
        batches = [indices(batch) for batch in loader.epoch(epoch)]
        assert joined(batches) == list(orders[epoch])
        start = data.draw(st.integers(0, len(loader)))
        assert [indices(batch) for batch in loader.epoch(epoch, start)] == batches[start:]


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (lambda epoch: np.arange(5), "indices from 0 to 4"),
        (lambda epoch: [], r"float64 \[0\]"),
        (lambda epoch: range(4 - epoch), "of epoch 1 has 3 samples; expected 4"),
        (lambda epoch: [3, 2, 1 // (1 - epoch)], "epoch 1 fails with ZeroDiv"),
    ],
)
def test_batch_loader_wrong_order_raises(order, message):
    with pytest.raises((ConfigError, DataError), match=f"the order .*{message}"):
        loader = BatchLoader(Numbered(4), 2, order=order)
        for epoch in range(2):
            list(loader.epoch(epoch))
    with pytest.raises(ConfigError, match="order"):
        open_loader(Stream(Numbered(4)), 2, order=order)


# ------------------------------------------------------------------ many samples at once


class AtOnce(Numbered):
    """Samples that are read at once, as a list or as what a function makes of their indices."""

    def __init__(self, length, make=lambda index: np.array([index]), make_batch=None):
        super().__init__(length, make)
        self.make_batch = make_batch or (lambda indices: [make(index) for index in indices])

    def __getitems__(self, indices):
        return self.make_batch(indices)


def columns(index):
    """A sample in every structure; the same function makes many at once."""
    index = np.asarray(index)
    halves = (index * 0.5).astype("float64")[..., np.newaxis]
    return {"pair": (halves, index.astype("uint16")), 3: index[..., np.newaxis] > [2, 4]}


@settings(max_examples=30)
@given(loaders, specs, st.integers(0, 2), st.integers(0, 8))
def test_getitems_batches_equal_those_read_one_by_one(loader, specs, epoch, start):
    length, batch_size, order = len(loader.dataset), loader.batch_size, loader.order

    def shards(dataset):
        loader = BatchLoader(dataset, batch_size, order.seed, order.shuffle)
        return [
            (shard.index, shard.samples, plain(shard.batch))
            for spec in (None, *specs)
            for batch in loader.sharded(spec).epoch(epoch, start)
            for shard in shards_of(batch)
        ]

    expected = shards(Numbered(length, columns))
    assert shards(AtOnce(length, columns)) == shards(AtOnce(length, columns, columns)) == expected


def test_tensor_dataset_batches_equal_those_read_one_by_one():
    dataset = paddle.io.TensorDataset([paddle.arange(18).reshape([9, 2]).astype("bfloat16")])
    at_once, one_by_one = (
        epochs_of(BatchLoader(data, 2, seed=3, shuffle=True))
        for data in (dataset, paddle.io.Subset(dataset, range(9)))
    )
    assert at_once == one_by_one


class DrawingAtOnce(AtOnce):
    """Samples that are read at once, with random numbers of every generator."""

    def __getitems__(self, indices):
        return [noisy(index) for index in indices]


def drawn_for_a_batch(samples):
    return paddle.io.dataloader.collate.default_collate_fn(samples), random.random()


@pytest.mark.parametrize(
    ("kind", "collate_fn"),
    [(Numbered, None), (DrawingAtOnce, None), (Numbered, drawn_for_a_batch)],
)
def test_random_numbers_depend_on_the_place_of_the_shard_alone(kind, collate_fn):
    def shards(epoch, start=0, workers=0, processes=1):
        paddle.rand([3]), np.random.rand(), random.gauss(0, 1)  # whatever was drawn before
        loader = BatchLoader(
            kind(23, noisy), 8, seed=7, shuffle=True, collate_fn=collate_fn, num_workers=workers
        )
        whole = [
            loader.sharded(ShardSpec(2, rank, processes)).epoch(epoch, start)
            for rank in range(processes)
        ]
        return [[plain(shard.batch) for shard in joined(of_ranks)] for of_ranks in zip(*whole)]

    whole = shards(1)
    assert shards(1, workers=2) == shards(1, processes=2) == whole
    assert shards(1, start=2) == whole[2:]


def test_random_numbers_differ_between_places_splits_and_seeds():
    def noise(seed=1, epoch=0, index=2, split="train"):
        loader = BatchLoader(Numbered(4, noisy), 1, seed, split=split)
        return plain(list(loader.epoch(epoch))[index])["noise"]

    others = [noise(seed=2), noise(epoch=1), noise(index=3), noise(split="valid")]
    assert noise() == noise()
    for generator in zip(noise(), *others):
        assert len({*generator}) == 5


@pytest.mark.parametrize(
    ("make_batch", "collate_fn", "workers", "message"),
    [
        (lambda indices: [1, 2], None, 0, r"returned \[int, int\]; expected 6 samples, not 2"),
        (
            lambda indices: {"x": (np.zeros([3, 6]),)},
            None,
            0,
            r"returned {.* \[3, 6\],\)}; expected a list",
        ),
        (
            lambda indices: np.zeros(6),
            np.stack,
            0,
            r"returned float64 \[6\]; expected a list of samples for",
        ),
        (lambda indices: indices[9], None, 2, "fails with IndexError"),
    ],
)
def test_getitems_wrong_batch_raises(make_batch, collate_fn, workers, message):
    dataset = AtOnce(9, make_batch=make_batch)
    loader = BatchLoader(dataset, 6, collate_fn=collate_fn, num_workers=workers)
    with pytest.raises(DataError, match=f"AtOnce: __getitems__ of samples 0, 1, .* {message}"):
        list(loader)


class InEpochs(AtOnce):
    """Samples of an epoch."""

    def set_epoch(self, epoch):
        self.make_batch = lambda indices: np.array(indices) + 100 * epoch


def test_set_epoch_is_called_where_two_epochs_are_read_in_turns():
    loader = BatchLoader(InEpochs(6), 2)
    first, second = loader.epoch(1), loader.epoch(2)
    read = [indices(next(each)) for each in (first, second, first)]
    assert read == [[100, 101], [200, 201], [102, 103]]


# ------------------------------------------------------------------ in workers


SAMPLES = {
    "of every kind": lambda index: {
        "drawn": noisy(index),
        "named": Views(np.float32(index), np.arange(index, index + 2)),
        "nested": ((index, (float(index),)), [index]),
        "texts": {"text": f"{index}", "bytes": b"\0", 3: index % 2 == 0},
        "bfloat16": paddle.full([2], index + 0.5, "bfloat16"),
        "uint16": np.array([index], "uint16"),
        "empty": (np.zeros((0, 3), "float32"), index),
    },
    "texts alone": lambda index: f"text {index}",
    "empty alone": lambda index: np.zeros(0),
}


@pytest.mark.parametrize("kind", SAMPLES)
def test_batch_loader_any_number_of_workers_yields_the_same_batches(kind):
    dataset = Numbered(9, SAMPLES[kind])
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
    with pytest.raises(DataError, match=message):
        list(loader.epoch(0))
    assert "Traceback" not in capfd.readouterr().err  # Paddle's, of its thread


def test_resumable_sampler_yields_the_order_of_the_loader():
    dataset = Numbered(23)
    sampler = ResumableBatchSampler(dataset, 4, seed=7)
    loader = BatchLoader(dataset, 4, seed=7, shuffle=True)
    assert len(sampler) == len(loader) == 6
    for epoch, start in ((0, 0), (3, 0), (3, 2), (3, 6)):
        sampler.set_epoch(epoch, start)
        assert list(sampler) == [indices(batch) for batch in loader.epoch(epoch, start)]


def test_set_epoch_of_a_sampler_is_called_once_an_epoch():
    calls = []

    class Noted(ResumableBatchSampler):
        def set_epoch(self, *position):
            calls.append(position)
            super().set_epoch(*position)

    loader = open_loader(paddle_loader(batch_sampler=Noted(Numbered(23), 4, seed=7)), 4)
    assert len([*loader.epoch(0)]) + len([*loader.epoch(1, 2)]) == 6 + 4
    assert calls == [(0,), (1, 2)]


def test_loader_with_an_iteration_of_its_own_has_no_workers():
    class Tenfold(paddle.io.DataLoader):
        def __iter__(self):
            return (batch * 10 for batch in super().__iter__())

    def read(workers):
        loader = open_loader(Tenfold(Stream(range(6)), batch_size=3, num_workers=workers), 3)
        return [batch.tolist() for batch in loader.epoch(0)]

    assert read(0)[0] == [0, 10, 20]
    with pytest.raises(ConfigError, match="Tenfold has an __iter__ of its own"):
        read(1)


def paddle_loader(**options):
    return paddle.io.DataLoader(Numbered(23, lambda index: (index, np.float32(index))), **options)


def shuffled(**options):
    return paddle_loader(batch_size=4, shuffle=True, **options)


EXTERNAL = {
    "DataLoader": shuffled,
    "DataLoader with workers": lambda: shuffled(num_workers=2),
    "a function": lambda: lambda: iter(shuffled()),
    "a list": lambda: list(shuffled()),
    "a resumable sampler": lambda: paddle_loader(
        batch_sampler=ResumableBatchSampler(Numbered(23), 4, seed=7)
    ),
}


@pytest.mark.parametrize("kind", EXTERNAL)
def test_external_loader_repeats_its_epochs(kind):
    loader = ExternalLoader(EXTERNAL[kind](), seed=5)
    first, second = epochs_of(loader)
    np.random.rand(3)
    assert epochs_of(loader) == [first, second]
    assert (first == second) == (kind == "a list")
    if kind not in ("a list", "a resumable sampler"):
        assert epochs_of(ExternalLoader(EXTERNAL[kind](), seed=6))[0] != first
    if "worker" not in kind:
        assert [plain(batch) for batch in loader.epoch(1, start=2, stride=3)] == second[2::3]
    assert loader.resumes_inside_epochs == (kind == "a resumable sampler")


@settings(max_examples=30)
@given(st.integers(1, 20), st.integers(1, 5), st.integers(2, 5))
def test_external_loader_groups_batches_into_steps(length, batch_size, group):
    # not a DataLoader: Paddle 3.3.1 hangs now and then where hundreds are read
    data = [*BatchLoader(Numbered(length), batch_size)]
    loader = ExternalLoader(data, seed=1, group=group)
    steps = list(loader.epoch(0))
    assert len(steps) == loader.steps_per_epoch
    assert {len(step) for step in steps[:-1]} <= {group}
    samples = []
    for step in steps:
        assert [shard.index for shard in step] == list(range(len(step)))
        own = [indices(shard.batch) for shard in step]
        assert [shard.samples for shard in step] == list(map(len, own))
        assert {shard.batch_size for shard in step} == {sum(map(len, own))}
        samples += joined(own)
    assert sorted(samples) == list(range(length))
    last = [indices(shard.batch) for shard in steps[-1]]
    assert [[indices(s.batch) for s in step] for step in loader.epoch(0, len(steps) - 1)] == [last]


def test_ready_batches_are_read_without_seeding_and_must_be_there():
    batches = list(BatchLoader(Numbered(6), 2))
    np.random.seed(3)
    before, expected = np.random.rand(2)
    np.random.seed(3)
    for data in (batches, lambda: iter(batches)):
        assert len(list(as_loader(data).epoch(1))) == 3
    assert [np.random.rand(), np.random.rand()] == [before, expected]
    with pytest.raises(ConfigError, match=r"the data are a int; expected .* BatchLoader"):
        as_loader(3)
    for data, name in ((lambda: iter([]), "function"), (Stream(Numbered(0)), "Stream")):
        with pytest.raises(DataError, match=f"the data, a {name}, have no batches in this epoch"):
            list(open_loader(data, 2).epoch(1))


def draws():
    return random.gauss(0, 1), np.random.randn(), paddle.rand([]).item()


def test_seeds_depend_on_the_whole_key():
    keys = [(1,), (1, 2), (2, 1), (12,), (1, 2, 0), ("1", "2x")]
    assert len({seed_of(*key) for key in keys}) == len(keys)
    assert seed_of(1, 2) == 4271380983  # of runs that are resumed with a later version

    def drawn(*key):
        reseed(*key)
        return draws()

    of_keys = [drawn(1, 2), drawn(2, 2), drawn(1, 3), drawn(1, 2, 1)]
    assert drawn(1, 2) == of_keys[0]
    for generator in zip(*of_keys):
        assert len({*generator}) == len(generator)


@pytest.mark.parametrize(("make", "batches"), [(float, 1), (float, None), (KEY, None)])
def test_workers_end_with_their_epoch(make, batches):
    """Paddle's live as long as the program, unless an epoch is read beyond its last batch."""
    others = set(multiprocessing.active_children())  # of the tests before
    loader = BatchLoader(Numbered(12, lambda index: make(index) * np.ones(1)), 1, num_workers=2)
    with contextlib.suppress(DataError), contextlib.closing(loader.epoch(0)) as iterator:
        list(itertools.islice(iterator, batches))
    assert set(multiprocessing.active_children()) <= others


def test_loader_with_workers_reads_by_itself_in_another_thread(lines):
    read = []
    own, with_workers = (
        BatchLoader(Numbered(9, noisy), 2, seed=3, num_workers=number) for number in (0, 2)
    )
    thread = threading.Thread(target=lambda: read.extend(epochs_of(with_workers)))
    thread.start()
    thread.join()
    assert read == epochs_of(own)
    assert len([line for line in lines() if "only from the main thread" in line]) == 1


class Draws(paddle.io.Sampler):
    """An order that a generator draws."""

    def __init__(self, random):
        self.random = random

    def __iter__(self):
        return iter(self.random.permutation(6).tolist())


class DrawnBatches(paddle.io.BatchSampler):
    """Batches that are rotated by the generator that draws their samples' order."""

    def __init__(self, random):
        self.sampler, self.random = Draws(random), random

    def __iter__(self):
        order = np.roll([*self.sampler], self.random.randint(6))
        return iter(order.reshape(3, 2).tolist())

    def __len__(self):
        return 3


def test_samplers_that_share_a_generator_resume_to_the_same_order():
    def loader():
        sampler = DrawnBatches(np.random.RandomState(0))
        dataset = paddle.io.TensorDataset([paddle.arange(6)])
        return open_loader(paddle.io.DataLoader(dataset, batch_sampler=sampler), 2)

    def read(loader, epoch):
        return [batch[0].tolist() for batch in loader.epoch(epoch)]

    unbroken = loader()
    epochs = [read(unbroken, epoch) for epoch in range(3)]
    assert read(loader(), 2) == epochs[2] != epochs[1]


def killed(index):
    if index == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return index


@pytest.mark.slow  # Paddle asks after its workers every five seconds
def test_worker_that_is_killed_raises_one_line():
    with pytest.raises(ProcessError, match="one of the 2 workers that read the data has died") as e:
        list(BatchLoader(Numbered(9, killed), 2, num_workers=2))
    assert "\n" not in str(e.value)


def test_workers_that_cannot_start_exit_with_7(tmp_path):
    """Too few descriptors for their pipes."""
    words = ["--recipe", "digits", "--train_limit", 64, "--num_workers", 60, "--output", tmp_path]
    # No copy of this process: what measures coverage opens files of its own.
    limited = ["sh", "-c", 'ulimit -n 100; exec "$@"', "sh"]
    command = [*limited, sys.executable, str(ROOT / "tools/train.py"), *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, timeout=240, capture_output=True, text=True)
    assert done.returncode == 7, done.stderr
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("error: "))
    assert "the 60 workers" in line and "Too many open files" in line


UNCAUGHT = """
import sys
import paddle
from paddle_mnist.data.loader import BatchLoader
numbers = paddle.io.TensorDataset([paddle.arange(64)])
next(BatchLoader(numbers, 2, num_workers=60).epoch(0))
"""


def test_script_whose_workers_cannot_start_ends():
    """Python would wait forever for threads that Paddle starts while it deletes the iterator."""
    command = ["sh", "-c", 'ulimit -n 100; exec "$@"', "sh", sys.executable, "-c", UNCAUGHT]
    done = subprocess.run(command, cwd=ROOT, timeout=240, capture_output=True, text=True)
    assert done.returncode and "Too many open files" in done.stderr


KILLED = """
import multiprocessing, os, signal
import paddle
from paddle_mnist.data.external import open_loader

class Stream(paddle.io.IterableDataset):
    def __iter__(self):
        return iter(range(64))

class Numbers(paddle.io.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return index

batches = open_loader(paddle.io.DataLoader({kind}(), batch_size=2, num_workers=1), 2).epoch(0)
next(batches)
print(len(multiprocessing.active_children()), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("kind", ["Stream", "Numbers"])
def test_workers_end_with_a_killed_process(kind):
    """A worker that lives on keeps the end of the pipe for the output, which is read to its end."""
    program = KILLED.replace("{kind}", kind)
    done = forked.run([sys.executable, "-c", program], timeout=240)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "1\n"), done.stderr


@pytest.mark.parametrize("kind", ["Dataset", "DataLoader"])
def test_loader_with_workers_warns_of_an_open_file(kind, tmp_path, lines):
    (tmp_path / "numbers").touch()
    data = dataset = type("Lines", (Numbered,), {})(8)  # each class is warned of once
    if kind == "DataLoader":
        data = paddle.io.DataLoader(dataset, batch_size=4, num_workers=1)
    with (tmp_path / "numbers").open("rb") as dataset.file:
        list(open_loader(data, 4, num_workers=1).epoch(0))
    (line,) = [line for line in lines() if "share the position" in line]
    assert line.startswith("Lines: ")
