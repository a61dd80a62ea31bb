"""`Trainer`: the tutorial's own cells, the loop by hand, what is called when, what stops it."""

import json
import sys
import weakref
from pathlib import Path

import forked
import numpy as np
import paddle
import pytest
from fit_rows import Points, perceptron
from paddle.nn import functional as F
from synthetic_data import tiny_splits, write_json

from paddle_mnist import MNIST, BatchLoader, Observer, Trainer, watch
from paddle_mnist.errors import ConfigError, DivergedError, OutputError
from paddle_mnist.progress import TrainState

# The tutorial's part three, with its class definitions replaced by one import. It is run as it
# stands, in processes of its own; only the file in work/ is small.
TUTORIAL = """
import paddle
from paddle_mnist import MnistDataset, MNIST, Trainer

paddle.seed(1024)
epochs = 3
BATCH_SIZE = 32
model_path = './mnist.pdparams'

train_dataset = MnistDataset(mode='train')
train_loader = paddle.io.DataLoader(
    train_dataset, batch_size=BATCH_SIZE, shuffle=False, num_workers=4)

model = MNIST()
total_steps = (int(300 // BATCH_SIZE) + 1) * epochs
lr = paddle.optimizer.lr.PolynomialDecay(
    learning_rate=0.01, decay_steps=total_steps, end_lr=0.001)
opt = paddle.optimizer.Momentum(learning_rate=lr, parameters=model.parameters())
"""
TRAIN = """
trainer = Trainer(model_path=model_path, model=model, optimizer=opt)
trainer.train(train_datasets=train_loader, start_epoch=0, end_epoch=epochs, save_path='checkpoint')
"""
RESUME = """
params_dict = paddle.load('./checkpoint/mnist_epoch0.pdparams')
opt_dict = paddle.load('./checkpoint/mnist_epoch0.pdopt')
model.set_state_dict(params_dict)
opt.set_state_dict(opt_dict)

model_path = './mnist_retrain.pdparams'
trainer = Trainer(model_path=model_path, model=model, optimizer=opt)
trainer.train(
    train_datasets=train_loader, start_epoch=1, end_epoch=epochs, save_path='checkpoint_con')
"""


