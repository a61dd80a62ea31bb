"""The loop: the tutorial's own cells, what is called when, and what stops it."""

import contextlib
import json
import logging
import sys
import weakref
from pathlib import Path

import forked
import numpy as np
import paddle
import pytest
from synthetic_data import tiny_splits, write_json

from paddle_mnist import MNIST, BatchLoader, MnistDataset, Observer, Trainer, watch
from paddle_mnist.checkpoint.checkpointer import StoreCheckpointer
from paddle_mnist.checkpoint.contents import load_checkpoint
from paddle_mnist.checkpoint.policy import Saving
from paddle_mnist.checkpoint.store import CheckpointStore
from paddle_mnist.errors import ConfigError, DivergedError, OutputError
from paddle_mnist.metrics.jsonl import JsonlWriter
from paddle_mnist.metrics.writers import ManyWriters
from paddle_mnist.mnist.step import DigitStep
from paddle_mnist.mnist.training_set import TrainingSet
from paddle_mnist.nn.cross_entropy import CrossEntropy
from paddle_mnist.progress import TrainState
from paddle_mnist.training.evaluator import EpochEvaluator
from paddle_mnist.training.run_directory import RunDirectory
from paddle_mnist.training.steps import SupervisedStep

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


@pytest.mark.parametrize("processes", [1, 2])
def test_tutorials_cells_train_and_resume_to_the_same_bits(tmp_path, processes):
    (tmp_path / "work").mkdir()
    write_json(tmp_path / "work/mnist.json.gz", tiny_splits())
    if processes == 2:
        run_cells(tmp_path, TUTORIAL, TRAIN)
        printed = run_cells(tmp_path, TUTORIAL, RESUME)
    else:  # as in a notebook: the second model of a process
        printed = run_cells(tmp_path, TUTORIAL, TRAIN, TUTORIAL, RESUME)
    assert "epoch 2/3 step 20/30 lr 0.00" in printed  # the rate decays; it goes on at step 10
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
    final = (tmp_path / "mnist.pdparams").read_bytes()
    assert (tmp_path / "mnist_retrain.pdparams").read_bytes() == final
    assert final == (tmp_path / "checkpoint/mnist_epoch2.pdparams").read_bytes()


def make(tiny, tmp_path, rate=0.05, model=None, limit=70, **collaborators):
    paddle.seed(3)
    model = model or MNIST()
    optimizer = paddle.optimizer.SGD(rate, parameters=model.parameters())
    loader = BatchLoader(MnistDataset("train", str(tiny), limit), batch_size=32)
    trainer = Trainer(tmp_path / "mnist.pdparams", model, optimizer, **collaborators)
    return trainer, loader


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


def test_a_step_of_the_loop_waits_for_no_value(tiny, tmp_path, monkeypatch):
    """On a GPU each look at a tensor waits until the device has caught up."""
    looks, looks_until_step = [], []

    class Counts(Observer):
        def after_step(self, view):
            looks_until_step.append(len(looks))

    options = {"writer": Recorder(), "observers": [Counts()], "log_every": 1000}
    trainer, loader = make(tiny, tmp_path, **options)
    trainer.model.fast_conv = "off"  # the fast blocks are NumPy's, on CPUs
    loader = BatchLoader(TrainingSet(loader.dataset, on_device=True), 32)
    for name in ("numpy", "item", "tolist", "__float__", "__int__", "__bool__"):
        look = getattr(paddle.Tensor, name)
        monkeypatch.setattr(
            paddle.Tensor,
            name,
            lambda *args, look=look, name=name: looks.append(name) or look(*args),
        )
    trainer.train_epoch(loader, 0)
    assert looks_until_step == [0, 0, 0]
    assert looks  # by the line of the log at the epoch's end


def test_each_forward_pass_and_nothing_else_is_in_its_context(tiny, tmp_path):
    inside, seen = [], []

    @contextlib.contextmanager
    def context():
        inside.append(True)
        yield
        inside.pop()

    step = SupervisedStep(CrossEntropy(), autocast=context)
    trainer, loader = make(tiny, tmp_path, writer=Recorder(), step=step)
    trainer.model.register_forward_pre_hook(lambda *_: seen.append(len(inside)))
    trainer.train(loader, 0, 1, tmp_path / "c")
    assert seen == [1, 1, 1]
    trainer.model.parameters()[0].register_hook(lambda grad: seen.append(len(inside)))
    trainer.train(loader, 1, 2, tmp_path / "c")
    assert seen[3:] == [1, 0] * 3


