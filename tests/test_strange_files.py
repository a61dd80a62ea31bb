"""Files from strangers: whatever lies where a run, an export or a cache has a file.

A command ends at once, with a documented exit code and at most one line of error, and loses nothing
of what else is there. What a run writes stays in its directory.
"""

import hashlib
import os
import re
import resource
import shutil
import signal
import stat
from pathlib import Path

import pytest

from paddle_mnist.apps.dashboard import log_folders
from paddle_mnist.errors import DataError
from paddle_mnist.nn import compiler

ROOM = 600 * 2**10  # KiB of memory

PICTURE = Path(__file__).parent / "pictures/7-07.jpg"
KINDS = {
    "a pipe": os.mkfifo,
    "a socket": lambda path: os.mknod(path, stat.S_IFSOCK | 0o600),
    "an endless device": lambda path: path.symlink_to("/dev/zero"),
    "a folder": Path.mkdir,
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "nested deeply": lambda path: path.write_bytes(b'{"a":' * 100_000),
    "nested less deeply": lambda path: path.write_bytes(b'{"a":' * 900 + b"1" + b"}" * 900),
    "a huge number": lambda path: path.write_bytes(b"1" + b"0" * 400),
    "huge numbers": lambda path: path.write_bytes(
        b'{"steps": 1%s, "step": 1%s, "tag": "a"}' % (b"0" * 400, b"0" * 400)
    ),
    "other types": lambda path: path.write_bytes(
        b'{"steps": [1], "step": [1], "metrics": 3, "weights": null, "files": [], "hash": 1}'
    ),
    "a list": lambda path: path.write_bytes(b"[]"),
    "empty": lambda path: path.write_bytes(b""),
    "cut off": None,
}
QUIET = ["--recipe", "default", "--epochs", "2", "--batch_size", "60", "--figures", "false"]
QUIET += ["--visualdl", "false", "--watch", "0", "--output", "run"]
LAST = "checkpoints/mnist_epoch1"
OF_RUN = ["config.yaml", "metrics.jsonl", "result.json", "train.log", "mnist.pdparams", ".lock"]
OF_RUN += [".lock.json", *(LAST + suffix for suffix in (".json", ".pdparams", ".pdopt"))]
OF_CACHE = ["index.json", "train_images.npy", "eval_labels.npy"]


def pairs(files):
    """Each file with each kind; all but pipes are slow, since there are many."""
    slow = pytest.mark.slow
    return [
        pytest.param(file, kind, marks=[] if kind == "a pipe" else [slow], id=f"{file} is {kind}")
        for file in files
        for kind in KINDS
    ]


