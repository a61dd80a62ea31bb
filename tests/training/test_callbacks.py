"""Callbacks: what they are asked, in which order, and those that anybody could have written."""

import collections
import io
import json
import re
import sys

import pytest
from conftest import ROOT
from fit_rows import SAMPLES, ProgramError, StopsAt, arguments, bits, stop, train

from paddle_mnist import (
    Callback,
    Console,
    EarlyStopping,
    Figures,
    PrintLayers,
    Profile,
    Training,
    VisualDL,
    Watch,
    fit,
    is_rehearsal,
)
from paddle_mnist.plots.history import read_history, series

ROW = "SGD with clipping"  # five steps an epoch


class Notes(Callback):
    """Notes its calls in a list that callbacks share, but not those of the rehearsal."""

    def __init__(self, name, calls):
        self.name, self.calls = name, calls

    def __getattribute__(self, name):
        found = super().__getattribute__(name)
        if name not in HOOKS:
            return found

        def noted(*arguments):
            if not is_rehearsal():
                self.calls.append((self.name, name))
            return found(*arguments)

        return noted


ATTRIBUTES = ("ends_with_best", "log_every", "options")
HOOKS = [name for name in dir(Callback) if not name.startswith("_") and name not in ATTRIBUTES]
IN_A_RUN = """
    config_entries check_job run_opened manifest_entries before_training before_first_step profiler
    should_stop on_epoch_start after_step write after_epoch after_last_step final_metrics
    result_entries summary after_training close
""".split()


def by_name(calls):
    """Return what each of the callbacks was called for, by its name."""
    named = collections.defaultdict(list)
    for name, hook in calls:
        named[name].append(hook)
    return named


def test_callbacks_page_lists_the_methods_in_the_order_of_their_calls():
    text = (ROOT / "docs/en/callbacks.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", text, re.M) == IN_A_RUN
    others = {*HOOKS} - {*IN_A_RUN}
    assert others and all(f"`{name}`" in text for name in others)


