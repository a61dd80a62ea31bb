"""npz files of Keras and CSV files of Kaggle give the numbers of IDX files; faults are named."""

import gzip
import io
import pickle
import struct
import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from synthetic_data import KAGGLE, csv_bytes, npz_arrays, tiny_splits, training_files, write_idx

from paddle_mnist.errors import DataError
from paddle_mnist.mnist.arrays import MNIST_HASH, SPLIT_NAMES, data_hash
from paddle_mnist.mnist.cache import open_data
from paddle_mnist.mnist.csv_reader import read_csv
from paddle_mnist.mnist.npz_reader import read_npz
from paddle_mnist.mnist.sources import find_source

SPLITS = tiny_splits({"train": 30, "valid": 6, "eval": 20})
ARRAYS = npz_arrays(SPLITS)
TRAIN = csv_bytes(*training_files(SPLITS), KAGGLE)
TEST = csv_bytes(*SPLITS["eval"], KAGGLE)


@pytest.fixture(scope="module")
def idx_hash(tmp_path_factory):
    return open_data(str(write_idx(tmp_path_factory.mktemp("idx"), SPLITS))).hash


def write_files(folder, **files):
    for name, data in files.items():
        path = folder / name.replace("__", ".")
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("given_as", ["mnist.npz", "."])
def test_npz_gives_the_same_data_as_idx_files(tmp_path, idx_hash, save, given_as):
    arrays = {**ARRAYS, "x_test": np.asfortranarray(ARRAYS["x_test"]), "more": np.zeros(3)}
    arrays["y_train"] = arrays["y_train"].astype(np.int64)
    save(tmp_path / "mnist.npz", **arrays)
    data = open_data(str(tmp_path / given_as))
    assert (data.hash, data.name) == (idx_hash, "mnist.npz")
    assert data.location == str(tmp_path / "mnist.npz")


CSV_FORMS = {
    "Kaggle's": {"train__csv": TRAIN, "test__csv": TEST},
    "no header": {
        "mnist_train__csv": csv_bytes(*training_files(SPLITS)),
        "mnist_test__csv": csv_bytes(*SPLITS["eval"]),
    },
    "gzip, and a header from R": {
        "mnist_train__csv__gz": TRAIN.replace(b"label", b'\xef\xbb\xbf"label"', 1),
        "mnist_test__csv__gz": TEST,
    },
    "of Windows, without an end": {
        "train__csv": csv_bytes(*training_files(SPLITS), KAGGLE, "\r\n").rstrip(),
        "test__csv": b"\xef\xbb\xbf" + csv_bytes(*SPLITS["eval"], end="\r\n") + b"\r\n \n",
    },
}


@pytest.mark.parametrize("form", CSV_FORMS)
def test_csv_gives_the_same_data_as_idx_files(tmp_path, idx_hash, form):
    write_files(tmp_path, **CSV_FORMS[form])
    train = tmp_path / next(iter(CSV_FORMS[form])).replace("__", ".")
    assert open_data(str(train)).hash == open_data(str(tmp_path)).hash == idx_hash
    assert open_data(str(tmp_path)).location == str(train)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(block=st.integers(1, 9000), header=st.sampled_from(["", KAGGLE]))
def test_csv_is_read_whatever_the_block_size(tmp_path, monkeypatch, block, header):
    images, labels = tiny_splits({"train": 9})["train"]
    path = tmp_path / "train.csv"
    path.write_bytes(csv_bytes(images, labels, header))
    with monkeypatch.context() as patch:
        patch.setattr("paddle_mnist.mnist.csv_reader.BLOCK", block)
        loaded = read_csv(path)
    assert sum(len(split) for split in loaded.values()) == 9
    kept = {image.tobytes() for split in loaded.values() for image in split.images}
    assert kept == {image.tobytes() for image in images}


def test_csv_without_labelled_test_images_is_divided_5_to_1_to_1(tmp_path):
    """As Kaggle's: its test.csv has no labels."""
    images, labels = tiny_splits({"train": 140})["train"]
    labels = np.repeat(np.arange(10, dtype=np.uint8), 14)
    unlabelled = KAGGLE.removeprefix("label,").encode() + b"\n" + b"0," * 783 + b"0\n"
    write_files(tmp_path, train__csv=csv_bytes(images, labels, KAGGLE), test__csv=unlabelled)
    data = open_data(str(tmp_path))
    for mode, count in {"train": 10, "valid": 2, "eval": 2}.items():
        assert np.bincount(data[mode].labels).tolist() == [count] * 10
    all_images = np.concatenate([data[mode].images for mode in SPLIT_NAMES])
    assert len(np.unique(all_images, axis=0)) == 140
    assert data.source.endswith("(no test file with labels: the eval split is part of it)")


