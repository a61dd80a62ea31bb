"""Sources, readers, cache: the same numbers from every form, and one clear line for every fault."""

import gzip
import http.server
import json
import logging
import multiprocessing
import os
import shutil
import socket
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_data import (
    SIZES,
    as_lists,
    idx_bytes,
    tiny_splits,
    write_gzip,
    write_idx,
    write_json,
)

from paddle_mnist.errors import DataError
from paddle_mnist.mnist import sources as sources_module
from paddle_mnist.mnist.arrays import MNIST_HASH, SPLIT_NAMES, data_hash
from paddle_mnist.mnist.cache import cache_folder, open_data
from paddle_mnist.mnist.embedded_digits import digits_by_label, read_embedded_digits
from paddle_mnist.mnist.json_reader import read_json
from paddle_mnist.mnist.readers import read_idx
from paddle_mnist.mnist.sources import find_source


def same(split, images, labels, divisor=256):
    expected = images.astype(np.float32) / np.float32(divisor)
    return np.array_equal(split.pixels(slice(None)), expected) and np.array_equal(
        split.labels, labels
    )


# ------------------------------------------------------------------ what is right is read right


@pytest.mark.parametrize("divisor", [256, 255])
def test_json_gives_the_files_numbers(tmp_path, divisor):
    splits = tiny_splits()
    loaded = read_json(write_json(tmp_path / "a.json.gz", splits, divisor))
    for mode in SPLIT_NAMES:
        assert same(loaded[mode], *splits[mode], divisor)
        assert (loaded[mode].images.dtype, loaded[mode].divisor) == (np.uint8, divisor)


def test_json_keeps_other_floats_as_float32(tmp_path):
    lists = as_lists(tiny_splits())
    lists[0][0][7][5] = 0.123456789
    loaded = read_json(write_gzip(tmp_path / "a.json.gz", json.dumps(lists).encode()))
    assert loaded["train"].images.dtype == np.float32
    assert loaded["train"].pixels(7).ravel()[5] == np.float32(0.123456789)
    assert np.array_equal(loaded["train"].pixels(8).ravel(), np.float32(lists[0][0][8]))


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_json_is_read_whatever_its_spacing_and_block_size(data):
    """The reader cuts the text at block ends; wherever they fall, the numbers are the same."""
    import paddle_mnist.mnist.json_reader as json_reader

    splits = tiny_splits({"train": 9, "valid": 1, "eval": 2}, seed=data.draw(st.integers(0, 99)))
    spaces = data.draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", ": ")]))
    text = json.dumps(as_lists(splits), separators=spaces)
    path = cache_folder().parent / f"{os.getpid()}.json"
    path.write_text(text)
    before, json_reader.BLOCK = json_reader.BLOCK, data.draw(st.integers(1, 9000))
    try:
        loaded = read_json(path)
    finally:
        json_reader.BLOCK = before
    assert all(same(loaded[mode], *splits[mode]) for mode in SPLIT_NAMES)


@pytest.mark.parametrize("packed", [True, False])
def test_idx_gives_the_files_numbers(tmp_path, packed):
    splits = tiny_splits({"train": 30, "valid": 6, "eval": 20})
    source = find_source(str(write_idx(tmp_path / "idx", splits, packed)))
    loaded = source.read()
    images, labels = (np.concatenate([splits["train"][i], splits["valid"][i]]) for i in (0, 1))
    valid = _every_sixth_of_each_class(labels)
    assert same(loaded["valid"], images[valid], labels[valid])
    train = np.setdiff1d(np.arange(36), valid)
    assert same(loaded["train"], images[train], labels[train])
    assert same(loaded["eval"], *splits["eval"])


def _every_sixth_of_each_class(labels):
    by_class = [number for digit in range(10) for number in np.flatnonzero(labels == digit)]
    return sorted(by_class[5::6])


def test_idx_of_mnists_size_ends_with_the_valid_split(tmp_path, monkeypatch):
    """As MNIST has it, made smaller: the last 10 of 60."""
    monkeypatch.setattr("paddle_mnist.mnist.readers.VALID", 10)
    splits = tiny_splits({"train": 50, "valid": 10, "eval": 20})
    loaded = find_source(str(write_idx(tmp_path / "idx", splits))).read()
    assert all(same(loaded[mode], *splits[mode]) for mode in SPLIT_NAMES)