def replace(path, kind):
    """Put a kind of thing in the place of a file."""
    contents = path.read_bytes() if path.exists() else b"text"
    path.unlink(missing_ok=True)
    if make := KINDS[kind]:
        make(path)
    else:
        path.write_bytes(contents[: len(contents) // 2])


@pytest.fixture
def at_once():
    """Raise in a call of the system that does not end; check that little memory was needed."""

    def stop(*_):
        raise TimeoutError("the command waits")

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    handler = signal.signal(signal.SIGALRM, stop)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, handler)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < ROOM


@pytest.fixture(scope="module")
def finished(tmp_path_factory, tool_in, tiny):
    """The folder of a finished run, and of its exported model."""
    folder = tmp_path_factory.mktemp("finished")
    tool = tool_in(folder)
    tool("train", *QUIET, "--data", tiny)
    tool("export_model", "--checkpoint", "run", "--output", "exported")
    return folder


def digests(folder):
    """The digests of the checkpoints and weights in a folder, with their paths."""
    found = {}
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix in (".pdparams", ".pdopt", ".json"):
            found.setdefault(hashlib.sha256(path.read_bytes()).hexdigest(), path)
    return found


def code_of(tool, *args):
    """Run a command; return its exit code, after checking that it says no more than it should."""
    done = tool(*args, expect=None)
    output = done.stdout + done.stderr
    assert done.returncode in (0, 2, 3, 4, 7), output
    assert "Traceback" not in output
    errors = re.findall("^error: .*", output, re.MULTILINE)
    assert len(errors) == (done.returncode != 0), output
    return done.returncode


@pytest.mark.parametrize(("file", "kind"), pairs(OF_RUN))
def test_command_ends_at_once_with_anything_in_the_place_of_a_file_of_a_run(
    file, kind, finished, tool, tiny, tmp_path, at_once
):
    run = Path(shutil.copytree(finished / "run", tmp_path / "run"))
    replace(run / file, kind)
    before = digests(run / "checkpoints")
    code_of(tool, "eval", "--checkpoint", "run", "--data", tiny)
    code_of(tool, "infer", "--model", "run", PICTURE)
    code_of(tool, "plot", "run", "--only", "curves.png")
    for verb in ("list", "verify"):
        code_of(tool, "checkpoints", verb, "run")
    assert digests(run / "checkpoints") == before  # they only read
    is_trained = code_of(tool, "train", *QUIET, "--data", tiny) == 0
    assert before.keys() <= digests(run / "checkpoints").keys()
    (run / "result.json").unlink(missing_ok=True) if is_trained else None
    is_resumed = is_trained and code_of(tool, "train", *QUIET, "--data", tiny) == 0
    if is_resumed:
        weights = "mnist.pdparams"
        assert (run / weights).read_bytes() == (finished / "run" / weights).read_bytes()


@pytest.mark.parametrize(
    ("file", "kind"), pairs(["about.json", "inference.json", "inference.pdiparams"])
)
def test_infer_ends_at_once_with_anything_in_the_place_of_a_file_of_an_export(
    file, kind, finished, tool, tmp_path, at_once
):
    shutil.copytree(finished / "exported", tmp_path / "exported")
    if not (tmp_path / "exported" / file).exists():
        pytest.skip("Paddle 2 writes inference.pdmodel")
    replace(tmp_path / "exported" / file, kind)
    assert code_of(tool, "infer", "--model", "exported", PICTURE) == 4


@pytest.mark.parametrize(("file", "kind"), pairs(OF_CACHE))
def test_cache_of_images_is_built_again_with_anything_in_the_place_of_its_files(
    file, kind, finished, tool, tiny, tmp_path, at_once, monkeypatch
):
    monkeypatch.setenv("PADDLE_MNIST_CACHE", str(tmp_path / "cache"))
    evaluate = ["eval", "--checkpoint", finished / "run", "--data", tiny, "--json"]
    expected = tool(*evaluate).stdout
    (folder,) = (path for path in (tmp_path / "cache").glob("v*") if path.is_dir())
    replace(folder / file, kind)
    damaged = tool(*evaluate)
    assert damaged.stdout == expected and f"cache {folder} is damaged" in damaged.stderr
    assert tool(*evaluate).stderr.count("damaged") == 0  # it was built again


@pytest.mark.parametrize("kind", KINDS)
def test_machine_code_is_compiled_again_with_anything_in_its_place(kind, tmp_path, at_once):
    path = tmp_path / "code.bin"
    path.write_bytes(hashlib.sha256(b"code").digest() + b"code")
    replace(path, kind)
    assert compiler._File(path).load_overload(None, None) is None


@pytest.mark.parametrize("kind", ["a pipe", "a socket", "an endless device"])
def test_dashboard_refuses_logs_that_are_not_files(kind, run_of_command, tmp_path):
    run = Path(shutil.copytree(run_of_command, tmp_path / "run"))
    log = next((run / "vdl").rglob("vdlrecords*"))
    replace(log, kind)
    with pytest.raises(DataError, match=f"{log.name}: not a regular file"):
        log_folders([run])


# ------------------------------------------------------------------ links out of a run

WRITTEN = ["train.log", "metrics.jsonl", "config.yaml", "result.json", "mnist.pdparams", ".lock"]
WRITTEN += [".lock.json", ".mirror.lock", "profile/trace.json", "figures/curves.png"]
WRITTEN += [f"{LAST}{suffix}" for suffix in (".json", ".pdparams", ".pdopt")]
FOLDERS = ["figures", "profile", "checkpoints/quarantine"]


@pytest.mark.parametrize("name", [*WRITTEN, *FOLDERS])
def test_train_writes_nothing_through_a_link_out_of_the_run(name, tool, tiny, tmp_path):
    """In a run directory from somebody else, each file and folder that is written is a link."""
    outside, link = tmp_path / "outside", tmp_path / "run" / name
    outside.mkdir()
    (outside / "mine").write_text("# mine")
    link.parent.mkdir(parents=True)
    link.symlink_to(outside if name in FOLDERS else outside / "mine")
    options = [*QUIET, "--data", tiny, "--mirror", "copy"]
    if "figures" in name:
        options += ["--figures", "true"]
    if "profile" in name:
        options += ["--profile", "2", "--batch_size", "20"]  # there are enough steps for it
    code_of(tool, "train", *options)
    code_of(tool, "plot", "run", "--only", "curves.png")
    assert [path.name for path in outside.iterdir()] == ["mine"]
    assert (outside / "mine").read_text() == "# mine"


def test_train_says_where_linked_checkpoints_lead_and_writes_them_there(tool, tiny, tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run/checkpoints").symlink_to(tmp_path / "disk")
    said = f"run/checkpoints is a link: its files are written to {(tmp_path / 'disk').resolve()}"
    assert said in tool("train", *QUIET, "--data", tiny).stdout
    assert (tmp_path / "disk" / Path(LAST).name).with_suffix(".json").exists()


def test_result_with_a_path_out_of_the_run_is_not_followed(finished, tool, tiny, tmp_path):
    run = Path(shutil.copytree(finished / "run", tmp_path / "run"))
    text = (run / "result.json").read_text()
    (run / "result.json").write_text(text.replace('"mnist.pdparams"', '"../secret.pdparams"'))
    output = tool("train", *QUIET, "--data", tiny).stdout
    assert "result.json is damaged" in output and "secret" not in (run / "result.json").read_text()


def test_controls_in_names_and_files_are_escaped(finished, tool, tiny, tmp_path):
    """They could command the terminal that shows them."""
    run = Path(shutil.copytree(finished / "run", tmp_path / "ru\x1b[2Jn"))
    (run / "result.json").write_text("{}")
    output = tool("train", *QUIET, "--data", tiny, "--output", run.name).stdout
    (run / f"{LAST}.pdopt").write_text("")
    errors = tool("checkpoints", "verify", run.name, expect=4)
    for text in (output, (run / "train.log").read_text(), errors.stdout, errors.stderr):
        assert "ru\\x1b[2Jn" in text and "\x1b" not in text