@pytest.mark.slow
def test_real_mnist_is_the_same_from_npz_and_csv(tmp_path, real_data):
    data = open_data(str(real_data))
    splits = {mode: (data[mode].images, data[mode].labels) for mode in SPLIT_NAMES}
    np.savez(tmp_path / "mnist.npz", **npz_arrays(splits))
    assert data_hash(read_npz(tmp_path / "mnist.npz")) == MNIST_HASH
    first = {mode: (images[:700], labels[:700]) for mode, (images, labels) in splits.items()}
    write_files(tmp_path, train__csv=csv_bytes(*training_files(first), KAGGLE))
    pixels = read_csv(tmp_path / "train.csv")["train"].pixels(slice(None))
    assert pixels.max() == 255 / 256 and pixels.dtype == np.float32


# ------------------------------------------------------------------ faults

OBJECTS = np.array([{}] * 36, object)
NPZ_FAULTS = {
    "a key is missing": ({"y_test": None}, "no y_test among its arrays (x_train, y_train, x_test)"),
    "no array": (
        dict.fromkeys(ARRAYS),
        "no x_train, y_train, x_test, y_test among its arrays (none)",
    ),
    "objects": ({"y_train": OBJECTS}, "y_train is object [36], which would have to be unpickled"),
    "floats": ({"x_train": ARRAYS["x_train"] / 255}, "x_train is float64 [36, 28, 28]; expected"),
    "rows": ({"x_test": ARRAYS["x_test"].reshape(20, 784)}, "x_test is uint8 [20, 784]"),
    "a number": ({"x_train": np.uint8(3)}, "x_train is uint8 []"),
    "one-hot labels": ({"y_train": np.eye(10)[ARRAYS["y_train"]]}, "y_train is float64 [36, 10]"),
    "label 10": ({"y_test": ARRAYS["y_test"] + 10}, "y_test: label 0 is 1"),
    "label -1": ({"y_test": ARRAYS["y_test"].astype(int) - 11}, "y_test: label 0 is -"),
    "counts differ": ({"y_train": ARRAYS["y_train"][:9]}, "36 training images, but 9 labels"),
    "eval counts differ": ({"y_test": ARRAYS["y_test"][:9]}, "eval has 20 images and 9 labels"),
    "no images": ({"x_test": ARRAYS["x_test"][:0]}, "x_test is uint8 [0, 28, 28]"),
    "too few": ({k: v[:5] for k, v in ARRAYS.items()}, "5 images; expected at least 6"),
}


def named_fault(path):
    with pytest.raises(DataError) as caught:
        open_data(str(path))
    message = str(caught.value)
    assert str(path) in message and "\n" not in message
    return message


@pytest.mark.parametrize("name", NPZ_FAULTS)
def test_npz_fault_is_named(tmp_path, name):
    changes, message_part = NPZ_FAULTS[name]
    arrays = {key: array for key, array in {**ARRAYS, **changes}.items() if array is not None}
    np.savez_compressed(tmp_path / "mnist.npz", **arrays)
    message = named_fault(tmp_path / "mnist.npz")
    assert message_part in message and "expected" in message


class Malicious:
    def __reduce__(self):
        return (open, ("PWNED", "w"))


def npy(descr="'|u1'", shape="(36, 28, 28)", body=b"", version=b"\x01\x00"):
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    size = struct.pack("<H" if version[0] == 1 else "<I", len(header))
    return b"\x93NUMPY" + version + size + header + body


BODIES = {
    "a dtype that does not exist": (npy("'|q7'"), "not an array of numbers (data type"),
    "several columns": (npy("[('a', '|u1')]"), "not an array of numbers"),
    "a pickle for an array": (pickle.dumps(Malicious()), "not an array of numbers"),
    "pickled objects": (npy("'|O'", "(1,)", pickle.dumps([Malicious()])), "is object [1]"),
    "a header without end": (
        npy(version=b"\x02\x00")[:8] + b"\xff" * 9999,
        "not an array of numbers",
    ),
    "brackets without end": (npy(shape="(" * 900), "not an array of numbers"),
    "announces 2**62 images": (npy(shape="(4611686018427387904, 28, 28)"), "with N from 1 to"),
    "a negative count": (npy(shape="(-1, 28, 28)"), "not an array of numbers"),
    "less than announced": (npy(body=bytes(9999)), "9999 bytes instead of the 28224"),
    "more than announced": (npy(body=bytes(28225)), "more instead of the 28224"),
}


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_hostile_array_is_refused_and_never_unpickled(tmp_path, monkeypatch, name, method):
    monkeypatch.chdir(tmp_path)
    body, message_part = BODIES[name]
    np.savez(tmp_path / "mnist.npz", **{k: v for k, v in ARRAYS.items() if k != "x_train"})
    with zipfile.ZipFile(tmp_path / "mnist.npz", "a", method) as archive:
        archive.writestr("x_train.npy", body)
    assert message_part in named_fault(tmp_path / "mnist.npz")
    assert not (tmp_path / "PWNED").exists()


