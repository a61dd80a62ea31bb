"""Callbacks: when they are called, what they add, and how they stop a run and resume."""

import collections
import copy
import errno
import json
import os
import re
import shutil

import paddle
import pytest
from conftest import ROOT
from faulty_disk import fail, takes_space, watched
from fit_rows import (
    SAMPLES,
    Points,
    ProgramError,
    StopsAt,
    arguments,
    bits,
    ever_worse,
    history,
    stop,
    train,
)
from paddle.nn import functional as F

from paddle_mnist import (
    Callback,
    Console,
    EarlyStopping,
    Figures,
    PrintLayers,
    Profile,
    VisualDL,
    Watch,
    fit,
    is_rehearsal,
)
from paddle_mnist.errors import CheckpointError, ConfigError
from paddle_mnist.plots.history import read_history

ROW = "SGD with clipping"  # five steps an epoch
ATTRIBUTES = ("ends_with_best", "log_every", "options")
HOOKS = [name for name in dir(Callback) if not name.startswith("_") and name not in ATTRIBUTES]
IN_A_RUN = """
    config_entries check_training run_opened before_training manifest_entries
    before_first_step profiler should_stop on_epoch_start recorded_layers after_step write
    after_epoch after_last_step final_metrics result_entries summary after_training close
""".split()


class Foreign(Callback):
    """Also has values of such names, which no method calls."""

    on_gpu = False

    def __init__(self):
        self.on_linux = True

    @property
    def on_time(self):
        raise AssertionError("a property is read")

    def on_epoch_end(self, epoch, logs=None):
        """As in Keras."""


def test_fit_logs_a_method_of_a_callback_that_it_never_calls(tmp_path, lines):
    train(ROW, tmp_path, callbacks=[Foreign()])
    found = [line for line in lines() if "never calls" in line]
    assert found == [
        "Foreign has on_epoch_end, which fit never calls; expected methods of "
        "paddle_mnist.Callback, such as after_step and after_epoch"
    ]


def test_callbacks_page_lists_the_methods_in_the_order_of_their_calls():
    page = (ROOT / "docs/en/looking-inside.md").read_text()
    text = page.partition("### When each method is called")[2]
    listed = "".join(re.findall(r"^(?:\d\.|  ) .*\n", text, re.M)[:6])
    assert re.findall(r"`(\w+)`", listed.replace("`fit`", "")) == IN_A_RUN
    others = {*HOOKS} - {*IN_A_RUN}
    assert others and all(f"`{name}`" in text for name in others)


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