def test_valid_split_of_a_small_set_that_is_sorted_has_every_class(tmp_path):
    splits = tiny_splits({"train": 120, "valid": 0, "eval": 20})
    splits["train"] = splits["train"][0], np.repeat(np.arange(10, dtype=np.uint8), 12)
    loaded = open_data(str(write_idx(tmp_path / "idx", splits)))
    assert np.bincount(loaded["valid"].labels).tolist() == [2] * 10
    assert np.bincount(loaded["train"].labels).tolist() == [10] * 10


def test_digits_are_fixed_and_stratified_in_both_orders():
    loaded = digits_by_label()
    assert {mode: len(loaded[mode]) for mode in SPLIT_NAMES} == {
        "train": 1197,
        "valid": 300,
        "eval": 300,
    }
    for mode in ("valid", "eval"):
        assert set(np.bincount(loaded[mode].labels)) <= {29, 30, 31}
    # Stored results rest on this order.
    assert data_hash(loaded).startswith("13425203771d2e70")
    shuffled = read_embedded_digits()
    assert data_hash(shuffled).startswith("283ed073dc97de56")
    for mode in SPLIT_NAMES:
        both = (_images_with_labels(split[mode]) for split in (loaded, shuffled))
        assert len({tuple(sorted(images)) for images in both}) == 1


def _images_with_labels(split):
    return [image.tobytes() + bytes([label]) for image, label in zip(split.images, split.labels)]


@pytest.mark.parametrize("mode", SPLIT_NAMES)
def test_the_first_digits_of_a_split_are_of_all_classes(mode):
    counts = np.bincount(read_embedded_digits()[mode].labels[:100], minlength=10)
    assert counts.min() >= 3, counts


@pytest.mark.slow
def test_real_mnist_is_the_same_from_both_forms(real_data):
    source = find_source(str(real_data))
    loaded = source.read()
    assert data_hash(loaded) == MNIST_HASH
    assert {mode: len(loaded[mode]) for mode in SPLIT_NAMES} == {
        "train": 50_000,
        "valid": 10_000,
        "eval": 10_000,
    }
    paths = tuple(real_data / f"{name}.gz" for name in sources_module.IDX_FILES)
    assert data_hash(read_idx(paths)) == MNIST_HASH
    assert open_data(str(real_data)).name == "mnist"


# ------------------------------------------------------------------ faults in a JSON file


def _json(change):
    """The bytes of a small good file after `change(lists)`."""
    lists = as_lists(tiny_splits({"train": 3, "valid": 2, "eval": 2}))
    lists = change(lists) or lists
    return json.dumps(lists).encode()


def _put(*place):
    """A change that puts the last argument at the place the others name."""

    def change(lists):
        *path, last, value = place
        target = lists
        for key in path:
            target = target[key]
        target[last] = value

    return change