def test_zip_bomb_is_refused_when_it_has_unpacked_what_it_announces(tmp_path, monkeypatch):
    """256 MiB behind an array of 36 images."""
    np.savez(tmp_path / "mnist.npz", **{k: v for k, v in ARRAYS.items() if k != "x_train"})
    with zipfile.ZipFile(tmp_path / "mnist.npz", "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x_train.npy", npy(body=bytes(256 << 20)))
    unpacked = []
    crc32 = zipfile.crc32
    monkeypatch.setattr(
        zipfile, "crc32", lambda data, crc=0: unpacked.append(len(data)) or crc32(data, crc)
    )
    assert "more instead of the 28224 bytes" in named_fault(tmp_path / "mnist.npz")
    assert 0 < sum(unpacked) < 1 << 20


def test_npz_of_another_compression_is_named(tmp_path):
    with zipfile.ZipFile(tmp_path / "mnist.npz", "w", zipfile.ZIP_BZIP2) as archive:
        for key, array in ARRAYS.items():
            file = io.BytesIO()
            np.save(file, array)
            archive.writestr(f"{key}.npy", file.getvalue())
    assert "x_train: compressed by method 12; expected" in named_fault(tmp_path / "mnist.npz")


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_damaged_npz_is_refused_or_unharmed(tmp_path, data):
    path = tmp_path / "mnist.npz"
    save = data.draw(st.sampled_from([np.savez, np.savez_compressed]))
    save(path, **ARRAYS)
    whole = read_npz(path)
    content = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(1, len(content) - 1))]
    for _ in range(data.draw(st.integers(0, 3))):
        place = data.draw(
            st.integers(-700, max(0, len(content) - 1))
        )  # the directory is at the end
        content[max(place, -len(content))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        assert data_hash(read_npz(path)) == data_hash(whole)
    except DataError as error:
        assert str(path) in str(error) and "\n" not in str(error)


ROW = b"7" + b",0" * 784
LINES = TRAIN.split(b"\n")
CSV_FAULTS = {
    "783 pixels": (ROW[:-2], "line 3: 784 values; expected 785"),
    "785 pixels": (ROW + b",0", "line 3: 786 values; expected 785"),
    "an empty line": (b"", "line 3: 0 values; expected 785"),
    "a pixel of 256": (ROW[:-1] + b"256", "line 3: pixel 784 is '256'; expected a whole number in"),
    "a pixel below 0": (ROW[:-1] + b"-1", "line 3: pixel 784 is '-1'"),
    "a pixel of 0.5": (ROW[:-1] + b"0.5", "line 3: pixel 784 is '0.5'"),
    "a pixel of 007": (ROW[:-1] + b"007", "line 3: pixel 784 is '007'"),
    "a pixel of 1e300": (ROW[:-1] + b"1" * 300, "line 3: pixel 784 is '1111"),
    "no pixel": (ROW[:-1], "line 3: pixel 784 is ''"),
    "two numbers": (ROW[:-1] + b"1 2", "line 3: pixel 784 is '1 2'"),
    "NaN": (ROW[:-1] + b"NaN", "line 3: pixel 784 is 'NaN'"),
    "JSON": (ROW[:-1] + b"1],[1", "line 3: 786 values"),
    "quotes": (ROW[:-1] + b'"5"', "line 3: pixel 784 is '\"5\"'"),
    "label 10": (b"10" + ROW[1:], "line 3: the label is '10'; expected a whole number in 0..9"),
    "no label": (ROW[1:], "line 3: the label is ''"),
    "a name": (b"\xe4\xb8\x83" + ROW[1:], "line 3: the label is 'ä"),
}


@pytest.mark.parametrize("name", CSV_FAULTS)
def test_fault_in_a_line_of_csv_is_named(tmp_path, name):
    line, message_part = CSV_FAULTS[name]
    path = tmp_path / "train.csv"
    path.write_bytes(b"\n".join([*LINES[:2], line, *LINES[3:]]))
    assert message_part in named_fault(path)


CSV_FILE_FAULTS = {
    "empty": (b"", "0 images; expected at least 7"),
    "a header only": (LINES[0], "0 images; expected at least 7"),
    "another table": (b"PassengerId,Survived\n1,0\n", "2 columns, the first of them 'PassengerId'"),
    "an index": (b"," + TRAIN, "line 1: 786 columns, the first of them ''"),
    "no labels": (
        TRAIN.partition(b"\n")[2].replace(b"\n", b"\n0", 1)[2:1600],
        "values; expected 785",
    ),
    "semicolons": (TRAIN.replace(b",", b";"), "line 1: 1 columns, the first of them 'label;pixel0"),
    "UTF-16": (TRAIN.decode().encode("utf-16"), "text in UTF-16; expected"),
    "a Chinese header in GBK": ("标签,像素\n".encode("gbk"), "probably GBK; save it as UTF-8"),
    "a line without end": (b"0," * (1 << 16), "a line of over 65536 bytes"),
}


@pytest.mark.parametrize("name", CSV_FILE_FAULTS)
def test_fault_of_a_csv_file_is_named(tmp_path, name):
    data, message_part = CSV_FILE_FAULTS[name]
    (tmp_path / "train.csv").write_bytes(data)
    assert message_part in named_fault(tmp_path / "train.csv")


def test_fault_in_the_test_file_is_named(tmp_path):
    write_files(tmp_path, train__csv=TRAIN, test__csv=TEST[:-9])
    assert f"{tmp_path / 'test.csv'}, line 21: 78" in named_fault(tmp_path)


def test_test_file_asks_for_the_training_file(tmp_path):
    write_files(tmp_path, train__csv=TRAIN, test__csv=TEST)
    assert f"expected the training file, {tmp_path / 'train.csv'}" in named_fault(
        tmp_path / "test.csv"
    )


def test_csv_that_unpacks_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("paddle_mnist.mnist.csv_reader.MAX_TEXT", 8 << 20)
    with gzip.open(tmp_path / "train.csv.gz", "wb", compresslevel=1) as file:
        for _ in range(32):
            file.write((ROW + b"\n") * 670)
    assert "unpacks to more than 8388608 bytes" in named_fault(tmp_path / "train.csv.gz")


# ------------------------------------------------------------------ files that are not read


def zipped(name):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, b"content")
    return file.getvalue()