def test_what_is_called_when(tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recorder = Recorder()

    class Evaluates(EpochEvaluator):
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

    trainer, loader = make(
        tiny,
        tmp_path,
        writer=recorder,
        observers=[recorder],
        evaluator=Evaluates(None, {}),
        checkpointer=Saves(),
        log_every=2,
    )
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


def test_training_figures_weigh_samples_not_batches(tiny, tmp_path):
    """70 samples in batches of 32, 32 and 6, at a rate too small to change the weights."""
    recorder = Recorder()
    trainer, loader = make(tiny, tmp_path, rate=1e-30, writer=recorder)
    trainer.train(loader, 0, 1, tmp_path / "checkpoint")
    written = next(values for kind, _, values in recorder.calls if kind == "write")
    images, labels = loader.dataset.batch(np.arange(70))
    logits = trainer.model(paddle.to_tensor(images))
    loss = paddle.nn.functional.cross_entropy(logits, paddle.to_tensor(labels))
    assert written["train/loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert written["train/acc"] == (logits.numpy().argmax(1) == labels[:, 0]).mean()
    assert written["train/lr"] == pytest.approx(1e-30)


def test_training_step_by_hand(tiny, tmp_path):
    """`train_step` is the textbook's: loss of the batch, then one step of the optimizer."""
    trainer, loader = make(tiny, tmp_path)
    reference = MNIST()
    reference.set_state_dict(trainer.model.state_dict())
    images, labels = next(iter(loader))
    loss = trainer.train_step((images, labels))
    expected = paddle.nn.functional.cross_entropy(reference(images), labels)
    expected.backward()
    assert loss.item() == expected.item()
    for ours, theirs in zip(trainer.model.parameters(), reference.parameters()):
        assert np.allclose(ours.numpy(), (theirs - 0.05 * theirs.grad).numpy(), atol=1e-7)


def test_the_schedule_is_stepped_every_batch(tiny, tmp_path):
    model = MNIST()
    schedule = paddle.optimizer.lr.PolynomialDecay(0.01, decay_steps=6, end_lr=0.001)
    optimizer = paddle.optimizer.Momentum(schedule, parameters=model.parameters())
    loader = BatchLoader(MnistDataset("train", str(tiny), 70), batch_size=32)
    Trainer(tmp_path / "m.pdparams", model, optimizer).train(loader, 0, 2, tmp_path / "c")
    assert schedule.last_epoch == 6 and optimizer.get_lr() == pytest.approx(0.001)


def test_training_goes_on_inside_an_epoch(tiny, tmp_path):
    """From a position: the batches before it are not seen again."""
    recorder = Recorder()
    state = TrainState(epoch=1, position=2, step=5)
    trainer, loader = make(tiny, tmp_path, writer=recorder, observers=[recorder], state=state)
    trainer.train(loader, 1, 2, tmp_path / "c")
    assert [call[1:] for call in recorder.calls if call[0] == "step"] == [(6, 3)]


def test_a_trainer_may_be_used_again(tiny, tmp_path):
    trainer, loader = make(tiny, tmp_path)
    trainer.train(loader, 0, 1, tmp_path / "first")
    trainer.train(loader, 1, 3, tmp_path / "second")
    names = [sorted(p.name for p in (tmp_path / f).glob("*.pdparams")) for f in ("first", "second")]
    assert names == [["mnist_epoch0.pdparams"], ["mnist_epoch1.pdparams", "mnist_epoch2.pdparams"]]
    assert (trainer.state.epoch, trainer.state.step) == (3, 9)


def test_an_interrupted_epoch_is_trained_whole_when_begun_again(tiny, tmp_path):
    class Interrupted(MNIST):
        steps = 0

        def forward(self, *args):
            self.steps += 1
            if self.steps == 2:
                raise KeyboardInterrupt
            return super().forward(*args)

    trainer, loader = make(tiny, tmp_path, model=Interrupted())
    with pytest.raises(KeyboardInterrupt):
        trainer.train(loader, 0, 1, tmp_path / "c")
    state = trainer.train(loader, 0, 1, tmp_path / "c")
    assert (state.step, state.samples) == (3, 70)


def test_gradients_of_a_step_that_was_broken_off_are_not_used(tiny, tmp_path):
    """As in a notebook: interrupted between the gradients and the step, then started again."""

    class Interrupts:
        def __init__(self, once):
            self.once = once

        def __call__(self, logits, labels):
            loss = paddle.nn.functional.cross_entropy(logits, labels)
            if self.once:
                self.once = False
                loss.backward()
                raise KeyboardInterrupt
            return loss

    broken, loader = make(tiny, tmp_path, loss_fn=Interrupts(once=True))
    with pytest.raises(KeyboardInterrupt):
        broken.train(loader, 0, 1, tmp_path / "c")
    broken.train(loader, 0, 1, tmp_path / "c")
    whole, loader = make(tiny, tmp_path / "whole", loss_fn=Interrupts(once=False))
    whole.train(loader, 0, 1, tmp_path / "whole/c")
    assert broken.model_path.read_bytes() == whole.model_path.read_bytes()


def test_a_step_that_was_broken_off_half_way_is_not_saved(tiny, tmp_path, caplog):
    """Some weights are changed and others not: no step's, and no checkpoint's."""

    class Breaks(paddle.optimizer.SGD):
        steps = 0

        def step(self):
            self.steps += 1
            if self.steps == 2:
                raise MemoryError
            super().step()

    trainer, loader = make(tiny, tmp_path)
    trainer.optimizer = Breaks(0.05, parameters=trainer.model.parameters())
    log = logging.getLogger("paddle_mnist")
    log.addHandler(caplog.handler)
    with pytest.raises(MemoryError):
        trainer.train(loader, 0, 1, tmp_path / "c")
    log.removeHandler(caplog.handler)
    assert "step 2 was interrupted halfway, so it cannot be saved" in caplog.text
    assert not list((tmp_path / "c").glob("*"))


def test_metrics_of_a_checkpoint_are_of_its_own_weights(tiny, tmp_path):
    class EveryOther(EpochEvaluator):
        def after_epoch(self, state, model):
            done = state.epoch + 1
            return {} if done % 2 else {"valid/acc": done / 10}

    trainer, loader = make(tiny, tmp_path, evaluator=EveryOther(None, {}))
    trainer.train(loader, 0, 4, tmp_path / "c")
    metrics = {c.name: c.state.metrics for c in CheckpointStore(tmp_path / "c").all()}
    assert list(metrics.values()) == [{}, {"valid/acc": 0.2}, {}, {"valid/acc": 0.4}]


def test_checkpoints_inside_an_epoch_have_no_metrics_of_older_weights(tiny, tmp_path):
    class Judges(EpochEvaluator):
        def after_epoch(self, state, model):
            return {"valid/acc": 0.9}

    store = CheckpointStore(tmp_path / "c")
    saving = Saving(every_epochs=2, every_steps=1, keep_best=False, keep_last=9)
    saves = StoreCheckpointer(store, saving)
    trainer, loader = make(tiny, tmp_path, evaluator=Judges(None, {}), checkpointer=saves)
    trainer.train(loader, 0, 2)
    assert [c.name for c in store.all() if c.state.metrics] == ["mnist_epoch1"]
    assert store.best().name == "mnist_epoch1"


def test_epoch_by_epoch_as_in_the_tutorial(tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one, loader = make(tiny, tmp_path)
    one.train(loader, 0, 2)
    other, loader = make(tiny, tmp_path / "other")
    for epoch in range(2):
        other.train_epoch(loader, epoch)
    other.save()
    assert one.model_path.read_bytes() == other.model_path.read_bytes()


def test_the_log_of_epochs_by_hand_knows_no_last_one(tiny, tmp_path, lines):
    trainer, loader = make(tiny, tmp_path)
    for epoch in range(2):
        trainer.train_epoch(loader, epoch)
    assert [line.partition(" lr")[0] for line in lines()] == ["epoch 1 step 3", "epoch 2 step 6"]


def test_an_epoch_by_hand_saves_what_the_checkpointer_has_due(tiny, tmp_path):
    store = CheckpointStore(tmp_path / "c")
    saves = StoreCheckpointer(store, Saving(every_steps=2, keep_best=False, keep_last=9))
    trainer, loader = make(tiny, tmp_path, checkpointer=saves)
    trainer.train_epoch(loader, 0)
    assert [checkpoint.name for checkpoint in store.all()] == ["mnist_epoch0_step2"]


def test_a_loader_that_does_not_know_its_length(tiny, tmp_path):
    class Stream(paddle.io.IterableDataset):
        def __iter__(self):
            return iter(MnistDataset("train", str(tiny), 70))

    trainer, _ = make(tiny, tmp_path)
    loader = paddle.io.DataLoader(Stream(), batch_size=32)
    assert trainer.train(loader, 0, 1, tmp_path / "c").samples == 70


@pytest.mark.parametrize("log_every", [1, 2, 100])
def test_a_loss_that_is_not_finite_stops_training_and_names_the_step(tiny, tmp_path, log_every):
    class Poisoned(MNIST):
        steps = 0

        def forward(self, *args):
            self.steps += 1
            return super().forward(*args) * (float("nan") if self.steps == 5 else 1)

    trainer, loader = make(tiny, tmp_path, model=Poisoned(), log_every=log_every)
    with pytest.raises(DivergedError, match="the loss is nan at epoch 2, step 5"):
        trainer.train(loader, 0, 3, tmp_path / "c")
    assert sorted(p.name for p in (tmp_path / "c").glob("*.json")) == ["mnist_epoch0.json"]


@pytest.mark.parametrize("epochs_before", [0, 1])
def test_a_step_by_hand_refuses_a_loss_that_is_not_finite(tiny, tmp_path, epochs_before):
    """Before it changes the weights; with the next good batch the training goes on."""
    trainer, loader = make(tiny, tmp_path)
    if epochs_before:
        trainer.train_epoch(loader, 0)
    images, labels = next(iter(loader))
    weights = trainer.model.fc.weight.numpy()
    with pytest.raises(DivergedError, match="the loss is nan"):
        trainer.train_step((images * float("nan"), labels))
    assert np.array_equal(trainer.model.fc.weight.numpy(), weights)
    step = trainer.state.step
    trainer.train_step((images, labels))
    assert trainer.state.step == step + 1
    assert not np.array_equal(trainer.model.fc.weight.numpy(), weights)


@pytest.mark.parametrize("epoch", [0, 1])
def test_steps_by_hand_are_no_batches_of_an_epoch(tiny, tmp_path, epoch):
    trainer, loader = make(tiny, tmp_path, state=TrainState(epoch=epoch, step=3 * epoch))
    for batch in loader:
        trainer.train_step(batch)
        break
    trainer.train(loader, epoch, 2, tmp_path / "c")
    assert trainer.state.step == 7  # one by hand, and all of both epochs


def test_steps_by_hand_keep_no_losses(tiny, tmp_path):
    """After an epoch of the loop too, which left nobody to look at them."""
    trainer, loader = make(tiny, tmp_path)
    trainer.train_epoch(loader, 0)
    batch = next(iter(loader))
    trainer.train_step(batch)
    losses = [weakref.ref(trainer.train_step(batch)) for _ in range(20)]
    assert [loss() for loss in losses[:-1]] == [None] * 19  # the trainer keeps the newest


@pytest.mark.parametrize(("epoch", "position"), [(1, 2), (1, 0), (2, 0)])
def test_a_start_that_is_not_the_states_is_refused(tiny, tmp_path, epoch, position):
    state = TrainState(epoch=epoch, position=position, step=3 * epoch + position)
    at = f"the state stands at epoch {epoch}, batch {position}; expected the same"
    trainer, loader = make(tiny, tmp_path, state=state)
    with pytest.raises(ConfigError, match=at):
        trainer.train(loader, 0, 3, tmp_path / "c")
    with pytest.raises(ConfigError, match=at):
        trainer.train_epoch(loader, 0)
    assert state == TrainState(epoch=epoch, position=position, step=3 * epoch + position)
    trainer.train(loader, epoch, 3, tmp_path / "c")
    assert trainer.state.step == 9


def test_parameters_of_one_name_are_refused(tmp_path):
    twice = paddle.nn.LayerList([MNIST(), MNIST()])
    optimizer = paddle.optimizer.SGD(0.1, parameters=twice.parameters())
    with pytest.raises(ConfigError, match="two parameters have one name"):
        Trainer(tmp_path / "x", twice, optimizer)


def test_weights_that_cannot_be_written_are_said(tiny):
    trainer, _ = make(tiny, Path("/sys/paddle_mnist"))  # not even root can write there
    with pytest.raises(OutputError, match=r"/sys/paddle_mnist: cannot write"):
        trainer.save()


# ------------------------------------------------------------------ observers


def observed(tiny, tmp_path, observer, **options):
    paddle.seed(1)
    model = MNIST()
    optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
    trainer = Trainer(
        tmp_path / "m.pdparams", model, optimizer, observers=[observer], log_every=4, **options
    )
    loader = BatchLoader(MnistDataset("train", tiny), 32)
    return trainer, lambda: trainer.train(loader, 0, 2, tmp_path / "checkpoint")


def test_observers_see_each_step_and_epoch_as_it_is(tiny, tmp_path):
    class Look(Observer):
        def __init__(self):
            self.steps, self.epochs, self.before = [], [], None

        def after_step(self, view):
            weight, gradient = view.parameter("fc.weight"), view.gradient("fc.weight")
            if self.before is not None:  # plain SGD: what changed is the rate times the gradient
                assert np.allclose(self.before - weight, 0.1 * gradient, atol=1e-6)
            self.before = weight
            assert view.step == view.state.step and 0 < view.loss < 10
            self.steps.append((view.step, view.state.position))

        def after_epoch(self, view):
            self.epochs.append((view.state.epoch, view.metrics["train/loss"]))

    look = Look()
    trainer, train = observed(tiny, tmp_path, look)
    train()
    assert look.steps == [(n, (n - 1) % 10 + 1) for n in range(1, 21)]
    assert [epoch for epoch, _ in look.epochs] == [1, 2]
    assert look.epochs[1][1] == trainer.newest_metrics.values["train/loss"]


def test_observers_change_nothing(tiny, tmp_path):
    class Meddler(Observer):
        def after_step(self, view):
            view.parameter("fc.weight")[:] = 0
            view.gradient("fc.weight")[:] = 0
            view.state.step = 99
            view.metrics["train/loss"] = 0

    for name, observer in (("plain", Observer()), ("meddled", Meddler())):
        folder = tmp_path / name
        folder.mkdir()
        observed(tiny, folder, observer)[1]()
    for name in ("m.pdparams", "checkpoint/mnist_epoch1.pdopt"):
        one, other = (tmp_path / folder / name for folder in ("plain", "meddled"))
        assert one.read_bytes() == other.read_bytes(), name


def test_observer_that_asks_for_a_parameter_that_is_not_there(tiny, tmp_path):
    class Lost(Observer):
        def after_step(self, view):
            assert view.parameters[:2] == ["conv1.weight", "conv1.bias"]
            view.gradient("conv3.weight")

    with pytest.raises(ConfigError, match=r"unknown name 'conv3.weight'; did you mean"):
        observed(tiny, tmp_path, Lost())[1]()
    assert (tmp_path / "checkpoint/mnist_epoch0_step1_breakpoint.json").exists()


def test_watch_as_an_observer_writes_what_it_saw(tiny, tmp_path):
    class Kept:
        def __init__(self):
            self.written = []

        def write(self, state, values):
            self.written += [(state.step, tag) for tag in values if "watch/" in tag]

        def close(self):
            pass

    kept = Kept()

    class Reads(Observer):
        def after_step(self, view):
            if view.step == 7:
                self.seen = view.metrics["watch/fc/mean"]

    kept, reads = Kept(), Reads()
    valid = {"valid": BatchLoader(MnistDataset("valid", str(tiny)), 500)}
    trainer, train = observed(tiny, tmp_path, reads, evaluator=EpochEvaluator(DigitStep(), valid))
    trainer.writer = kept
    trainer.observers = [watch(trainer.model, every=5), reads]
    train()
    steps = {
        split: sorted({s for s, tag in kept.written if tag.startswith(split)})
        for split in ("watch/", "valid/watch/")
    }
    assert steps == {"watch/": [1, 5, 10, 15, 20], "valid/watch/": [10]}
    assert (15, "watch/conv1.weight/update_ratio") in kept.written
    assert (10, "valid/watch/relu2/zeros") in kept.written
    assert np.isfinite(reads.seen)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (1, 1),
        (0.5, 0.5),
        (np.float32(0.5), 0.5),
        (np.int64(1), 1),
        (np.bool_(True), 1),
        (np.ones(1), 1),
        (paddle.ones([1]), 1),
        (paddle.ones([]), 1),
    ],
    ids=repr,
)
def test_observers_may_return_any_one_number(tiny, tmp_path, value, written):
    class Returns(Observer):
        def after_step(self, view):
            return {"own/value": value}

    path = tmp_path / "metrics.jsonl"
    observed(tiny, tmp_path, Returns(), writer=JsonlWriter(path))[1]()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["value"] for line in lines if line["tag"] == "own/value"] == [written] * 20