GOOD = _json(lambda lists: None)
JSON_FAULTS = {
    "gzip of text": (b"hello", "'h' at byte 0"),
    "empty": (b"", "end of the file"),
    "a mapping": (b'{"train": []}', "'{' at byte 0"),
    "a list of numbers": (b"[1, 2, 3]", "'1' at byte 1"),
    "two splits": (_json(lambda lists: lists[:2]), "expected ','"),
    "four splits": (_json(lambda lists: [*lists, lists[0]]), "expected ']'"),
    "no labels": (_json(_put(0, [[[0.5] * 784]])), "after the images"),
    "783 values": (_json(_put(0, 0, 1, [0.0] * 783)), "train images, row 1: 783 values"),
    "785 values": (_json(_put(1, 0, 1, [0.0] * 785)), "valid images, row 1: 785 values"),
    "a row that is a number": (_json(_put(0, 0, 1, 5)), "train images, row 1: 5"),
    "a pixel NaN": (_json(_put(0, 0, 2, 700, float("nan"))), "row 2, value 700: nan"),
    "a pixel infinite": (_json(_put(0, 0, 2, 7, float("inf"))), "row 2, value 7: inf"),
    "a pixel of 255": (_json(_put(0, 0, 0, 3, 255)), "row 0, value 3: 255"),
    "a pixel of 10**30": (_json(_put(0, 0, 0, 3, 10**30)), "row 0, value 3: 1000000"),
    "a pixel below 0": (_json(_put(0, 0, 0, 3, -0.5)), "row 0, value 3: -0.5"),
    "a pixel null": (_json(_put(0, 0, 0, 3, None)), "row 0, value 3: None"),
    "a pixel true": (_json(_put(0, 0, 0, 3, True)), "row 0, value 3: True"),
    "a pixel in quotes": (_json(_put(0, 0, 0, 3, "0.5")), "row 0, value 3: '0.5'"),
    "a list for a pixel": (_json(_put(0, 0, 0, 3, [0.5])), "row 0, value 3: [0.5]"),
    "label 10": (_json(_put(0, 1, 1, 10)), "train labels, number 1: 10"),
    "label -1": (_json(_put(2, 1, 0, -1)), "eval labels, number 0: -1"),
    'label "7"': (_json(_put(0, 1, 1, "7")), "train labels, number 1: '7'"),
    "label 7.0": (_json(_put(0, 1, 1, 7.0)), "train labels, number 1: 7.0"),
    "label NaN": (_json(_put(0, 1, 1, float("nan"))), "train labels, number 1: nan"),
    "label true": (_json(_put(0, 1, 1, True)), "train labels, number 1: True"),
    "a label short": (_json(_put(0, 1, [1, 2])), "3 images and 2 labels"),
    "no training images": (_json(_put(0, [[], []])), "train is empty"),
    "cut in a row": (GOOD[: len(GOOD) // 3], "train images"),
    "cut in the labels": (GOOD[: GOOD.index(b"]]") + 8], "labels"),
    "more after the end": (GOOD + b" []", "expected the end of the file"),
    "a row without end": (b"[[[[" + b"0.0, " * 200_000, "does not end"),
}


@pytest.mark.parametrize("name", JSON_FAULTS)
def test_json_fault_is_named(tmp_path, name):
    data, message_part = JSON_FAULTS[name]
    path = write_gzip(tmp_path / "mnist.json.gz", data)
    with pytest.raises(DataError) as caught:
        open_data(str(path))
    message = str(caught.value)
    assert str(path) in message and message_part in message and "expected" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("data", "message"),
    [(b"plain text", "not a gzip file"), (gzip.compress(GOOD)[:-500], "damaged gzip file")],
)
def test_json_file_that_is_no_whole_gzip(tmp_path, data, message):
    path = tmp_path / "mnist.json.gz"
    path.write_bytes(data)
    with pytest.raises(DataError, match=message):
        open_data(str(path))


BOMBS = {
    "white space": b" " * (1 << 20),
    "rows without end": b"[" + b"0," * 783 + b"0],",
    "one row without end": b"0," * (1 << 19),
}


@pytest.mark.parametrize("name", BOMBS)
def test_gzip_bomb_is_refused_within_bounded_memory(tmp_path, name, monkeypatch):
    """64 MiB (limit: 8) of text in a small file; the full limit, 1 GiB, is only slower."""
    monkeypatch.setattr("paddle_mnist.mnist.json_reader.MAX_TEXT", 8 << 20)
    path = tmp_path / "mnist.json.gz"
    piece = BOMBS[name]
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b"" if name == "white space" else b"[[[")
        for _ in range((64 << 20) // len(piece)):
            file.write(piece)
    assert path.stat().st_size < 1 << 20
    with pytest.raises(DataError, match=r"unpacks to more than|does not end|row 0"):
        open_data(str(path))


# ------------------------------------------------------------------ faults in IDX files


def _idx_faults():
    images, labels = tiny_splits({"train": 5})["train"]
    good = idx_bytes(images)
    wide = np.zeros((5, 27, 28), np.uint8)
    yield "wrong magic", "t10k-images-idx3-ubyte", idx_bytes(labels) + bytes(99), "magic number"
    yield "truncated", "t10k-images-idx3-ubyte", good[:-1], "truncated"
    yield "header only in part", "t10k-images-idx3-ubyte", good[:9], "header"
    yield "more than announced", "t10k-images-idx3-ubyte", good + b"1", "more than the 5"
    yield "27x28", "t10k-images-idx3-ubyte", idx_bytes(wide), "27x28"
    yield "counts differ", "t10k-images-idx3-ubyte", good, "5 images and 20 labels"
    yield "label 10", "t10k-labels-idx1-ubyte", idx_bytes(labels + 10), "label 0 is"
    yield "no items", "t10k-labels-idx1-ubyte", idx_bytes(labels[:0]), "announces 0 items"
    huge = good[:4] + b"\xff\xff\xff\xff" + good[8:]
    yield "announces 2**32", "t10k-images-idx3-ubyte", huge, "announces 4294967295"
    yield "too few for valid", "train-images-idx3-ubyte", good, "5 training images, but 36 labels"


IDX_FAULTS = {name: rest for name, *rest in _idx_faults()}


@pytest.fixture(scope="module")
def good_idx(tmp_path_factory):
    splits = tiny_splits({"train": 30, "valid": 6, "eval": 20})
    return write_idx(tmp_path_factory.mktemp("idx"), splits)


@pytest.mark.parametrize("name", IDX_FAULTS)
def test_idx_fault_is_named(tmp_path, good_idx, name):
    file, data, message_part = IDX_FAULTS[name]
    folder = shutil.copytree(good_idx, tmp_path / "idx")
    write_gzip(folder / f"{file}.gz", data)
    with pytest.raises(DataError) as caught:
        open_data(str(folder))
    assert message_part in str(caught.value) and str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_idx_with_too_few_images_for_two_splits(tmp_path):
    splits = tiny_splits({"train": 5, "valid": 0, "eval": 20})
    with pytest.raises(DataError, match="5 images; expected at least 6, of which every sixth"):
        open_data(str(write_idx(tmp_path, splits)))


# ------------------------------------------------------------------ names of the classes

NAMES = [f"kind {number}" for number in range(10)]


@pytest.mark.parametrize("form", ["idx", "json"])
def test_names_of_classes_are_no_part_of_the_data(tmp_path, form):
    splits = tiny_splits({"train": 30, "valid": 6, "eval": 20})
    if form == "idx":
        path = folder = write_idx(tmp_path / "kinds", splits)
    else:
        folder = tmp_path
        path = write_json(folder / "kinds.json.gz", splits)
    before = open_data(str(path))
    assert before.class_names == () and before.classes[3] == "3"
    assert before.classes.describe(3) == "class 3"
    (folder / "classes.txt").write_text("\ufeff" + "\r\n".join(NAMES) + "\n\n", "utf-8")
    after = open_data(str(path))
    assert after.class_names == tuple(NAMES) and after.hash == before.hash
    assert after.classes.describe(3) == after.classes[3] == "kind 3"
    some = open_data(f"{path}#0-4")
    assert some.class_names == tuple(NAMES) and some.classes.noun == "class"


def test_mnist_and_the_digits_have_digits(real_data):
    for name in ("digits", "digits#0-4", str(real_data)):
        assert open_data(name).classes.noun == "digit"
        assert open_data(name).classes.describe(7) == "a 7"


@pytest.mark.parametrize(
    ("content", "message_part"),
    [
        ("\n".join(NAMES[:9]), "classes.txt: 9 lines; expected 10"),
        ("\n".join([*NAMES, "more"]), "classes.txt: 11 lines; expected 10"),
        ("", "classes.txt: 0 lines; expected 10"),
        ("\n".join([*NAMES[:4], " ", *NAMES[5:]]), "classes.txt, line 5: ''; expected a name"),
        ("\n".join([*NAMES[:9], "kind 2"]), "line 10: 'kind 2' is line 3 already"),
        ("\n".join([*NAMES[:9], "\x1b[31mred"]), "line 10: '\\x1b[31mred'; expected a name"),
        ("\n".join([*NAMES[:9], "x" * 41]), "line 10: 'xxx"),
        ("x" * 5000, "classes.txt: 1 lines; expected 10"),
        ("\n".join(NAMES).encode("utf-16"), "classes.txt: not UTF-8"),
        (None, "classes.txt: Is a directory; expected a readable file"),
    ],
)
def test_fault_in_the_names_of_classes_is_named(tmp_path, good_idx, content, message_part):
    folder = shutil.copytree(good_idx, tmp_path / "kinds")
    path = folder / "classes.txt"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError) as caught:
        open_data(str(folder))
    assert message_part in str(caught.value) and str(path) in str(caught.value)
    assert "expected" in str(caught.value) and "\n" not in str(caught.value)