def run_cells(folder, *cells):
    done = forked.run([sys.executable, "-c", "".join(cells)], cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_tutorial_cells_train_and_resume_to_the_same_bits_in_one_process_and_in_two(tmp_path):
    """In one process, as a notebook, the resumed model is the second one."""
    (tmp_path / "work").mkdir()
    write_json(tmp_path / "work/mnist.json.gz", tiny_splits())
    of_notebook = [TUTORIAL, TRAIN, TUTORIAL, RESUME]
    for cells in (of_notebook, [TUTORIAL, RESUME]):
        printed = run_cells(tmp_path, *cells)
        assert "epoch 2/3 step 20/30 lr 0.00" in printed  # the rate decays, from step 10 on
        files = {
            folder: sorted(path.name for path in (tmp_path / folder).glob("*.pd*"))
            for folder in ("checkpoint", "checkpoint_con")
        }
        assert files["checkpoint"] == sorted(
            f"mnist_epoch{epoch}.{suffix}" for epoch in range(3) for suffix in ("pdopt", "pdparams")
        )
        assert files["checkpoint_con"] == files["checkpoint"][2:]
        for name in files["checkpoint_con"]:
            unbroken, resumed = (tmp_path / folder / name for folder in files)
            assert unbroken.read_bytes() == resumed.read_bytes(), name
            resumed.unlink()
        final = (tmp_path / "mnist.pdparams").read_bytes()
        assert (tmp_path / "mnist_retrain.pdparams").read_bytes() == final
        assert final == (tmp_path / "checkpoint/mnist_epoch2.pdparams").read_bytes()


SAMPLES = 70  # three batches of 32, 32 and 6


def make(folder, model=None, optimizer=None, **options):
    """Return a trainer of a small net, and its data."""
    paddle.seed(3)
    with paddle.utils.unique_name.guard():  # the names of parameters are in the files
        model = model or perceptron()
    optimizer = optimizer or paddle.optimizer.SGD(0.05, parameters=model.parameters())
    trainer = Trainer(folder / "net.pdparams", model, optimizer, **options)
    return trainer, BatchLoader(Points(SAMPLES), batch_size=32)


class Recorder(Observer):
    """A writer and observer that keeps what it is told, in order."""

    def __init__(self):
        self.calls = []

    def write(self, state, values):
        self.calls.append(("write", state.step, dict(values)))

    def after_step(self, view):
        self.calls.append(("step", view.step, view.state.position))

    def close(self):
        pass


def test_trainer_calls_its_collaborators_in_order(tmp_path):
    recorder = Recorder()

    class Evaluates:
        def is_due_after_step(self, state):
            return False

        def after_epoch(self, state, model):
            recorder.calls.append(("evaluate", state.step, state.epoch))
            return {"valid/acc": 0.5}

    class Saves:
        def after_step(self, state, model, optimizer):
            recorder.calls.append(("save?", state.step, None))

        def after_epoch(self, state, model, optimizer):
            recorder.calls.append(("save", state.step, dict(state.metrics)))

        def at_end(self, state, model, optimizer):
            recorder.calls.append(("end", state.step, dict(state.metrics)))

    collaborators = {"evaluator": Evaluates(), "checkpointer": Saves()}
    options = {"writer": recorder, "observers": [recorder], "log_every": 2, **collaborators}
    trainer, loader = make(tmp_path, **options)
    state = trainer.train(loader, 0, 2)
    # Three steps an epoch; a line is due every second step of the run, and at an epoch's end.
    expected = (
        "step 1, save? 1, step 2, write 2, save? 2, step 3, save? 3, write 3, "
        "evaluate 3, write 3, save 3, "
        "step 4, write 4, save? 4, step 5, save? 5, step 6, write 6, save? 6, "
        "evaluate 6, write 6, save 6, end 6"
    )
    assert ", ".join(f"{kind} {step}" for kind, step, _ in recorder.calls) == expected
    assert (state.epoch, state.position, state.step, state.samples) == (2, 0, 6, 140)
    assert recorder.calls[-1] == ("end", 6, {"valid/acc": 0.5})


def test_trainer_figures_weigh_samples_not_batches(tmp_path):
    """Of batches of 32, 32 and 6 samples, at a rate too small to change the weights."""
    recorder, model = Recorder(), perceptron()
    optimizer = paddle.optimizer.SGD(1e-30, parameters=model.parameters())
    trainer, loader = make(tmp_path, model, optimizer, writer=recorder)
    trainer.train(loader, 0, 1, tmp_path / "checkpoint")
    written = next(values for kind, _, values in recorder.calls if kind == "write")
    points, labels = (np.stack(column) for column in zip(*map(Points(70).__getitem__, range(70))))
    logits = trainer.model(paddle.to_tensor(points))
    loss = F.cross_entropy(logits, paddle.to_tensor(labels))
    assert written["train/loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert written["train/acc"] == (logits.numpy().argmax(1) == labels[:, 0]).mean()
    assert written["train/lr"] == pytest.approx(1e-30)


def test_trainer_train_step_is_that_of_the_textbook(tmp_path):
    trainer, loader = make(tmp_path)
    reference = perceptron()
    reference.set_state_dict(trainer.model.state_dict())
    points, labels = next(iter(loader))
    loss = trainer.train_step((points, labels))
    expected = F.cross_entropy(reference(points), labels)
    expected.backward()
    assert loss.item() == expected.item()
    for ours, theirs in zip(trainer.model.parameters(), reference.parameters()):
        assert np.allclose(ours.numpy(), (theirs - 0.05 * theirs.grad).numpy(), atol=1e-7)


def test_trainer_steps_the_schedule_every_batch(tmp_path):
    model = perceptron()
    schedule = paddle.optimizer.lr.PolynomialDecay(0.01, decay_steps=6, end_lr=0.001)
    optimizer = paddle.optimizer.Momentum(schedule, parameters=model.parameters())
    trainer, loader = make(tmp_path, model, optimizer)
    trainer.train(loader, 0, 2, tmp_path / "c")
    assert schedule.last_epoch == 6 and optimizer.get_lr() == pytest.approx(0.001)


def test_trainer_of_a_state_resumes_inside_an_epoch_and_refuses_another_start(tmp_path):
    """The batches before its position are not seen again."""
    recorder = Recorder()
    state = TrainState(epoch=1, position=2, step=5)
    trainer, loader = make(tmp_path, observers=[recorder], state=state)
    for begin in (lambda: trainer.train(loader, 0, 3), lambda: trainer.train_epoch(loader, 0)):
        with pytest.raises(ConfigError, match="the state stands at epoch 1, batch 2; expected"):
            begin()
    assert state == TrainState(epoch=1, position=2, step=5)
    trainer.train(loader, 1, 2, tmp_path / "c")
    assert recorder.calls == [("step", 6, 3)]


def test_trainer_epochs_by_hand_are_those_of_train_and_may_continue(tmp_path, lines):
    (tmp_path / "other").mkdir()
    one, loader = make(tmp_path)
    one.train(loader, 0, 2, tmp_path / "first")
    other, _ = make(tmp_path / "other")
    before = len(lines())
    for epoch in range(2):
        other.train_epoch(loader, epoch)
    other.save()
    assert one.model_path.read_bytes() == other.model_path.read_bytes()
    by_hand = [line.partition(" lr")[0] for line in lines()[before:]]
    assert by_hand == ["epoch 1 step 3", "epoch 2 step 6"]  # of which there is no last one
    one.train(loader, 2, 3, tmp_path / "second")
    assert [path.name for path in tmp_path.glob("second/*.pdparams")] == ["model_epoch2.pdparams"]
    assert (one.state.epoch, one.state.step) == (3, 9)


def test_trainer_interrupted_epoch_that_begins_again_is_whole(tmp_path):
    """Without the gradients of the step that was interrupted, as in a notebook."""

    class Loss:
        interrupts = False

        def __call__(self, logits, labels):
            loss = F.cross_entropy(logits, labels)
            if self.interrupts:
                self.interrupts = False
                loss.backward()
                raise KeyboardInterrupt
            return loss

    weights = []
    for interrupts in (False, True):
        loss = Loss()
        trainer, loader = make(tmp_path, loss_fn=loss)
        loss.interrupts = interrupts
        if interrupts:
            with pytest.raises(KeyboardInterrupt):
                trainer.train(loader, 0, 1, tmp_path / "c")
        state = trainer.train(loader, 0, 1, tmp_path / "c")
        assert (state.step, state.samples) == (3, SAMPLES)
        weights.append(trainer.model_path.read_bytes())
    assert weights[0] == weights[1]


def test_trainer_step_that_ends_halfway_is_not_saved(tmp_path, lines):
    """Some weights are changed and others not."""

    class Breaks(paddle.optimizer.SGD):
        steps = 0

        def step(self):
            self.steps += 1
            if self.steps == 2:
                raise MemoryError
            super().step()

    model = perceptron()
    trainer, loader = make(tmp_path, model, Breaks(0.05, parameters=model.parameters()))
    with pytest.raises(MemoryError):
        trainer.train(loader, 0, 1, tmp_path / "c")
    assert any("step 2 was interrupted halfway, so it cannot be saved" in line for line in lines())
    assert not list((tmp_path / "c").glob("*"))


def test_trainer_loss_that_is_not_finite_raises_with_its_step(tmp_path):
    model = perceptron()
    calls = []

    def poisoned(logits, labels):
        calls.append(1)
        return F.cross_entropy(logits, labels) * (float("nan") if len(calls) == 5 else 1)

    trainer, loader = make(tmp_path, model, loss_fn=poisoned, log_every=2)
    with pytest.raises(DivergedError, match="the loss is nan at epoch 2, step 5"):
        trainer.train(loader, 0, 3, tmp_path / "c")
    assert [path.name for path in tmp_path.glob("c/*.json")] == ["model_epoch0.json"]


def test_trainer_step_by_hand_of_a_loss_that_is_not_finite_changes_nothing(tmp_path):
    model = paddle.nn.Linear(6, 3)
    optimizer = paddle.optimizer.SGD(0.05, parameters=model.parameters())
    trainer, loader = make(tmp_path, model, optimizer)
    trainer.train_epoch(loader, 0)
    points, labels = next(iter(loader))
    weights = model.weight.numpy()
    with pytest.raises(DivergedError, match="the loss is nan"):
        trainer.train_step((points * float("nan"), labels))
    assert np.array_equal(model.weight.numpy(), weights)
    trainer.train_step((points, labels))
    assert trainer.state.step == 4
    assert not np.array_equal(model.weight.numpy(), weights)


def test_trainer_steps_by_hand_keep_no_losses_and_are_not_of_an_epoch(tmp_path):
    trainer, loader = make(tmp_path, state=TrainState())
    batch = next(iter(loader))
    losses = [weakref.ref(trainer.train_step(batch)) for _ in range(20)]
    assert [loss() for loss in losses[:-1]] == [None] * 19  # the trainer keeps the newest
    trainer.train(loader, 0, 2, tmp_path / "c")
    assert trainer.state.step == 20 + 6


def test_trainer_parameters_of_one_name_raise(tmp_path):
    twice = paddle.nn.LayerList([MNIST(), MNIST()])
    optimizer = paddle.optimizer.SGD(0.1, parameters=twice.parameters())
    with pytest.raises(ConfigError, match="two parameters have one name"):
        Trainer(tmp_path / "x", twice, optimizer)


def test_trainer_weights_that_cannot_be_written_raise():
    trainer, _ = make(Path("/sys/paddle_mnist"))  # not even root can write there
    with pytest.raises(OutputError, match=r"/sys/paddle_mnist: cannot write"):
        trainer.save()


# Observers


class Look(Observer):
    """Checks what it sees; of plain SGD, what changed is the rate times the gradient."""

    def __init__(self):
        self.steps, self.epochs, self.before = [], [], None

    def after_step(self, view):
        assert view.parameters[:2] == ["0.weight", "0.bias"]
        weight, gradient = view.parameter("0.weight"), view.gradient("0.weight")
        if self.before is not None:
            assert np.allclose(self.before - weight, 0.05 * gradient, atol=1e-6)
        self.before = weight
        assert view.step == view.state.step and 0 < view.loss < 10
        self.steps.append((view.step, view.state.position))

    def after_epoch(self, view):
        self.epochs.append((view.state.epoch, view.metrics["train/loss"]))


class Meddler(Observer):
    def after_step(self, view):
        view.parameter("0.weight")[:] = 0
        view.gradient("0.weight")[:] = 0
        view.state.step = 99
        view.metrics["train/loss"] = 0


def test_observers_see_each_step_and_epoch_and_change_nothing(tmp_path):
    look = Look()
    for name, observers in (("plain", []), ("observed", [Meddler(), look])):
        (tmp_path / name).mkdir()
        trainer, loader = make(tmp_path / name, observers=observers)
        trainer.train(loader, 0, 2, tmp_path / name / "checkpoint")
    assert look.steps == [(1, 1), (2, 2), (3, 3), (4, 1), (5, 2), (6, 3)]
    assert [epoch for epoch, _ in look.epochs] == [1, 2]
    for name in ("net.pdparams", "checkpoint/model_epoch1.pdopt"):
        one, other = (tmp_path / folder / name for folder in ("plain", "observed"))
        assert one.read_bytes() == other.read_bytes(), name


def test_observer_that_asks_for_an_unknown_parameter_raises(tmp_path):
    class Lost(Observer):
        def after_step(self, view):
            view.gradient("2.weights")

    trainer, loader = make(tmp_path, observers=[Lost()])
    with pytest.raises(ConfigError, match=r"unknown name '2.weights'; did you mean"):
        trainer.train(loader, 0, 1, tmp_path / "checkpoint")
    assert (tmp_path / "checkpoint/model_epoch0_step1_breakpoint.json").exists()


def test_watch_as_an_observer_writes_what_it_saw(tmp_path):
    recorder = Recorder()
    trainer, loader = make(tmp_path, writer=recorder)
    trainer.observers = [watch(trainer.model, every=2)]
    trainer.train(loader, 0, 2, tmp_path / "checkpoint")
    watched = {(step, tag) for kind, step, tags in recorder.calls for tag in tags}
    assert {step for step, tag in watched if tag.startswith("watch/")} == {1, 2, 4, 6}
    assert (4, "watch/0.weight/update_ratio") in watched


NUMBERS = [1, 0.5, np.float32(0.5), np.int64(1), np.bool_(True), np.ones(1), paddle.ones([])]
NOT_NUMBERS = ["high", None, np.ones(2), [1.0], 1j]


class Returns(Observer):
    def __init__(self, *values):
        self.values = {f"own/{number}": value for number, value in enumerate(values)}

    def after_step(self, view):
        return self.values


def test_observers_may_return_any_one_number_and_raise_for_others(tmp_path):
    recorder = Recorder()
    trainer, loader = make(tmp_path, observers=[Returns(*NUMBERS)], writer=recorder)
    trainer.train(loader, 0, 1, tmp_path / "c")
    own = [values for _, _, values in recorder.calls if isinstance(values, dict)]
    own = [values for values in own if "own/0" in values]
    assert len(own) == 3
    assert [own[0][f"own/{number}"] for number in range(7)] == [1, 0.5, 0.5, 1, 1, 1, 1]
    json.dumps(own)
    for value in NOT_NUMBERS:
        trainer, loader = make(tmp_path, observers=[Returns(value)])
        with pytest.raises(ConfigError, match=r"Returns gave .* as 'own/0'; expected one number"):
            trainer.train(loader, 0, 1, tmp_path / "c")
