"""Readers: the same numbers from every form of file, and one clear line for every fault."""

import gzip
import io
import json
import pickle
import shutil
import struct
import zipfile

import numpy as np
import paddle  # noqa: F401, first: version 2.6.2 breaks Python's zlib, which no reader may use
import pytest
from synthetic_data import (
    KAGGLE,
    as_lists,
    csv_bytes,
    idx_bytes,
    npz_arrays,
    tiny_splits,
    training_files,
    write_gzip,
    write_idx,
    write_json,
)

from paddle_mnist.errors import DataError
from paddle_mnist.mnist.images import MNIST_HASH, data_hash, open_data
from paddle_mnist.mnist.sources import IDX_FILES, find_source
from paddle_mnist.mnist.splits import SPLIT_NAMES

SPLITS = tiny_splits({"train": 30, "valid": 6, "eval": 20})
ARRAYS = npz_arrays(SPLITS)
TRAIN, TEST = training_files(SPLITS), SPLITS["eval"]


def read(path):
    """The splits in a file, without the cache."""
    return find_source(str(path)).read()


@pytest.fixture(scope="module")
def idx(tmp_path_factory):
    return write_idx(tmp_path_factory.mktemp("idx"), SPLITS)


# ------------------------------------------------------------------ what is right is read right


def test_idx_gives_the_numbers_of_the_file(idx):
    """Of less than 60,000 images every sixth of each class is in the valid split."""
    images, labels = TRAIN
    by_class = [number for digit in range(10) for number in np.flatnonzero(labels == digit)]
    valid = sorted(by_class[5::6])
    train = np.setdiff1d(np.arange(36), valid)
    rows = {"train": (images[train], labels[train]), "valid": (images[valid], labels[valid])}
    for mode, (expected_images, expected_labels) in {**rows, "eval": TEST}.items():
        split = read(idx)[mode]
        assert np.array_equal(split.pixels(slice(None)), expected_images / np.float32(256))
        assert np.array_equal(split.labels, expected_labels)


TRAIN_CSV, TEST_CSV = csv_bytes(*TRAIN, KAGGLE), csv_bytes(*TEST, KAGGLE)
BOM = b"\xef\xbb\xbf"
FILES = {
    "CSV of Kaggle": {"train.csv": TRAIN_CSV, "test.csv": TEST_CSV},
    "CSV, packed, without a header": {
        "mnist_train.csv.gz": gzip.compress(csv_bytes(*TRAIN)),
        "mnist_test.csv.gz": gzip.compress(csv_bytes(*TEST, '"label"' + KAGGLE[5:])),
    },
    "CSV of Windows, without an end": {
        "train.csv": csv_bytes(*TRAIN, KAGGLE, "\r\n").rstrip(),
        "test.csv": BOM + csv_bytes(*TEST, end="\r\n") + b"\r\n \n",
    },
}


def test_readers_of_every_form_give_the_same_data(tmp_path, idx):
    for form, files in FILES.items():
        (tmp_path / form).mkdir()
        for name, data in files.items():
            (tmp_path / form / name).write_bytes(data)
    for name in IDX_FILES:  # in folders of Kaggle, not packed
        (tmp_path / "idx" / name).mkdir(parents=True)
        path = tmp_path / "idx" / name / name.upper()
        path.write_bytes(gzip.decompress((idx / f"{name}.gz").read_bytes()))
    for form in ("npz", "npz, compressed"):
        (tmp_path / form).mkdir()
    others = {"x_test": np.asfortranarray(TEST[0]), "y_train": TRAIN[1].astype(np.int64)}
    np.savez(tmp_path / "npz/mnist.npz", **{**ARRAYS, **others, "more": np.zeros(3)})
    np.savez_compressed(tmp_path / "npz, compressed/mnist.npz", **ARRAYS)
    splits = {mode: (split.images, split.labels) for mode, split in read(idx).items()}
    (tmp_path / "mnist.json").write_text(json.dumps(as_lists(splits), indent=1))
    expected = data_hash(read(idx))
    places = sorted(tmp_path.iterdir())
    assert len(places) == 7
    assert [place.name for place in places if data_hash(read(place)) != expected] == []