# ------------------------------------------------------------------ which source


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """An empty current directory and an empty home."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path


def test_auto_takes_the_first_of_four(elsewhere, good_idx, caplog):
    log = logging.getLogger("paddle_mnist")
    log.addHandler(caplog.handler)
    assert find_source().name == "digits"
    assert "accuracies are not MNIST's" in caplog.text
    log.removeHandler(caplog.handler)

    shutil.copytree(good_idx, elsewhere / "home/.cache/paddle/dataset/mnist", dirs_exist_ok=True)
    assert "home" in str(find_source().paths[0])
    shutil.copytree(good_idx, elsewhere / "work")
    assert find_source().paths[0].parent == Path("work")
    write_json(elsewhere / "work/mnist.json.gz", tiny_splits())
    assert find_source().paths == (Path("work/mnist.json.gz"),)


OTHER_NAMES = {
    "with a dot": lambda name: name.replace("-idx", ".idx"),
    "with a dot, packed": lambda name: f"{name.replace('-idx', '.idx')}.gz",
    "capital letters": lambda name: name.upper(),
    "all dots": lambda name: name.replace("-", "."),
    "folders of Kaggle": lambda name: f"{name}/{name}",
    "folders and a dot": lambda name: f"{name.replace('-idx', '.idx')}/{name}.gz",
}


@pytest.mark.parametrize("form", OTHER_NAMES)
def test_idx_files_are_taken_by_the_names_of_mirrors(elsewhere, good_idx, form):
    for name in sources_module.IDX_FILES:
        path = elsewhere / "work" / OTHER_NAMES[form](name)
        path.parent.mkdir(parents=True, exist_ok=True)
        packed = (good_idx / f"{name}.gz").read_bytes()
        path.write_bytes(packed if path.suffix == ".gz" else gzip.decompress(packed))
    (elsewhere / "work" / "classes.txt").write_text("\n".join(NAMES))
    data = open_data()
    assert data.hash == open_data(str(good_idx)).hash
    assert data.location == str(elsewhere / "work") and open_data(data.location).hash == data.hash
    assert data.class_names == tuple(NAMES)


def test_usual_name_goes_before_others(elsewhere, good_idx):
    folder = shutil.copytree(good_idx, elsewhere / "work")
    for name in sources_module.IDX_FILES:
        for other in (name, name.replace("-idx", ".idx"), f"{name}-2/{name}"):
            (folder / other).parent.mkdir(exist_ok=True)
            (folder / other).write_bytes(b"")
    assert [path.name for path in find_source().paths] == [
        f"{name}.gz" for name in sources_module.IDX_FILES
    ]


ALMOST_RIGHT = {
    "three of four": (
        dict.fromkeys(sources_module.IDX_FILES[:3], b""),
        "3 of the 4 IDX files are there, but not t10k-labels-idx1-ubyte",
    ),
    "a truncated name": (
        {"train-images-idx3-uby.gz": b""},
        "train-images-idx3-uby.gz has almost the name train-images-idx3-ubyte: rename it",
    ),
    "half a download": (
        {"t10k-labels-idx1-ubyte.gz.part": b""},
        "t10k-labels-idx1-ubyte.gz.part has almost the name t10k-labels-idx1-ubyte",
    ),
    "a zip": ({"archive.zip": b"PK\x03\x04"}, "archive.zip is a zip archive: unpack it"),
    "a pickle": ({"mnist.pkl.gz": gzip.compress(b"\x80\x03")}, "mnist.pkl.gz is a pickle: read it"),
    "a broken gzip": ({"mnist.pkl.gz": b"\x1f\x8b"}, "mnist.pkl.gz cannot be read (damaged gzip"),
    "a table": (
        {"train.csv": b"PassengerId,Age\n"},
        "train.csv is another file: to use it, give it",
    ),
    "in another folder": (
        {"raw/mnist.json.gz": b""},
        "work/raw holds all that is needed: give that",
    ),
    "pictures": (
        {"training/7/1.png": b""},
        "work/training holds folders of pictures: read the pictures with PIL.Image",
    ),
    "many": ({f"{number}.zip": b"PK\x03\x04" for number in range(9)}, "; and 5 more"),
}


@pytest.mark.parametrize("name", ALMOST_RIGHT)
def test_files_that_are_almost_right_are_named(elsewhere, name, caplog):
    """In the line that announces the embedded digits, and in the error for the folder."""
    files, message_part = ALMOST_RIGHT[name]
    for file, content in {**files, "notes.txt": b"", "output/default/train.log": b""}.items():
        path = elsewhere / "work" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    log = logging.getLogger("paddle_mnist")
    log.addHandler(caplog.handler)
    assert find_source().name == "digits"
    log.removeHandler(caplog.handler)
    line = next(line for line in caplog.messages if line.startswith("MNIST was not found"))
    assert "In work/: " in line and message_part in line
    assert "notes" not in line and "output" not in line and "\n" not in line
    with pytest.raises(DataError) as caught:
        find_source("work")
    assert message_part in str(caught.value) and "\n" not in str(caught.value)


def test_explicit_goes_before_environment_before_auto(elsewhere, tiny, good_idx, monkeypatch):
    monkeypatch.setenv("PADDLE_MNIST_DATA", str(good_idx))
    assert find_source().paths[0].parent == good_idx
    assert find_source("digits").name == "digits"
    assert find_source(str(tiny)).paths == (tiny,)


@pytest.mark.parametrize("data", ["nope.json.gz", "nope/", "."])
def test_a_path_never_falls_back(elsewhere, data):
    with pytest.raises(DataError, match="expected"):
        find_source(data)


def test_environment_that_names_nothing_is_an_error(elsewhere, monkeypatch):
    monkeypatch.setenv("PADDLE_MNIST_DATA", "nope")
    with pytest.raises(DataError, match="nope: no such file"):
        find_source()


def test_one_idx_file_asks_for_the_folder(good_idx):
    with pytest.raises(DataError, match="give the folder"):
        find_source(str(good_idx / "t10k-images-idx3-ubyte.gz"))


@pytest.fixture
def served(good_idx):
    """A real HTTP server over the IDX files."""
    handler = type(
        "Quiet",
        (http.server.SimpleHTTPRequestHandler,),
        {"log_message": lambda *_: None, "directory": None},
    )
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), lambda *args: handler(*args, directory=str(good_idx))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


def test_download_fetches_checks_and_keeps(elsewhere, served, good_idx, monkeypatch):
    import hashlib

    sums = {
        name: hashlib.md5((good_idx / f"{name}.gz").read_bytes()).hexdigest()
        for name in sources_module.IDX_FILES
    }
    monkeypatch.setattr(sources_module, "MNIST_MD5", sums)
    monkeypatch.setenv("PADDLE_MNIST_URL", served)
    folder = elsewhere / "home/.cache/paddle/dataset/mnist"
    assert find_source().paths[0].parent == folder
    assert sorted(p.name for p in folder.glob("*.gz")) == sorted(f"{n}.gz" for n in sums)


def test_folder_named_mnist_is_not_mnist(tmp_path, good_idx):
    for name in ("mnist", "digits"):
        folder = shutil.copytree(good_idx, tmp_path / name)
        assert open_data(str(folder)).name == f"other files ({folder})"


@pytest.mark.parametrize("data", ["~nobody_of_this_name/x", "x" * 300, "a\0b"])
def test_path_that_cannot_be_is_named(data):
    with pytest.raises(DataError, match="expected"):
        find_source(data)


@pytest.mark.parametrize(
    "answer", [b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx"]
)
def test_server_that_breaks_off_is_done_without(elsewhere, monkeypatch, answer, caplog):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            connection, _ = server.accept()
            connection.recv(9999)
            connection.sendall(answer)
            connection.close()

        threading.Thread(target=serve, daemon=True).start()
        monkeypatch.setenv("PADDLE_MNIST_URL", f"http://127.0.0.1:{server.getsockname()[1]}/")
        log = logging.getLogger("paddle_mnist")
        log.addHandler(caplog.handler)
        assert find_source().name == "digits"
        log.removeHandler(caplog.handler)
        assert "no connection within" not in caplog.text


def test_download_of_something_else_is_thrown_away(elsewhere, served, monkeypatch):
    monkeypatch.setenv("PADDLE_MNIST_URL", served)
    assert find_source().name == "digits"  # the real MD5s do not match what is served
    assert not list((elsewhere / "home/.cache/paddle/dataset/mnist").glob("*ubyte*"))


def test_download_gives_up_when_no_connection_stands(elsewhere, monkeypatch):
    """A port whose queue of connections is full: to connect there waits for ever."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        queued = [socket.socket() for _ in range(4)]
        for waiting in queued:
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        monkeypatch.setattr(sources_module, "CONNECT_SECONDS", 1)
        monkeypatch.setenv("PADDLE_MNIST_URL", f"http://127.0.0.1:{server.getsockname()[1]}/")
        assert find_source().name == "digits"
        for waiting in queued:
            waiting.close()