@pytest.mark.parametrize("value", ["high", None, np.ones(2), [1.0], 1j], ids=repr)
def test_observers_that_return_no_number_are_named(tiny, tmp_path, value):
    class Returns(Observer):
        def after_step(self, view):
            return {"own/value": value}

    with pytest.raises(ConfigError, match=r"Returns gave .* as 'own/value'; expected one number"):
        observed(tiny, tmp_path, Returns())[1]()


class BrokenOffError(Exception):
    """Ends a training in the next test."""


class BreaksOff(StoreCheckpointer):
    """Saves after every step, and breaks off after one."""

    stop = None

    def after_step(self, state, model, optimizer):
        super().after_step(state, model, optimizer)
        if self.stop == state.step:
            raise BrokenOffError


@pytest.mark.parametrize("stop", [*range(1, 7), "evaluation is written", "epoch is observed"])
def test_history_of_a_resumed_training_is_the_unbroken_ones(tiny, tmp_path, stop):
    """With an observer whose own tag comes after each step and each epoch."""

    class Own(Observer):
        stop = None

        def after_step(self, view):
            return {"own/value": view.step}

        def after_epoch(self, view):
            if self.stop == "epoch is observed":
                raise BrokenOffError
            return {"own/value": -view.step}

    class Judges(EpochEvaluator):
        def after_epoch(self, state, model):
            return {"valid/acc": 0.1 * state.epoch}

    class Fails(ManyWriters):
        """A writer after that of the history, which cannot write an evaluation."""

        stop = None

        def write(self, state, values):
            super().write(state, values)
            if self.stop == "evaluation is written" and "valid/acc" in values:
                raise BrokenOffError

    def train(folder, stop):
        run = RunDirectory(folder)
        checkpoint = run.checkpoints.newest()
        run.start_history(checkpoint)
        state = checkpoint.state if checkpoint else TrainState()
        observer, writer = Own(), Fails([run.open_history()])
        saving = Saving(every_steps=1, keep_epochs=True)
        saves = BreaksOff(run.checkpoints, saving, manifest_entries=run.manifest_entries)
        observer.stop = writer.stop = saves.stop = stop
        trainer, loader = make(
            tiny,
            folder,
            state=state,
            evaluator=Judges(None, {}),
            writer=writer,
            observers=[observer],
            checkpointer=saves,
            log_every=2,
        )
        if checkpoint:
            load_checkpoint(checkpoint, trainer.model, trainer.optimizer)
        trainer.train(loader, state.epoch, 2)
        lines = map(json.loads, run.metrics.read_text().splitlines())
        return [{**line, "time": None} for line in lines]

    for name in ("broken", "unbroken"):
        (tmp_path / name).mkdir()
    with pytest.raises(BrokenOffError):
        train(tmp_path / "broken", stop)
    unbroken = train(tmp_path / "unbroken", None)
    if stop == "epoch is observed":  # what an observer raised over, it does not see again
        unbroken = [line for line in unbroken if line["value"] != -3]
    assert train(tmp_path / "broken", None) == unbroken


def test_regression_has_no_accuracy(tmp_path):
    points = paddle.rand([24, 3])
    data = paddle.io.TensorDataset([points, points.sum(axis=1, keepdim=True)])
    model = paddle.nn.Linear(3, 1)
    optimizer = paddle.optimizer.SGD(0.1, model.parameters())
    writer = JsonlWriter(tmp_path / "metrics.jsonl")
    with contextlib.closing(writer):
        trainer = Trainer(
            tmp_path / "m.pdparams",
            model,
            optimizer,
            loss_fn=paddle.nn.functional.mse_loss,
            writer=writer,
        )
        trainer.train(paddle.io.DataLoader(data, batch_size=8), 0, 1, tmp_path / "checkpoint")
    lines = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert {line["tag"] for line in lines} == {"train/loss", "train/lr"}