def test_json_keeps_k255_as_uint8_and_other_floats_as_float32(tmp_path):
    """The one other number is in the second block of rows that is parsed."""
    splits = tiny_splits({"train": 1001, "valid": 1, "eval": 2})
    splits["train"][0][1:1000] = 0
    loaded = read(write_json(tmp_path / "a.json.gz", splits, 255))["train"]
    assert (loaded.images.dtype, loaded.divisor) == (np.uint8, 255)
    lists = as_lists(splits, 255)
    lists[0][0][1000][5] = 0.123456789
    loaded = read(write_gzip(tmp_path / "a.json.gz", json.dumps(lists).encode()))["train"]
    assert (loaded.images.dtype, loaded.divisor) == (np.float32, None)
    assert np.array_equal(loaded.images.reshape(-1, 784), np.float32(lists[0][0]))


def test_suffix_in_any_case_is_read(tmp_path):
    table = csv_bytes(*TRAIN)
    for name, data in (
        ("MNIST.NPZ", with_arrays()),
        ("T.CSV", table),
        ("T.CSV.GZ", gzip.compress(table)),
    ):
        (tmp_path / name).write_bytes(data)
        assert sum(map(len, read(tmp_path / name).values())) >= 36, name


def test_csv_without_labelled_test_images_is_divided_5_to_1_to_1(tmp_path):
    """Kaggle's train.csv is such a file: its test.csv has no labels."""
    images = tiny_splits({"train": 140})["train"][0]
    labels = np.repeat(np.arange(10, dtype=np.uint8), 14)
    (tmp_path / "train.csv").write_bytes(csv_bytes(images, labels))
    (tmp_path / "test.csv").write_bytes(b"0," * 783 + b"0\n")
    data = open_data(str(tmp_path))
    for mode, count in {"train": 10, "valid": 2, "eval": 2}.items():
        assert np.bincount(data[mode].labels).tolist() == [count] * 10
    all_images = np.concatenate([data[mode].images for mode in SPLIT_NAMES])
    assert len(np.unique(all_images, axis=0)) == 140
    assert "eval split is part of it" in data.source


def test_embedded_digits_are_fixed():
    splits = read("digits")
    assert data_hash(splits).startswith("283ed073dc97de56")  # stored results rest on it
    assert [len(splits[mode]) for mode in SPLIT_NAMES] == [1197, 300, 300]


def test_real_mnist_is_divided_as_the_tutorial_does(real_data):
    """The valid split of 60,000 images is the last 10,000."""
    splits = read(real_data)
    assert data_hash(splits) == MNIST_HASH
    assert [len(splits[mode]) for mode in SPLIT_NAMES] == [50_000, 10_000, 10_000]


# ------------------------------------------------------------------ faults


def with_json(*place, to):
    """The bytes of a small JSON file with another value at a place."""
    lists = as_lists(tiny_splits({"train": 3, "valid": 2, "eval": 2}))
    *path, last = place
    target = lists
    for key in path:
        target = target[key]
    target[last] = to
    return json.dumps(lists).encode()


def with_arrays(**changes):
    """The bytes of an npz file with other arrays, or without those that are None."""
    file = io.BytesIO()
    arrays = {**ARRAYS, **changes}
    np.savez(file, **{key: array for key, array in arrays.items() if array is not None})
    return file.getvalue()


ROW = b"7" + b",0" * 784
LINES = csv_bytes(*TRAIN, KAGGLE).split(b"\n")


def with_line(line):
    """The bytes of a CSV file with another line in place of the third."""
    return b"\n".join([*LINES[:2], line, *LINES[3:]])