# ------------------------------------------------------------------ the cache


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PADDLE_MNIST_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def entry(cache) -> Path:
    (folder,) = (path for path in cache.iterdir() if path.is_dir())
    return folder


def test_cached_data_is_mapped_and_the_same(cache, tiny):
    first, second = open_data(str(tiny)), open_data(str(tiny))
    assert first.hash == second.hash == data_hash(second.splits)
    assert isinstance(second["train"].images, np.memmap)


DAMAGE = {
    "truncated": lambda folder: os.truncate(folder / "train_images.npy", 5000),
    "emptied": lambda folder: os.truncate(folder / "train_images.npy", 0),
    "a flipped bit": lambda folder: _flip(folder / "valid_labels.npy"),
    "a file gone": lambda folder: (folder / "eval_images.npy").unlink(),
    "index gone": lambda folder: (folder / "index.json").unlink(),
    "index torn": lambda folder: (folder / "index.json").write_text('{"hash": "'),
    "index of another form": lambda folder: (folder / "index.json").write_text("[]"),
    "a pickle for an array": lambda folder: np.save(
        folder / "train_labels.npy", np.array([{}], object), allow_pickle=True
    ),
}


def _flip(path):
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_cache_is_built_anew(cache, tiny, name):
    before = open_data(str(tiny)).hash
    DAMAGE[name](entry(cache))
    assert data_hash(open_data(str(tiny)).splits) == before
    assert isinstance(open_data(str(tiny))["train"].images, np.memmap)
    assert {path.suffix for path in cache.iterdir()} == {"", ".lock"}  # nothing left lying about