def test_callbacks_are_called_in_the_order_given(tmp_path):
    calls = []
    given = [Notes("a", calls), EarlyStopping(9), Notes("b", calls), Notes("c", calls)]
    train(ROW, tmp_path, epochs=2, callbacks=given)
    assert [name for name, _ in calls] == [*"abc"] * (len(calls) // 3)
    named = by_name(calls)
    assert named["a"] == named["b"] == named["c"]
    counts = collections.Counter(named["a"])
    assert {*counts} == {*IN_A_RUN} == {*HOOKS} - {"has_result", "already_finished"}
    # five steps in each of two epochs; a line of the log after every third, and an evaluation
    assert (counts.pop("after_step"), counts.pop("after_epoch"), counts.pop("write")) == (10, 2, 7)
    assert (counts.pop("should_stop"), counts.pop("summary")) == (2, 2)  # the board's, too
    assert counts.pop("on_epoch_start") == 2
    assert {*counts.values()} == {1}
    assert list(dict.fromkeys(named["a"])) == IN_A_RUN
    calls.clear()
    train(ROW, tmp_path, epochs=2, callbacks=given)
    assert by_name(calls)["a"][-4:] == ["has_result", "summary", "already_finished", "close"]


class Reads(Callback):
    """Keeps what it sees of its training, by the name of the method that is called."""

    def __init__(self):
        self.seen = {}

    def see(self, name, training):
        state = training.state
        self.seen[name] = state and (state.epoch, state.step, state.samples)

    def run_opened(self, training):
        self.see("opened", training)

    def before_first_step(self, training):
        self.see("first", training)

    def after_last_step(self, training):
        self.see("last", training)
        self.training = training


def test_callback_sees_its_training(tmp_path):
    reader = Reads()
    train(ROW, tmp_path, epochs=2, callbacks=[reader], must_match={"version": 3})
    assert reader.seen == {"opened": None, "first": (0, 0, 0), "last": (2, 10, 2 * SAMPLES)}
    training = reader.training
    assert isinstance(training, Training) and training.steps == 10
    assert training.run.path == tmp_path and training.run.metrics.exists()
    assert (training.world.rank, training.world.size) == (0, 1)
    names = {parameter.name for parameter in training.model.parameters()}
    assert {one.name for one in training.optimizer._parameter_list} == names
    chosen = training.hyperparameters
    assert chosen.items() >= {"epochs": 2, "version": 3, "optimizer.class": "SGD"}.items()
    assert json.loads(json.dumps(chosen)) == chosen
    # nor the net's shapes, the data of the evaluation, and the names of files
    assert not {name.partition(".")[0] for name in chosen} & {"parameters", "valid", "name"}


class Says(Callback):
    def __init__(self, answer):
        self.answer, self.asked = answer, []

    def should_stop(self, view):
        self.asked.append(view.state.epoch)
        return self.answer


def test_callbacks_are_all_asked_whether_to_stop(tmp_path):
    """Before each epoch, the first one too."""
    callbacks = [Says(False), Says(True), Says(False)]
    result = train(ROW, tmp_path, callbacks=callbacks)
    assert (result.stopped, result.steps) == ("early", 0)
    assert [one.asked for one in callbacks] == [[0]] * 3


class Closes(Callback):
    def __init__(self, closed, fails=False):
        self.closed, self.fails = closed, fails

    def close(self):
        self.closed.append(self)
        if self.fails:
            raise ProgramError("close")


class FailsIn(Callback):
    """Raises an error in one of its methods."""

    def __init__(self, hook, error):
        def fail(*arguments):
            if not is_rehearsal():
                raise error

        setattr(self, hook, fail)


@pytest.mark.parametrize(
    ("hook", "error"),
    [
        ("run_opened", ProgramError("x")),
        ("after_step", KeyboardInterrupt()),
        ("should_stop", ProgramError("x")),
        ("after_training", ProgramError("x")),
    ],
)
def test_callbacks_are_all_closed_when_one_fails(hook, error, tmp_path, lines):
    closed = []
    callbacks = [Closes(closed), Closes(closed, fails=True), FailsIn(hook, error), Closes(closed)]
    with pytest.raises(type(error)) as raised:  # not the error of `close`, which is logged
        train(ROW, tmp_path, callbacks=callbacks)
    assert raised.value is error
    assert "Closes.close: ProgramError: close" in lines()
    opened = callbacks[: 2 if hook == "run_opened" else 4]
    assert closed == [one for one in opened if isinstance(one, Closes)]


def test_callbacks_are_all_closed_when_close_fails_and_its_error_is_raised(tmp_path, lines):
    closed = []
    callbacks = [Closes(closed, fails=number < 2) for number in range(3)]
    with pytest.raises(ProgramError, match="close"):
        train(ROW, tmp_path, callbacks=callbacks)
    assert closed == callbacks
    assert lines().count("Closes.close: ProgramError: close") == 1  # the other one is raised


def test_rehearsal_leaves_no_trace_in_the_callbacks_of_the_package(tmp_path, lines):
    """Each step is recorded once, each batch printed once, and the callbacks may train again."""
    callbacks = [
        Watch(every=5),
        Profile(steps=2),
        PrintLayers(shapes=[0], contents=[9]),
        Console(every=5),
        VisualDL(["scalars"]),
        Figures(False),
    ]
    values = {**arguments(ROW, tmp_path / "run", epochs=4), "callbacks": callbacks}
    assert fit(**values).stopped == "finished"
    run = tmp_path / "run"
    history = read_history(run / "metrics.jsonl")
    tags = {record["tag"] for record in history if record["tag"].startswith("watch/")}
    assert tags
    for tag in tags:  # a bias that begins with 0 has no ratio in the first step
        steps, _ = series(history, tag)
        assert steps[-4:] == [5, 10, 15, 20] and steps[:-4] in ([], [1]), tag
    assert series(history, "train/loss")[0] == [5, 10, 15, 20]
    log = "\n".join(lines())
    assert all(log.count(f"step {step}/20 lr ") == 1 for step in (5, 10, 15, 20))
    printed = [line for line in lines() if "shape" in line.lower() and "[8, 6]" in line]
    assert len(printed) == 1, printed
    assert list((run / "profile").iterdir())
    assert not (run / "figures").exists()
    again = fit(**{**values, "output": tmp_path / "again"})
    assert bits(again)["weights"] == bits(fit(**values))["weights"]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_bar_of_a_resumed_training_counts_the_steps_before(tmp_path, monkeypatch):
    with pytest.raises(ProgramError):
        train(ROW, tmp_path, callbacks=[StopsAt(7, stop)])
    monkeypatch.setattr(sys, "stderr", Terminal())
    fit(**{**arguments(ROW, tmp_path), "callbacks": [Console()]})
    assert re.findall(r"(\d+)/10", sys.stderr.getvalue())[-1] == "10"  # of three steps


def test_callback_with_the_lowest_log_every_gets_its_lines(tmp_path):
    class Lines(Callback):
        log_every = 2

        def __init__(self):
            self.steps = []

        def write(self, state, values):
            self.steps += [state.step] * ("train/loss" in values)

    lines = Lines()
    train(ROW, tmp_path, callbacks=[lines], log_every=4)
    assert lines.steps == [2, 4, 5, 6, 8, 10]  # five steps in each of two epochs
    assert series(read_history(tmp_path / "metrics.jsonl"), "train/loss")[0] == lines.steps


def test_callbacks_add_to_config_manifests_history_and_result(tmp_path):
    class Adds(Callback):
        def config_entries(self):
            return {"mine": [1, 2]}

        def manifest_entries(self):
            return {"of_mine": "x"}

        def after_epoch(self, view):
            return {"mine/step": view.step}

        def final_metrics(self, training):
            return {"test/double": 2 * training.state.metrics["valid/loss"]}

        def result_entries(self, training, result):
            return {"made": result.steps}

        def has_result(self, entries):
            return "made" in entries

        def summary(self, training, result):
            return f"mine after {result.steps}"

    options = {"callbacks": [Adds()], "figures": True}
    result = train(ROW, tmp_path, **options)
    assert "mine:\n- 1\n- 2\n" in (tmp_path / "config.yaml").read_text()
    manifest = json.loads(result.checkpoint.with_suffix(".json").read_text())
    assert manifest["of_mine"] == "x"
    assert series(read_history(tmp_path / "metrics.jsonl"), "mine/step") == ([5, 10], [5, 10])
    assert result.metrics["test/double"] == 2 * result.metrics["valid/loss"]
    values = json.loads((tmp_path / "result.json").read_text())
    assert values.pop("made") == 10
    (tmp_path / "result.json").write_text(json.dumps(values))
    assert train(ROW, tmp_path, **options).stopped == "finished"  # evaluated again
    (tmp_path / "figures/curves.png").unlink()
    assert train(ROW, tmp_path, figures=True).stopped == "already finished"
    assert (tmp_path / "figures/curves.png").exists()