OTHERS = {
    "mnist.zip": (zipped("train.csv"), "a zip archive; expected", "unpack it"),
    "mnist.tar.gz": (
        gzip.compress(bytes(257) + b"ustar" + bytes(250)),
        "a tar archive",
        "unpack it",
    ),
    "mnist.7z": (b"7z\xbc\xaf\x27\x1c", "a packed file", "unpack it"),
    "mnist.parquet": (b"PAR1\x15\x04", "a Parquet file", "pandas.read_parquet"),
    "mnist.h5": (b"\x89HDF\r\n\x1a\n", "an HDF5 file", "h5py.File"),
    "mnist.mat": (b"MATLAB 5.0 MAT-file, Platform", "a MATLAB file", "scipy.io.loadmat"),
    "mnist.pkl.gz": (gzip.compress(pickle.dumps(ARRAYS)), "a pickle", "pickle.load"),
    "old.pkl": (b"((cnumpy.core.multiarray\n_reconstruct", "a pickle", "pickle.load"),
    "ascii.pkl": (pickle.dumps({"x": 1}, 0), "a pickle", "pickle.load"),
    "x_train.npy": (b"\x93NUMPY\x01\x00", "one NumPy array", "numpy.savez"),
    "mnist.arff": (b"% comment\n@RELATION mnist_784", "an ARFF file", "scipy.io.arff.loadarff"),
    "7.png": (b"\x89PNG\r\n\x1a\n", "a picture", "PIL.Image"),
    "images": (b"\0\0\x08\x03\0\0", "an IDX file", "give the folder"),
    "mnist.json": ("[[".encode("utf-16"), "text in UTF-16", "save it as UTF-8"),
    "mnist.npz": (b"<!DOCTYPE html><html>", "a web page", "download the file itself"),
    "mnist.json.html": (b"\n<!doctype html>", "a web page", "download the file itself"),
    "mnist.bin": (
        b"version https://git-lfs.github.com/spec/v1",
        "a pointer of Git LFS",
        "git lfs pull",
    ),
    "mnist.csv": (b"PAR1\x15\x04", "a Parquet file", "pandas.read_parquet"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_file_of_another_kind_is_called_what_it_is(tmp_path, name):
    data, kind, remedy = OTHERS[name]
    (tmp_path / name).write_bytes(data)
    message = named_fault(tmp_path / name)
    assert message.startswith(f"{tmp_path / name}: {kind}") and remedy in message


def test_digits_of_npz_are_selected(tmp_path):
    np.savez(tmp_path / "mnist.npz", **ARRAYS)
    assert find_source(f"{tmp_path / 'mnist.npz'}#0-4").name == "mnist.npz"
    assert open_data(f"{tmp_path / 'mnist.npz'}#0-4")["train"].labels.max() <= 4