def test_cache_of_another_source_is_not_taken(cache, tiny, tmp_path):
    other = write_json(tmp_path / "other.json.gz", tiny_splits(seed=1))
    expected_hash = open_data(str(tiny)).hash
    mine = entry(cache)
    open_data(str(other))
    (theirs,) = (path for path in cache.iterdir() if path.is_dir() and path != mine)
    shutil.rmtree(mine)
    shutil.copytree(theirs, mine)
    assert data_hash(open_data(str(tiny)).splits) == expected_hash


def test_changed_source_has_another_cache(cache, tmp_path):
    path = tmp_path / "a.json.gz"
    write_json(path, tiny_splits())
    before = open_data(str(path)).hash
    write_json(path, tiny_splits(seed=1))
    assert open_data(str(path)).hash != before
    assert sum(p.is_dir() for p in cache.iterdir()) == 2


def test_cache_that_cannot_be_written_is_said_and_done_without(tiny, monkeypatch, caplog):
    log = logging.getLogger("paddle_mnist")
    log.addHandler(caplog.handler)
    monkeypatch.setenv("PADDLE_MNIST_CACHE", "/sys/paddle_mnist")  # not even root can write there
    assert len(open_data(str(tiny))["train"]) == SIZES["train"]
    assert "cannot write the cache in /sys" in caplog.text
    log.removeHandler(caplog.handler)


def _open_in_process(data, start, hashes):
    start.wait()
    hashes.put(open_data(data).hash)


def test_processes_that_build_the_cache_at_once(cache, tiny):
    context = multiprocessing.get_context("spawn")
    start, hashes = context.Event(), context.Queue()
    arguments = (str(tiny), start, hashes)
    processes = [context.Process(target=_open_in_process, args=arguments) for _ in range(4)]
    for process in processes:
        process.start()
    start.set()
    hashes_seen = {hashes.get(timeout=60) for _ in processes}
    for process in processes:
        process.join()
    assert hashes_seen == {open_data(str(tiny)).hash}
    assert sum(path.is_dir() for path in cache.iterdir()) == 1
