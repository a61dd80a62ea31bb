"""What a resumed run shows on VisualDL's dashboard: the records of an unbroken one, each once."""

import contextlib
import shutil

import numpy as np
import pytest
from fit_rows import EndsAfterEpoch, ProgramError, StopsAt, stop, train
from small_nets import perceptron
from visualdl import LogReader

from paddle_mnist import Callback, VisualDL, is_rehearsal
from paddle_mnist.metrics.records import RecordFile, ResumePoint, resumed_records, scalar
from paddle_mnist.training.bundled import PAGES

RANDOM = np.random.RandomState(1)
LABELS = np.arange(60) % 10
PROBABILITIES = RANDOM.dirichlet(np.ones(10), 60).astype("float32")
FEATURES = RANDOM.rand(60, 8)
ABOUT = {"about this run"}  # names the checkpoint that a start resumes from


class Pages(Callback):
    """Writes images at each start of a run, other pages after each epoch and at the end."""

    def before_training(self, training):
        self.training = training
        VisualDL.board(training).images("inputs", np.full((3, 8, 8), 100, np.uint8))

    def after_epoch(self, view):
        if is_rehearsal():
            return
        board, epoch = VisualDL.board(self.training), view.state.epoch
        board.text("notes", f"after epoch {epoch}", view.step)
        board.figures({"grey": np.full((20, 20, 3), epoch, np.uint8)}, view.step)
        board.curves(LABELS, PROBABILITIES, view.step)
        board.graph(perceptron, [None, 6], view.step)

    def after_training(self, training, result):
        board = VisualDL.board(training)
        board.images("mistakes", np.full((2, 8, 8), result.epochs, np.uint8))
        board.embeddings(FEATURES, LABELS)


def train_pages(run, *stops, finishes=True, **options):
    """Train five steps an epoch, ended at some points as by `kill -9`: they are not saved.

    stops: steps, or callbacks that raise.
    """
    options = {"save_every_steps": 3, "save_on_exception": False, "visualdl": PAGES, **options}
    for end in stops:
        callback = StopsAt(end, stop) if isinstance(end, int) else end
        with pytest.raises(ProgramError):
            train("dropout", run, callbacks=[Pages(), callback], **options)
    if finishes:
        train("dropout", run, callbacks=[Pages()], **options)


def pages_of(run):
    """Return the steps and the records of each tag, without times and what a clock measures."""
    shown = {}
    (*paths,) = (run / "vdl").rglob("vdlrecords*")
    assert sorted(path.parent.name for path in paths) == ["train", "valid"], paths
    assert len([*(run / "vdl").rglob("vdlgraph*")]) <= 1
    for path in paths:
        reader = LogReader(file_path=str(path))
        for kind, tags in reader.get_tags().items():
            for tag in tags:
                values = reader.get_data(kind, tag)
                steps = [value.id for value in values]
                for value in values:
                    value.ClearField("timestamp")
                texts = [str(value).replace(str(run), "RUN") for value in values]
                shown[path.parent.name, kind, tag.replace("%", "/")] = steps, texts
    return shown


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    run = tmp_path_factory.mktemp("unbroken") / "run"
    train_pages(run, epochs=4)
    return pages_of(run)


def differing(shown, expected):
    """Return the tags whose records differ; of what a clock measures, whose steps do."""
    assert shown.keys() == expected.keys()
    names = {name for name in shown if shown[name][0] != expected[name][0]}
    timed = ("speed/", "about this run")
    names |= {n for n in shown if shown[n] != expected[n] and not n[2].startswith(timed)}
    return {tag for _, _, tag in names}


