"""A run that is looked into with everything on: figures, pages, prints, profile."""

import json
import os
import re
import shlex
import shutil
import xml.etree.ElementTree
from errno import ENOSPC

import pytest
from conftest import ROOT
from faulty_disk import fail, takes_space, watched
from PIL import Image

from paddle_mnist import TrainConfig, train_and_evaluate
from paddle_mnist.checkpoint.run import RunDirectory
from paddle_mnist.errors import OutputError
from paddle_mnist.mnist.figures import DIGIT_FIGURES
from paddle_mnist.plots.figure import COMPARED_FILES, files_of

FILES = files_of(DIGIT_FIGURES)
PLAIN = ["--recipe", "default", "--epochs", "1", "--batch_size", "32", "--visualdl", "false"]


def drawn(folder):
    """The names of the pictures in a folder, each seen to be a whole PNG and SVG."""
    for path in folder.iterdir():
        if path.suffix == ".png":
            with Image.open(path) as image:
                image.load()
                assert 1200 <= image.width <= 2000  # twice what a README shows
        else:
            assert xml.etree.ElementTree.parse(path).getroot().tag.endswith("svg")
    names = {path.stem for path in folder.iterdir()}
    assert {path.name for path in folder.iterdir()} == {
        f"{name}.{kind}" for name in names for kind in ("png", "svg")
    }
    return names


def test_train_draws_its_figures(run_of_command):
    assert drawn(run_of_command / "figures") == set(DIGIT_FIGURES)


def test_train_prints_and_measures_on_request(tool, tiny, tmp_path):
    options = "--watch 5 --visualdl text --figures false --check_shape --check_content 3,12"
    options = [*PLAIN, *options.split(), "--epochs", 2, "--profile", 4, "--data", tiny]
    printed = tool("train", *options, "--output", "run", MY_TOKEN="sesame-open").stdout
    assert re.findall(r"^batch (\d+):$", printed, re.M) == ["0", "3", "12"]
    assert printed.count("outputs7_shape: [32, 10] (fc)") == 1
    assert printed.count("conv1 params -- kernel weights") == 2
    assert "conv1 params -- kernel weights" in (tmp_path / "run/train.log").read_text()
    assert not (tmp_path / "run/figures").exists()
    for path in (tmp_path / "run").rglob("*"):  # nothing of the environment
        assert path.is_dir() or b"sesame-open" not in path.read_bytes(), path

    folder = tmp_path / "run/profile"
    rows = re.findall(r"\| ([a-z ]+) \| ([\d.]+) \| [\d.]+% \|", (folder / "steps.md").read_text())
    times = {name: float(ms) for name, ms in rows}
    whole = times.pop("a step")
    parts = "reader forward backward exchange optimizer logging saving".split()
    assert list(times) == [*parts, "between them"]
    assert sum(times.values()) == pytest.approx(whole, abs=0.01)
    trace = json.loads((folder / "trace.json").read_text())["traceEvents"]
    named = " ".join(event.get("name", "") for event in trace)
    assert all(part in named for part in ("reader", "forward", "backward", "momentum"))
    assert "momentum" in (folder / "operators.txt").read_text()


def test_batch_that_a_short_training_does_not_reach(tool, tiny, tmp_path):
    options = [*PLAIN, "--figures", "false", "--data", tiny, "--output", "run"]
    options += ["--profile", "--check_shape", "10", "--check_content", "--grad_shards", 2]
    printed = tool("train", *options).stdout
    assert printed.count("conv1 params -- kernel weights") == 1  # of the first shard
    assert "no batch 10 in 10 batches; printing in the last, 9" in printed
    assert "no batch 401 in 10 batches" in printed and "there is no profile" in printed
    assert printed.count("batch 9:") == printed.count("inputs_shape: ") == 1


@pytest.mark.slow
def test_figures_lost_to_a_full_disk_are_drawn_by_the_same_command(tiny, tmp_path):
    run = RunDirectory(tmp_path / "run")
    config = TrainConfig(
        data=str(tiny), epochs=1, batch_size=32, watch=100, visualdl=False, output=str(run.path)
    )
    created = []

    def full_from_the_fifth_file_on(operation):
        if operation.flags & os.O_CREAT:
            created.append(operation.path)
        if len(created) == 5 and takes_space(operation):
            fail(ENOSPC)(operation)

    full = watched(run.figures, full_from_the_fifth_file_on)
    with full, pytest.raises(OutputError, match="No space left on device"):
        train_and_evaluate(config)
    before = {path.name: path.stat().st_ino for path in run.figures.glob("*")}
    assert len(before) == 4
    run.figures.mkdir(exist_ok=True)
    (run.figures / ".curves.png.0123.part").touch()  # as a run that is killed here leaves it

    train_and_evaluate(config)
    after = {path.name: path.stat().st_ino for path in run.figures.iterdir()}
    assert drawn(run.figures) == set(DIGIT_FIGURES)
    assert before.items() <= after.items()  # what was there is left alone
    missing = ", ".join(name for name in FILES if name in after and name not in before)
    assert f"drawing what is missing in {run.figures}: {missing}\n" in run.log.read_text()

    train_and_evaluate(config)
    assert run.log.read_text().count("drawing what is missing") == 1


def test_plot_of_several_runs_compares_them(tool, tmp_path, run_of_command):
    for name in ("one", "same"):
        shutil.copytree(run_of_command, tmp_path / name)
    done = tool("plot", "one", "same", "--output", "both", "--only", "compare.svg")
    assert done.stdout == "both\n"
    assert [path.name for path in (tmp_path / "both").iterdir()] == ["compare.svg"]
    svg = (tmp_path / "both/compare.svg").read_text()
    assert svg.count("largest difference: 0 ") == svg.count("largest difference") == 2
    for runs, file, message in (
        (["one"], "compare.svg", "compare.svg compares runs; expected two or more"),
        (["one", "same"], "curves.svg", "curves.svg is drawn of one run; expected one RUN, or com"),
        (["one", "same"], "compar.svg", "did you mean 'compare.svg'"),
    ):
        assert message in tool("plot", *runs, "--only", file, expect=2).stderr


def test_plot_only_draws_the_chosen_files(tool, tmp_path, run_of_command):
    """The command of the page does, too, in a run that has no figures."""
    page = (ROOT / "docs/en/looking-inside.md").read_text()
    command = re.search(r"`paddle-mnist plot (.+?)`", page)[1]
    folder = tmp_path / "work/output/digits"
    shutil.copytree(run_of_command, folder, ignore=shutil.ignore_patterns("figures", "vdl"))
    assert tool("plot", *shlex.split(command)).stdout == "work/output/digits/figures\n"
    names = {path.name for path in (folder / "figures").iterdir()}
    assert names == {"curves.png", "feature_maps.png", "mistakes.png"}
    tool("plot", run_of_command, "--output", "some", "--only", "curves.png,kernels.svg")
    assert {path.name for path in (tmp_path / "some").iterdir()} == {"curves.png", "kernels.svg"}
    assert "no metrics.jsonl" in tool("plot", tmp_path, expect=3).stderr
    files = {path.name for path in (run_of_command / "figures").iterdir()}
    listed = set(re.findall(r"\w+\.(?:png|svg)", tool("plot", "--help").stdout))
    assert files == set(FILES) and listed == files | set(COMPARED_FILES)
