"""`MnistDataset` and the ways to take batches from it."""

import random

import numpy as np
import pytest
from synthetic_data import SIZES, tiny_splits, write_json

from paddle_mnist import BatchLoader, MnistDataset, load_data
from paddle_mnist.data.sampler import ShardSpec, shards_of
from paddle_mnist.mnist.augment import Distortion
from paddle_mnist.mnist.training_set import ReplayOrder, TrainingSet


@pytest.mark.parametrize("mode", SIZES)
def test_dataset_gives_items_and_batches_of_the_documented_form(tiny, mode):
    dataset = MnistDataset(mode, str(tiny))
    all_images, all_labels = tiny_splits()[mode]
    assert len(dataset) == len(list(dataset)) == SIZES[mode]
    last = len(dataset) - 1
    batch = dataset.batch(np.array([3, 0, last]))
    for index, batch_image, batch_label in zip([3, 0, -1], *batch):
        image, label = dataset[index]
        assert (image.shape, image.dtype) == ((1, 28, 28), np.float32)
        assert (label.shape, label.dtype) == ((1,), np.int64)
        assert np.array_equal(image[0], all_images[index] / np.float32(256))
        assert label[0] == all_labels[index] == batch_label[0]
        assert np.array_equal(image, batch_image)
    assert [values.dtype for values in batch] == [np.float32, np.int64]


@pytest.mark.parametrize("limit", [None, 10])
def test_dataset_has_the_attributes_of_the_tutorials_class(tiny, limit):
    dataset = MnistDataset("valid", tiny, limit)
    images, labels = (array[:limit] for array in tiny_splits()["valid"])
    assert (dataset.IMG_ROWS, dataset.IMG_COLS) == (28, 28)
    assert len(dataset.imgs) == len(dataset.labels) == len(dataset)
    assert dataset.labels.dtype == np.int64 and np.array_equal(dataset.labels, labels)
    rows = images.reshape(-1, 784) / np.float32(256)
    for found, expected in (
        (dataset.imgs[3], rows[3]),
        (dataset.imgs[-1], rows[-1]),
        (dataset.imgs[2:5], rows[2:5]),
        (np.array(dataset.imgs), rows),
    ):
        assert found.dtype == np.float32 and np.array_equal(found, expected)
    with pytest.raises(IndexError):
        dataset.imgs[len(dataset)]


def test_limit_keeps_the_first_images(tiny):
    dataset = MnistDataset("train", tiny, limit=10)
    assert len(dataset) == 10 == len(list(dataset))
    with pytest.raises(IndexError):
        dataset[10]
    assert len(MnistDataset("train", str(tiny), limit=10**6)) == SIZES["train"]


def test_limit_warns_of_classes_that_it_leaves_out(tmp_path):
    splits = tiny_splits()
    splits["train"] = splits["train"][0], np.repeat(np.arange(10, dtype=np.uint8), 30)
    data = write_json(tmp_path / "sorted.json.gz", splits)

    def warning(limit, selection=""):
        return MnistDataset("train", f"{data}{selection}", limit).limit_warning()

    assert not warning(271)  # one of class 9
    assert not warning(149, "#0-4")  # the source has no others
    for part in ("first 240 of 300", "none of class 8, 9;"):
        assert part in warning(240)


@pytest.mark.parametrize(
    ("replay", "shard_spec"), [(None, None), (0.1, None), (None, ShardSpec(4, 1, 2))]
)
def test_images_on_the_device_give_the_same_batches(tiny, replay, shard_spec):
    new, old, order = MnistDataset("train", tiny, 200), None, None
    if replay:
        old = MnistDataset("valid", tiny)
        order = ReplayOrder(len(new), len(old), replay, seed=1)
    epochs = []
    for on_device in (False, True):
        images = TrainingSet(new, old, Distortion({"shift": 2}, 1), on_device=on_device)
        loader = BatchLoader(images, 32, seed=1, shuffle=True, order=order).sharded(shard_spec)
        epochs.append([shard for batch in loader.epoch(1) for shard in shards_of(batch)])
    for shard, expected in zip(*epochs):
        assert (shard.index, shard.samples) == (expected.index, expected.samples)
        for values, expected_values in zip(shard.batch, expected.batch):
            assert values.dtype == expected_values.dtype
            assert np.array_equal(values.numpy(), expected_values.numpy())


def test_load_data_shuffles_training_as_the_tutorial_does(tiny):
    """After the same seed, the order of each epoch is that of the tutorial's code."""
    labels = tiny_splits()["train"][1]
    random.seed(5)
    index_list = list(range(len(labels)))
    expected = []
    for _ in range(2):
        random.shuffle(index_list)
        expected.append([labels[index_list[at : at + 70]].tolist() for at in range(0, 300, 70)])
    assert expected[0] != expected[1]
    random.seed(5)
    generator = load_data("train", 70, str(tiny))
    for epoch in expected:
        assert [batch[:, 0].tolist() for _, batch in generator()] == epoch
    valid = np.concatenate([batch[:, 0] for _, batch in load_data("valid", 100, str(tiny))()])
    assert np.array_equal(valid, tiny_splits()["valid"][1])