GOOD_JSON = with_json(0, 1, 0, to=1)
IMAGES, LABELS = IDX_FILES[2:]
FIVE = idx_bytes(TEST[0][:5])
FAULTS = {  # by file: the fault, the bytes, and what the message says
    "mnist.json": [
        ("a mapping", b'{"train": []}', "train images", "{"),
        ("no images", with_json(0, to=[[], []]), "train images"),
        ("783 values", with_json(0, 0, 1, to=[0.0] * 783), "train images, row 1", "783 values"),
        ("a pixel NaN", with_json(0, 0, 2, 700, to=float("nan")), "row 2: [700] is nan"),
        ("a pixel of 255", with_json(0, 0, 0, 3, to=255), "row 0", "[3]", "255"),
        ("label 10", with_json(0, 1, 1, to=10), "train labels", "[1]", "10"),
        ("a label short", with_json(0, 1, to=[1, 2]), "train", "3 images", "2 labels"),
        ("cut in the labels", GOOD_JSON[: GOOD_JSON.index(b"]]") + 8], "train labels"),
        ("a list without end", b"[[[[" + b"0.0, " * 2_000_000, "train images"),
    ],
    "mnist.json.gz": [
        ("half a gzip file", gzip.compress(GOOD_JSON)[:-500], "damaged"),
    ],
    IMAGES: [
        ("truncated", FIVE[:-1], "3919", "3920"),
        ("announces 2**32", FIVE[:4] + b"\xff" * 4 + FIVE[8:], "announces 4294967295"),
    ],
    LABELS: [("label 10", idx_bytes(TEST[1] + 10), "label 0 is")],
    "mnist.npz": [
        ("floats", with_arrays(x_train=TRAIN[0] / 255), "x_train is float64 [36, 28, 28]"),
    ],
    "train.csv": [
        ("783 pixels", with_line(ROW[:-2]), "line 3", "785 to 784"),
        ("a pixel of 256", with_line(ROW[:-1] + b"256"), "line 3", "column 785", "'256'"),
        ("a line without end", b"0," * (1 << 16), "line 1", "column 32769"),
    ],
    "mnist.pkl": [("a pickle", pickle.dumps(ARRAYS), "unknown suffix", "mnist.npz", "rename")],
}


def refusal(path):
    """The message with which a file or folder is refused."""
    with pytest.raises(DataError) as caught:
        open_data(str(path))
    message = str(caught.value)
    assert str(path) in message and "\n" not in message
    return message


@pytest.mark.parametrize(
    ("name", "data", "parts"),
    [
        pytest.param(name, data, parts, id=f"{name}: {fault}")
        for name, faults in FAULTS.items()
        for fault, data, *parts in faults
    ],
)
def test_reader_of_a_faulty_file_raises_with_the_place(tmp_path, idx, name, data, parts):
    path = tmp_path / name
    if name in IDX_FILES:
        path = shutil.copytree(idx, tmp_path / "idx")
        write_gzip(path / f"{name}.gz", data)
    else:
        path.write_bytes(data)
    message = refusal(path)
    assert all(part in message for part in parts), message


class Malicious:
    def __reduce__(self):
        return (open, ("PWNED", "w"))


def npy(descr="'|u1'", shape="(36, 28, 28)", body=b""):
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + body


HOSTILE = {
    "a pickle": pickle.dumps(Malicious()),
    "pickled objects": npy("'|O'", "(1,)", pickle.dumps([Malicious()])),
    "a call in the header": npy(shape="(open('PWNED', 'w'),)"),
    "announces 2**62 images": npy(shape="(4611686018427387904, 28, 28)"),
    "less than announced": npy(body=bytes(9999)),
    "16 MiB, announced as less": npy(body=bytes(16 << 20)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_array_is_refused_and_never_executed(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mnist.npz").write_bytes(with_arrays(x_train=None))
    with zipfile.ZipFile(tmp_path / "mnist.npz", "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x_train.npy", HOSTILE[name])
        if "announced as less" in name:
            archive.filelist[-1].file_size = 28_352  # in the directory, written at the end
    assert "x_train" in refusal(tmp_path / "mnist.npz")
    assert not (tmp_path / "PWNED").exists()
