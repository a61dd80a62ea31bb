"""`MnistDataset` and the ways to take batches from it."""

import random

import numpy as np
import paddle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_data import SIZES, tiny_splits, write_json

from paddle_mnist import BatchLoader, MnistDataset, load_data
from paddle_mnist.data.loader import epoch_batches, shards_of
from paddle_mnist.data.sampler import ShardSpec
from paddle_mnist.errors import ConfigError, DataError
from paddle_mnist.mnist.augment import Distortion
from paddle_mnist.mnist.dataset import _batches_of_rank
from paddle_mnist.mnist.training_set import ReplayOrder, TrainingSet
from paddle_mnist.parallel.world import DistributedWorld


@pytest.mark.parametrize("mode", SIZES)
def test_items_have_the_documented_form(tiny, mode):
    dataset = MnistDataset(mode, str(tiny))
    images, labels = tiny_splits()[mode]
    assert len(dataset) == SIZES[mode]
    for index in (0, 5, -1):
        image, label = dataset[index]
        assert (image.shape, image.dtype) == ((1, 28, 28), np.float32)
        assert (label.shape, label.dtype) == ((1,), np.int64)
        assert np.array_equal(image[0], images[index] / np.float32(256))
        assert label[0] == labels[index]


def test_a_batch_is_its_items(tiny):
    dataset = MnistDataset("train", str(tiny))
    index = np.array([3, 0, 299, 3])
    images, labels = dataset.batch(index)
    assert (images.dtype, labels.dtype) == (np.float32, np.int64)
    assert all(np.array_equal(images[i], dataset[int(n)][0]) for i, n in enumerate(index))
    assert all(np.array_equal(labels[i], dataset[int(n)][1]) for i, n in enumerate(index))


def test_limit_keeps_the_first(tiny):
    dataset = MnistDataset("train", str(tiny), limit=10)
    assert len(dataset) == 10 == len(list(dataset))
    with pytest.raises(IndexError):
        dataset[10]
    assert len(MnistDataset("train", str(tiny), limit=10**6)) == SIZES["train"]


@pytest.fixture(scope="module")
def by_label(tmp_path_factory):
    """A source whose training images are sorted by label: 30 of each class."""
    splits = tiny_splits()
    images, _ = splits["train"]
    splits["train"] = images, np.repeat(np.arange(10, dtype=np.uint8), 30)
    return write_json(tmp_path_factory.mktemp("sorted") / "sorted.json.gz", splits)


@pytest.mark.parametrize(
    ("limit", "classes"),
    [
        (None, None),
        (300, None),
        (290, None),  # 20 of class 9, where 29 would be its share
        (275, "few of class 9"),
        (32, "none of class 2, 3, 4, 5, 6, 7, 8, 9"),
        (271, "few of class 9"),
        (241, "none of class 9 and few of class 8"),
    ],
)
def test_limit_that_leaves_classes_out_is_said(by_label, limit, classes):
    warning = MnistDataset("train", by_label, limit).limit_warning()
    if classes is None:
        assert warning is None
    else:
        assert f"the first {limit} of 300 train images: {classes}; a limit" in warning


def test_no_warning_of_classes_that_the_source_has_not(by_label):
    assert MnistDataset("train", f"{by_label}#0-4", 149).limit_warning() is None


def test_path_for_the_data_and_limits_that_are_none(tiny):
    assert len(MnistDataset("train", tiny)) == SIZES["train"]
    for limit in (0, -3):
        with pytest.raises(ConfigError, match=f"limit is {limit}"):
            MnistDataset("train", str(tiny), limit)
    with pytest.raises(ConfigError, match="batch_size is 0"):
        BatchLoader(MnistDataset("train", tiny), 0)


def test_mode_that_is_none_is_named(tiny):
    with pytest.raises(DataError, match="mode is 'Train'; expected one of train, valid, eval"):
        MnistDataset("Train", str(tiny))


def test_workers_of_paddles_loader(tiny):
    dataset = MnistDataset("train", str(tiny))
    loader = paddle.io.DataLoader(dataset, batch_size=32, num_workers=2)
    labels = np.concatenate([labels.numpy() for _, labels in loader()])
    assert np.array_equal(labels[:, 0], tiny_splits()["train"][1])