def test_run_that_is_killed_often_has_the_records_of_an_unbroken_one(tmp_path, unbroken):
    """Step 15 is saved before the evaluation of its epoch, which is then written again."""
    run = tmp_path / "run"
    train_pages(run, 2, 8, 8, EndsAfterEpoch(3), 16, 19, epochs=4)
    shown = pages_of(run)
    kinds = "scalar histogram image text hyper_parameters pr_curve roc_curve embeddings meta_data"
    assert {kind for _, kind, _ in shown} == {*kinds.split()}
    assert shown["train", "scalar", "loss"][0] == [3, 5, 6, 9, 10, 12, 15, 18, 20]
    assert shown["valid", "scalar", "loss"][0] == [5, 10, 15, 20]
    assert differing(shown, unbroken) <= ABOUT


def test_longer_run_shows_the_result_of_its_new_end_alone(tmp_path, unbroken):
    run = tmp_path / "run"
    train_pages(run, epochs=2)
    train_pages(run, 13, epochs=4, override="epochs")
    shown = pages_of(run)
    histograms = {name: shown[name] for name in shown if name[1] == "histogram"}  # of fewer steps
    assert differing(shown, {**unbroken, **histograms}) <= {"configuration", *ABOUT}


def test_folders_of_version_1_0_become_one(tmp_path, unbroken):
    """It made one at each start, where the steps since the checkpoint are trained again."""
    run, later = tmp_path / "run", tmp_path / "later"
    train_pages(run, 8, finishes=False, epochs=4)
    shutil.copytree(run, later)
    train_pages(later, 14, finishes=False, epochs=4)
    shutil.copytree(later / "vdl/001", run / "vdl/002")
    shutil.copytree(later / "vdl/001", run / "vdl/mine")  # which a callback has written
    shutil.rmtree(run / "checkpoints")
    for name in ("checkpoints", "metrics.jsonl"):
        shutil.move(later / name, run / name)
    train_pages(run, epochs=4)
    assert sorted(path.name for path in (run / "vdl").iterdir()) == ["001", "mine"]
    shutil.rmtree(run / "vdl/mine")
    assert differing(pages_of(run), unbroken) <= {"configuration", *ABOUT}  # another output


def test_lost_and_damaged_scalars_come_from_the_history(tmp_path, unbroken, lines):
    run = tmp_path / "run"
    train_pages(run, 13, finishes=False, epochs=4)
    shutil.rmtree(run / "vdl/001/valid")
    (path,) = (run / "vdl/001/train").iterdir()
    path.write_bytes(path.read_bytes()[:-7])
    train_pages(run, epochs=4)
    assert [line for line in lines() if "dropping the records from byte" in line]
    shown = pages_of(run)
    for split in ("train", "valid"):
        for name in ("loss", "acc"):
            assert shown[split, "scalar", name] == unbroken[split, "scalar", name]


def test_run_that_continues_from_a_checkpoint_of_another_has_its_curves(tmp_path, unbroken):
    source, run = tmp_path / "source", tmp_path / "run"
    train_pages(source, epochs=4, keep_epochs=True)
    before = {path: path.read_bytes() for path in (source / "vdl").rglob("*.log")}
    train_pages(run, epochs=4, keep_epochs=True, resume=str(source / "checkpoints/model_epoch1"))
    shown = pages_of(run)
    assert shown["valid", "scalar", "loss"] == unbroken["valid", "scalar", "loss"]
    assert before == {path: path.read_bytes() for path in (source / "vdl").rglob("*.log")}


def test_scalars_of_the_step_that_are_written_again_are_left_out(tmp_path):
    """A checkpoint that a thread writes is saved after the evaluation that follows it."""
    with contextlib.closing(RecordFile(tmp_path)) as file:
        for name, step in (("lr", 3), ("loss", 3), ("acc", 3), ("loss", 5)):
            file.add(scalar(name, 0.5, step))
    rows = [{"step": 3, "tag": "train/lr", "value": 0.5, "time": 1.0}]
    point = ResumePoint(3, 2e9, rows, {"train/acc"})
    names = {"train/lr": "lr", "train/acc": "acc"}
    records = resumed_records([tmp_path], point, names).values()
    assert [record.values[0].tag for record in records][1:] == ["lr", "loss"]
