"""Sources of images, their order, the cache, and selections of digits."""

import http.server
import multiprocessing
import os
import shutil
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from synthetic_data import SIZES, csv_bytes, tiny_splits, write_idx, write_json

from paddle_mnist.errors import DataError
from paddle_mnist.mnist.images import data_hash, open_data
from paddle_mnist.mnist.sources import IDX_FILES, find_source
from paddle_mnist.mnist.splits import SPLIT_NAMES


@pytest.fixture(scope="module")
def idx(tmp_path_factory):
    """A folder with the four IDX files."""
    splits = tiny_splits({"train": 30, "valid": 6, "eval": 20})
    return write_idx(tmp_path_factory.mktemp("idx"), splits)


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """An empty current directory and an empty home."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path


def test_auto_takes_the_first_of_four_sources(elsewhere, idx, lines):
    (elsewhere / "work").mkdir()
    (elsewhere / "work/archive.zip").write_bytes(b"PK")
    assert find_source().name == "digits"
    assert "archive.zip" in lines()[-1] and "accuracies are not MNIST's" in lines()[-1]
    shutil.copytree(idx, elsewhere / "home/.cache/paddle/dataset/mnist", dirs_exist_ok=True)
    assert find_source().files[0].is_relative_to(elsewhere / "home")
    shutil.copytree(idx, elsewhere / "work", dirs_exist_ok=True)
    assert find_source().path == Path("work")
    write_json(elsewhere / "work/mnist.json.gz", tiny_splits({"train": 1, "valid": 1, "eval": 1}))
    assert find_source().path == Path("work/mnist.json.gz")


def test_auto_goes_on_past_a_broken_file_in_work(elsewhere, idx, lines):
    (elsewhere / "work").mkdir()
    (elsewhere / "work/train.csv.gz").write_bytes(b"id,label")
    shutil.copytree(idx, elsewhere / "home/.cache/paddle/dataset/mnist")
    assert find_source().files[0].is_relative_to(elsewhere / "home")
    assert lines() == [
        "work/train.csv.gz: not a gzip file, although its name ends in .gz; looking for MNIST "
        "outside of work/"
    ]
    with pytest.raises(DataError, match="not a gzip file"):
        find_source("work")  # a path never falls back


def test_explicit_source_wins_over_environment_over_auto(elsewhere, tiny, idx, monkeypatch):
    monkeypatch.setenv("PADDLE_MNIST_DATA", str(idx))
    assert find_source().path == idx
    assert find_source("digits").name == "digits"
    assert find_source(str(tiny)).path == tiny
    monkeypatch.setenv("PADDLE_MNIST_DATA", "nope")
    with pytest.raises(DataError, match="nope: no such file"):
        find_source()


def test_path_that_does_not_exist_raises_and_never_falls_back(elsewhere):
    too_long = "x" * 300
    names = ("nope.json.gz", "nope/", "~nobody_of_this_name/x", too_long, f"{too_long}#1", "a\0b")
    for data in names:
        with pytest.raises(DataError, match="expected"):
            find_source(data)


def test_incomplete_source_raises_with_the_missing_parts(tmp_path, idx):
    for name in IDX_FILES[:3]:
        shutil.copy(idx / f"{name}.gz", tmp_path)
    for name in ("my_train.csv", "my_test.csv"):
        (tmp_path / name).write_bytes(csv_bytes(*tiny_splits({"train": 9})["train"]))
    for path, part in {
        tmp_path: "t10k-images-idx3-ubyte.gz, train-images-idx3-ubyte.gz",
        tmp_path / f"{IDX_FILES[0]}.gz": f"expected their folder, {tmp_path}",
        tmp_path / "my_test.csv": "my_train.csv",
    }.items():
        with pytest.raises(DataError) as caught:
            find_source(str(path))
        assert part in str(caught.value)


def test_download_of_other_checksums_is_refused_and_not_kept(elsewhere, monkeypatch, idx, lines):
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(idx))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("PADDLE_MNIST_URL", f"http://127.0.0.1:{server.server_port}/")
        assert find_source().name == "digits"
        server.shutdown()
    assert "train-images-idx3-ubyte.gz: MD5 " in lines()[-1]
    assert not list((elsewhere / "home/.cache/paddle/dataset/mnist").glob("*ubyte*"))


def test_selection_keeps_the_images_of_some_digits(tiny, tmp_path, monkeypatch):
    data, whole = open_data(f"{tiny}#1,3,5-6"), open_data(str(tiny))
    for mode in SPLIT_NAMES:
        kept = np.isin(whole[mode].labels, [1, 3, 5, 6])
        assert np.array_equal(data[mode].labels, whole[mode].labels[kept])
        assert np.array_equal(data[mode].images, whole[mode].images[kept])
    assert data.hash != whole.hash and open_data(data.path).hash == data.hash
    odd = tmp_path / "a#0-4"  # the name of a folder, as it is
    odd.mkdir()
    write_json(odd / "mnist.json.gz", tiny_splits())
    assert len(open_data(str(odd))["train"]) == SIZES["train"]
    monkeypatch.setenv("PADDLE_MNIST_DATA", f"{tiny}#0-4")
    assert set(open_data()["train"].labels.tolist()) == {0, 1, 2, 3, 4}


def test_selection_of_nothing_raises(tiny, tmp_path):
    with pytest.raises(DataError, match="no digits between"):
        open_data(f"{tiny}#4-0")
    few = write_json(tmp_path / "few.json.gz", tiny_splits({"train": 9, "valid": 1, "eval": 1}))
    with pytest.raises(DataError, match=r"in its .* split; choose digits"):
        open_data(f"{few}#0-4")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PADDLE_MNIST_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def entries(cache):
    return [path for path in cache.iterdir() if path.is_dir()]


def test_damaged_cache_is_built_again(cache, tiny):
    """And what is whole is memory-mapped."""
    before = open_data(str(tiny)).hash
    (folder,) = entries(cache)
    labels = np.load(folder / "valid_labels.npy")
    labels[-1] ^= 1
    for damage in (
        lambda: os.truncate(folder / "train_images.npy", 5000),
        lambda: np.save(folder / "valid_labels.npy", labels),
        lambda: (folder / "index.json").write_text('{"hash": "'),
        lambda: np.save(folder / "train_labels.npy", np.array([{}], object)),
    ):
        damage()
        data = open_data(str(tiny))
        assert data_hash(data.splits) == data.hash == before
        assert isinstance(open_data(str(tiny))["train"].images, np.memmap)
    assert {path.suffix for path in cache.iterdir()} == {"", ".lock"}  # no temporary files


def test_cache_of_a_file_that_has_changed_is_not_used(cache, tiny, tmp_path):
    path = write_json(tmp_path / "a.json.gz", tiny_splits(seed=1))
    before = open_data(str(path)).hash
    shutil.copy(tiny, path)
    after = open_data(str(path))
    assert before != after.hash == data_hash(after.splits) and len(entries(cache)) == 2


def test_cache_that_cannot_be_written_warns(tiny, monkeypatch, lines):
    monkeypatch.setenv("PADDLE_MNIST_CACHE", "/sys/paddle_mnist")  # not even root can write there
    assert len(open_data(str(tiny))["train"]) == SIZES["train"]
    assert "cannot write the cache in /sys" in lines()[-1]


def test_cache_built_by_several_processes_at_once_is_shared(cache, tiny):
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        opened = pool.map(open_data, [str(tiny)] * 3, chunksize=1)
    assert {data.hash for data in opened} == {open_data(str(tiny)).hash}
    assert len(entries(cache)) == 1