@pytest.mark.parametrize("kind", ["BatchLoader", "DataLoader", "load_data", "list"])
def test_any_loader_gives_an_epoch_from_a_position(tiny, kind):
    dataset = MnistDataset("valid", str(tiny))
    generator = load_data("valid", 25, str(tiny))
    loader = {
        "BatchLoader": BatchLoader(dataset, 25),
        "DataLoader": paddle.io.DataLoader(dataset, batch_size=25),
        "load_data": generator,
        "list": list(generator()),
    }[kind]
    whole = list(epoch_batches(loader, epoch=0))
    assert [images.shape[0] for images, _ in whole] == [25, 25, 10]
    assert all(isinstance(tensor, paddle.Tensor) for batch in whole for tensor in batch)
    (rest,) = epoch_batches(loader, epoch=0, start=2)
    assert np.array_equal(rest[0].numpy(), whole[2][0].numpy())


@pytest.mark.parametrize(
    "options", [{}, {"replay": 0.1}, {"shard_spec": ShardSpec(4, 1, 2)}, {"limit": 40}]
)
def test_images_on_the_device_give_the_same_batches(tiny, options):
    new = MnistDataset("train", str(tiny), options.get("limit"))
    old, order = None, None
    if "replay" in options:
        old = MnistDataset("valid", str(tiny))
        order = ReplayOrder(len(new), len(old), options["replay"], seed=1)
    copied, on_device = (
        BatchLoader(
            TrainingSet(new, old, Distortion({"shift": 2}, 1), on_device=on_device),
            32,
            seed=1,
            shuffle=True,
            order=order,
        ).sharded(options.get("shard_spec"))
        for on_device in (False, True)
    )
    for copied_batch, device_batch in zip(copied.epoch(1), on_device.epoch(1)):
        for shard, expected in zip(shards_of(device_batch), shards_of(copied_batch)):
            assert (shard.index, shard.samples, shard.batch_size) == (
                expected.index,
                expected.samples,
                expected.batch_size,
            )
            for values, expected_values in zip(shard.batch, expected.batch):
                assert (values.dtype, values.shape) == (
                    expected_values.dtype,
                    expected_values.shape,
                )
                assert np.array_equal(values.numpy(), expected_values.numpy())


def test_what_is_no_loader_is_named():
    with pytest.raises(ConfigError, match="a loader is a int"):
        list(epoch_batches(5, epoch=0))


def test_load_data_shuffles_as_the_tutorial_does(tiny):
    """After the same seed the order of each epoch is that of its own lines."""
    labels = tiny_splits()["train"][1]
    random.seed(5)
    index_list = list(range(len(labels)))
    expected = []
    for _ in range(2):
        random.shuffle(index_list)
        expected.append([labels[index_list[at : at + 70]] for at in range(0, 300, 70)])
    random.seed(5)
    generator = load_data("train", 70, str(tiny))
    for epoch in expected:
        batches = [batch[:, 0] for _, batch in generator()]
        assert [batch.tolist() for batch in batches] == [batch.tolist() for batch in epoch]
    random.seed(6)
    first = np.concatenate([batch[:, 0] for _, batch in load_data("train", 70, str(tiny))()])
    assert first.tolist() != np.concatenate(expected[0]).tolist()


def test_load_data_names_a_batch_size_that_is_none(tiny):
    with pytest.raises(ConfigError, match="batch_size is 0; expected at least 1"):
        load_data("train", 0, str(tiny))


@given(length=st.integers(1, 200), size=st.integers(1, 5), batch_size=st.integers(1, 30))
def test_ranks_see_every_sample_once_in_equally_many_batches(length, size, batch_size):
    order = np.random.RandomState(0).permutation(length)
    ranks = [DistributedWorld(rank, size) for rank in range(size)]
    try:
        shares = [_batches_of_rank(order, batch_size, rank) for rank in ranks]
    except ConfigError:
        assert size > 1 and (length < size or (batch_size == 1 and length % size))
        return
    seen = np.concatenate([batch for share in shares for batch in share])
    assert sorted(seen) == list(range(length))
    assert len({len(share) for share in shares}) == 1
    assert {1 <= len(batch) <= batch_size for share in shares for batch in share} == {True}


def test_load_data_shuffles_training_anew_each_epoch(tiny):
    generator = load_data("train", 100, str(tiny))
    first, second = (np.concatenate([y for _, y in generator()]) for _ in range(2))
    assert not np.array_equal(first, second)
    assert np.array_equal(np.sort(first, axis=0), np.sort(second, axis=0))
    valid = load_data("valid", 100, str(tiny))
    ordered = tiny_splits()["valid"][1][:, None]
    assert np.array_equal(np.concatenate([y for _, y in valid()]), ordered)