def test_callbacks_are_called_in_the_order_given(tmp_path):
    calls = []
    given = [Notes("a", calls), EarlyStopping(9), Notes("b", calls)]
    train(ROW, tmp_path, epochs=2, callbacks=given)
    assert [name for name, _ in calls] == [*"ab"] * (len(calls) // 2)
    hooks = [hook for name, hook in calls if name == "a"]
    assert list(dict.fromkeys(hooks)) == IN_A_RUN
    assert {*IN_A_RUN} == {*HOOKS} - {"has_result", "already_finished"}
    # five steps in each of two epochs; a line of the log after every third, and an evaluation
    expected = {
        "recorded_layers": 10,
        "after_step": 10,
        "after_epoch": 2,
        "write": 7,
        "on_epoch_start": 2,
    }
    expected |= {"should_stop": 2, "summary": 2}
    assert collections.Counter(hooks) == {**dict.fromkeys(IN_A_RUN, 1), **expected}
    calls.clear()
    train(ROW, tmp_path, epochs=2, callbacks=given)
    hooks = [hook for name, hook in calls if name == "a"]
    assert hooks[-4:] == ["has_result", "summary", "already_finished", "close"]


def test_callback_sees_its_training(tmp_path):
    class Reads(Callback):
        def after_last_step(self, training):
            self.training = training

    reader = Reads()
    train(ROW, tmp_path, epochs=2, callbacks=[reader], must_match={"version": 3})
    training, state = reader.training, reader.training.state
    assert (state.epoch, state.step, state.samples) == (2, 10, 2 * SAMPLES)
    assert training.steps == 10 and training.world.size == 1
    assert training.run.path == tmp_path and training.run.metrics.exists()
    names = {parameter.name for parameter in training.model.parameters()}
    assert {parameter.name for parameter in training.optimizer._parameter_list} == names
    chosen = training.hyperparameters
    assert chosen.items() >= {"epochs": 2, "version": 3, "optimizer.class": "SGD"}.items()
    assert json.loads(json.dumps(chosen)) == chosen


class Closes(Callback):
    def __init__(self, closed, fails=False):
        self.closed, self.fails = closed, fails

    def close(self):
        self.closed.append(self)
        if self.fails:
            raise ProgramError("close")


@pytest.mark.parametrize("hook", ["run_opened", "after_step", "after_training", None])
def test_callbacks_are_all_closed_when_one_fails_and_its_error_is_raised(hook, tmp_path, lines):
    """The error of a `close` is raised if there is no other; it is logged otherwise."""
    error = KeyboardInterrupt()

    def fail(*arguments):
        if not is_rehearsal():
            raise error

    failing = Callback()
    if hook:
        setattr(failing, hook, fail)
    closed = []
    callbacks = [Closes(closed), Closes(closed, fails=True), failing, Closes(closed)]
    with pytest.raises(KeyboardInterrupt if hook else ProgramError):
        train(ROW, tmp_path, callbacks=callbacks)
    assert ("Closes.close: ProgramError: close" in lines()) == (hook is not None)
    opened = callbacks[: 2 if hook == "run_opened" else 4]
    assert closed == [callback for callback in opened if isinstance(callback, Closes)]


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
    run = tmp_path / "run"
    values = {**arguments(ROW, run, epochs=4), "callbacks": callbacks}
    first = fit(**values)
    tags = {record["tag"] for record in read_history(run / "metrics.jsonl")}
    watched = [tag for tag in tags if tag.startswith("watch/")]
    assert watched
    for tag in watched:  # a bias that begins with 0 has no ratio in the first step
        steps, _ = history(run, tag)
        assert steps[-4:] == [5, 10, 15, 20] and steps[:-4] in ([], [1]), tag
    assert history(run, "train/loss")[0] == [5, 10, 15, 20]
    log = "\n".join(lines())
    assert all(log.count(f"step {step}/20 lr ") == 1 for step in (5, 10, 15, 20))
    assert len([line for line in lines() if "shape" in line and "[8, 6]" in line]) == 1
    assert list((run / "profile").iterdir())
    assert not (run / "figures").exists()
    again = fit(**{**values, "output": tmp_path / "again"})
    assert bits(again)["weights"] == bits(first)["weights"]


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

    result = train(ROW, tmp_path, callbacks=[Adds()])
    assert "mine:\n- 1\n- 2\n" in (tmp_path / "config.yaml").read_text()
    manifest = json.loads(result.checkpoint.with_suffix(".json").read_text())
    assert manifest["of_mine"] == "x"
    assert history(tmp_path, "mine/step") == ([5, 10], [5, 10])
    assert result.metrics["test/double"] == 2 * result.metrics["valid/loss"]
    values = json.loads((tmp_path / "result.json").read_text())
    assert values.pop("made") == 10
    (tmp_path / "result.json").write_text(json.dumps(values))
    assert train(ROW, tmp_path, callbacks=[Adds()]).stopped == "finished"  # evaluated again


# ------------------------------------------------------------------ stopping and resuming


class StopsAfter(Callback):
    """Asks to stop when it has seen so many epochs, which it counts itself."""

    ends_with_best = True

    def __init__(self, epochs):
        self.epochs, self.seen = epochs, 0

    def after_epoch(self, view):
        self.seen += 1
        return {f"seen of/{self.epochs}": self.seen}

    def should_stop(self, view):
        return self.seen >= self.epochs

    def state_dict(self):
        return {"seen": self.seen}

    def set_state_dict(self, state):
        self.seen = state["seen"]


WORSE = {"epochs": 9, "optimizer": ever_worse}


@pytest.mark.parametrize("stop_at", [7, 15])
def test_callbacks_of_one_class_end_a_resumed_training_where_they_end_an_unbroken_one(
    stop_at, tmp_path
):
    """By the state of each, which checkpoints hold; the result is the best checkpoint's."""

    def build(*more):
        return [StopsAfter(7), StopsAfter(3), *more]

    whole = train(ROW, tmp_path / "whole", callbacks=build(), **WORSE)
    assert (whole.stopped, whole.epochs, whole.steps) == ("early", 3, 15)
    assert whole.checkpoint.name == "model_epoch0"
    with pytest.raises(ProgramError):
        train(ROW, tmp_path / "run", callbacks=build(StopsAt(stop_at, stop)), **WORSE)
    resumed = train(ROW, tmp_path / "run", callbacks=build(), **WORSE)
    assert resumed.stopped == "early" and bits(resumed) == bits(whole)
    assert history(tmp_path / "run", "seen of/7") == ([5, 10, 15], [1, 2, 3])
    assert train(ROW, tmp_path / "run", callbacks=build(), **WORSE).stopped == "already finished"


def train_patiently(patience, output, **options):
    return train(ROW, output, callbacks=[EarlyStopping(patience)], **WORSE, **options)


def test_more_patience_continues_a_training_and_less_ends_it_where_it_stands(tmp_path):
    """An override lasts, although no step is left to be trained with it."""
    run = tmp_path / "run"
    assert train_patiently(1, run).epochs == 2
    longer = train_patiently(3, run, override="early_stop_patience")
    assert (longer.stopped, longer.epochs) == ("early", 4)
    whole = train_patiently(3, tmp_path / "whole")
    assert bits(longer)["weights"] == bits(whole)["weights"]
    assert train_patiently(3, run).stopped == "already finished"
    less = train_patiently(2, run, override="early_stop_patience")
    assert (less.stopped, less.steps) == ("early", longer.steps) and bits(less) == bits(longer)
    assert train_patiently(2, run).stopped == "already finished"
    with pytest.raises(ConfigError, match="early_stop_patience: 2 in the run, 3 now"):
        train_patiently(3, run)


@pytest.mark.parametrize("stop_at", [None, 7])
def test_run_whose_best_checkpoint_could_not_be_saved_ends_with_the_best_that_was(
    stop_at, tmp_path, lines
):
    """The disk is full at the end of the first epoch, the best of three."""

    def refuse(operation):
        if operation.path.name.startswith(".model_epoch0.") and takes_space(operation):
            fail(errno.ENOSPC)(operation)

    with watched(tmp_path, refuse):
        if stop_at:
            with pytest.raises(ProgramError):
                callbacks = [EarlyStopping(2), StopsAt(stop_at, stop)]
                train(ROW, tmp_path, callbacks=callbacks, **WORSE)
        result = train_patiently(2, tmp_path)
    scores = dict(zip(*history(tmp_path, "valid/loss")))
    assert min(scores, key=scores.get) == 5 and result.epochs == 3
    best = min((10, 15), key=scores.get)
    assert result.checkpoint.name == f"model_epoch{best // 5 - 1}"
    assert result.metrics["valid/loss"] == scores[best]
    assert "the best checkpoint, of step 5, could not be saved" in lines()
    assert train_patiently(2, tmp_path).stopped == "already finished"


def test_run_whose_best_checkpoint_is_gone_raises(tmp_path):
    with pytest.raises(ProgramError):
        train(ROW, tmp_path, callbacks=[EarlyStopping(2), StopsAt(7, stop)], **WORSE)
    for path in tmp_path.glob("checkpoints/model_epoch0.*"):
        path.unlink()
    with pytest.raises(CheckpointError, match="the best checkpoint is missing"):
        train_patiently(2, tmp_path)


def test_early_stopping_asks_for_a_patience_of_which_none_never_stops(tmp_path):
    for callback in (EarlyStopping(), copy.deepcopy(EarlyStopping())):
        with pytest.raises(ConfigError, match=r"as in EarlyStopping\(patience=5\)"):
            train(ROW, tmp_path, callbacks=[callback])
    assert train_patiently(None, tmp_path).stopped == "finished"


class Pretrained(Callback):
    """Gives the net weights from elsewhere, before it is trained."""

    def before_training(self, training):
        for parameter in training.model.parameters():
            parameter.set_value(paddle.full_like(parameter, 0.1))


def test_weights_set_before_training_resume_as_they_were_trained(tmp_path):
    unbroken = train("EMA", tmp_path / "whole", callbacks=[Pretrained()])
    with pytest.raises(ProgramError):
        train("EMA", tmp_path / "run", callbacks=[Pretrained(), StopsAt(7, stop)])
    assert bits(train("EMA", tmp_path / "run", callbacks=[Pretrained()])) == bits(unbroken)
    with_other_weights = train("EMA", tmp_path / "plain")
    assert bits(with_other_weights)["weights"] != bits(unbroken)["weights"]


class Anchor(Callback):
    """Also the loss, which holds the net near the weights that it begins with.

    kind: in which form they are kept.
    """

    def __init__(self, kind):
        self.net, self.kept = paddle.nn.Layer(), None  # in the first batch, which is tried before
        self.keep = {
            "arrays": lambda net: {name: p.numpy() for name, p in net.named_parameters()},
            "tensors": lambda net: [p.clone() for p in net.parameters()],
            "teacher": copy.deepcopy,
        }[kind]

    def before_training(self, training):
        self.net, self.kept = training.model, self.keep(training.model)
        self.process, self.rank = os.urandom(8), training.world.rank  # of the process, not the run

    def __call__(self, outputs, labels):
        kept = self.kept.parameters() if isinstance(self.kept, paddle.nn.Layer) else self.kept or ()
        kept = kept.values() if isinstance(kept, dict) else kept
        pairs = zip(self.net.parameters(), kept)
        far = [paddle.square(now - paddle.to_tensor(then)).mean() for now, then in pairs]
        return F.cross_entropy(outputs, labels) + sum(far)


@pytest.mark.parametrize(
    ("start", "kind"),
    [
        (None, "tensors"),
        ("other", "teacher"),
        ("weights.pdparams", "arrays"),
        *(pytest.param("other", kind, marks=pytest.mark.release) for kind in ("arrays", "tensors")),
    ],
)
def test_values_taken_before_training_from_the_weights_resume(start, kind, tmp_path):
    """Those of another run, too, which a resume does not load again; what is of a process, not."""

    def anchored(folder, *more):
        anchor = Anchor(kind)
        result = train(ROW, folder, loss=anchor, callbacks=[anchor, *more], **options)
        processes.append(anchor.process)
        return result

    processes = []
    other = train(ROW, tmp_path / "other", seed=3)
    shutil.copy(other.weights, tmp_path / "weights.pdparams")  # of no run
    options = {"init_from": str(tmp_path / start)} if start else {}
    unbroken = anchored(tmp_path / "whole")
    with pytest.raises(ProgramError):
        anchored(tmp_path / "run", StopsAt(3, stop))
    assert bits(anchored(tmp_path / "run")) == bits(unbroken)
    assert len({*processes}) == 2, "each its own"


class Plan(Callback):
    """Sets what an epoch has: a frozen layer, and the noise of the data."""

    def __init__(self, data, begun):
        self.data, self.begin = data, begun.append

    def before_training(self, training):
        self.net = training.model

    def on_epoch_start(self, view):
        epoch = view.state.epoch
        for parameter in self.net[0].parameters():
            parameter.stop_gradient = epoch < 2
        self.data.noise = 0.3 if epoch < 3 else 0.0
        if not is_rehearsal():
            self.begin(epoch)


@pytest.mark.parametrize(
    ("stop_at", "num_workers"), [(12, 0), (15, 0), pytest.param(18, 2, marks=pytest.mark.slow)]
)
def test_on_epoch_start_is_called_again_on_resume_inside_an_epoch(stop_at, num_workers, tmp_path):
    begun = []

    def plan(folder, *more):
        data = Points(noise=0.3)
        options = {"train": data, "valid": Points(), "epochs": 4}
        callbacks = [Plan(data, begun), *more]
        return train(ROW, folder, callbacks=callbacks, num_workers=num_workers, **options)

    whole = plan(tmp_path / "whole")
    assert begun == [0, 1, 2, 3]
    begun.clear()
    with pytest.raises(ProgramError):
        plan(tmp_path / "run", StopsAt(stop_at, stop))
    resumed = plan(tmp_path / "run")
    # Those before come from the checkpoint; the epoch that is resumed begins again.
    inside = (stop_at - 1) // 5
    assert begun == [*range(inside + 1), *range(inside, 4)]
    assert bits(resumed) == bits(whole)


def test_subclass_of_early_stopping_has_arguments_of_its_own(tmp_path):
    class Patient(EarlyStopping):
        def __init__(self, evaluations):
            super().__init__(patience=evaluations)

    result = train("EMA", tmp_path, optimizer=ever_worse, callbacks=[Patient(evaluations=1)])
    assert Patient(evaluations=3).patience == 3 and result.epochs == 2
