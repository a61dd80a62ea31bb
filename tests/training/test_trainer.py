"""`Trainer`: the tutorial's own cells, the loop by hand, what is called when, what stops it."""

import json
import sys

import forked
import numpy as np
import paddle
import pytest
from fit_rows import Points, perceptron
from paddle.nn import functional as F
from synthetic_data import tiny_splits, write_json

from paddle_mnist import MNIST, BatchLoader, Observer, Trainer, watch
from paddle_mnist.checkpoint.manifest import PARAMS
from paddle_mnist.checkpoint.store import CheckpointStore
from paddle_mnist.errors import ConfigError

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
    """A writer and observer that keeps the values it receives."""

    def __init__(self):
        self.written, self.steps = [], []

    def write(self, state, values):
        self.written.append((state.step, dict(values)))

    def after_step(self, view):
        self.steps.append((view.step, view.state.position))

    def close(self):
        pass


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


def test_trainer_epochs_by_hand_are_those_of_train_and_may_continue(tmp_path, lines):
    (tmp_path / "other").mkdir()
    trainer, loader = make(tmp_path)
    trainer.train(loader, 0, 2, tmp_path / "first")
    by_hand, _ = make(tmp_path / "other")
    before = len(lines())
    for epoch in range(2):
        by_hand.train_epoch(loader, epoch)
    by_hand.save()
    assert trainer.model_path.read_bytes() == by_hand.model_path.read_bytes()
    printed = [line.partition(" lr")[0] for line in lines()[before:]]
    assert printed == ["epoch 1 step 3", "epoch 2 step 6"]  # of which there is no last one
    trainer.train(loader, 2, 3, tmp_path / "second")
    assert [path.name for path in tmp_path.glob("second/*.pdparams")] == ["model_epoch2.pdparams"]
    assert (trainer.state.epoch, trainer.state.step) == (3, 9)


class Stops(Recorder):
    """Notes whether it sees a loss when it is asked whether to stop."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def should_stop(self, view):
        self.asked.append("train/loss" in view.metrics)
        return False


def test_trainer_observers_see_the_metrics_of_an_earlier_train(tmp_path):
    observer = Stops()
    trainer, loader = make(tmp_path, observers=[observer])
    for epoch in range(2):
        trainer.train(loader, epoch, epoch + 1, tmp_path / "c")
    assert observer.asked == [False, True]


def test_trainer_attributes_may_be_replaced_between_epochs(tmp_path):
    trainer, loader = make(tmp_path)
    trainer.train_epoch(loader, 0)
    weights = [parameter.numpy() for parameter in trainer.model.parameters()]
    trainer.optimizer = paddle.optimizer.SGD(0.0, parameters=trainer.model.parameters())
    trainer.observers = [observer := Recorder()]
    trainer.train_epoch(loader, 1)
    assert len(observer.steps) == 3
    for before, parameter in zip(weights, trainer.model.parameters()):
        assert np.array_equal(before, parameter.numpy())


def test_trainer_interrupted_epoch_that_begins_again_is_whole(tmp_path):
    """Without the gradients of the step that was interrupted, as in a notebook."""
    calls = []

    def interrupted(logits, labels):
        calls.append(loss := F.cross_entropy(logits, labels))
        if len(calls) == 1:
            loss.backward()
            raise KeyboardInterrupt
        return loss

    unbroken, loader = make(tmp_path)
    unbroken.train(loader, 0, 1, tmp_path / "c")
    expected = unbroken.model_path.read_bytes()
    trainer, loader = make(tmp_path, loss_fn=interrupted)
    with pytest.raises(KeyboardInterrupt):
        trainer.train(loader, 0, 1, tmp_path / "c")
    state = trainer.train(loader, 0, 1, tmp_path / "c")
    assert (state.step, state.samples) == (3, SAMPLES)
    assert trainer.model_path.read_bytes() == expected


@pytest.mark.parametrize("width", [64, 40_000])
def test_trainer_step_that_ends_halfway_is_undone_or_not_saved(width, tmp_path, lines):
    """Some weights are changed and others not; large weights are not copied before each step."""

    class Breaks(paddle.optimizer.SGD):
        count = 0

        def step(self):
            super().step()
            self.count += 1
            if self.count == 2:
                raise MemoryError

    model = perceptron(width=width)
    trainer, loader = make(tmp_path, model, Breaks(0.05, parameters=model.parameters()))
    after_steps = []

    class Keeps(Observer):
        def after_step(self, view):
            after_steps.append({name: view.parameter(name) for name in view.parameters})

    trainer.observers = [Keeps()]
    with pytest.raises(MemoryError):
        trainer.train(loader, 0, 1, tmp_path / "c")
    newest = CheckpointStore(tmp_path / "c").newest()
    if width == 64:
        assert newest.step == 1
        saved = newest.load(PARAMS)
        assert all(np.array_equal(saved[name], value) for name, value in after_steps[0].items())
    else:
        assert newest is None
        assert any(
            "cannot be undone" in line and "more than 1 MiB" in line and "beginning" in line
            for line in lines()
        )


def test_trainer_parameters_of_one_name_raise(tmp_path):
    twice = paddle.nn.LayerList([MNIST(), MNIST()])
    optimizer = paddle.optimizer.SGD(0.1, parameters=twice.parameters())
    with pytest.raises(ConfigError, match="two parameters have one name"):
        Trainer(tmp_path / "x", twice, optimizer)


# Observers


class Look(Observer):
    """Checks that, of plain SGD, what changed is the rate times the gradient; then spoils it."""

    def __init__(self):
        self.steps, self.before = [], None

    def after_step(self, view):
        weight, gradient = view.parameter("0.weight"), view.gradient("0.weight")
        if self.before is not None:
            assert np.allclose(self.before - weight, 0.05 * gradient, atol=1e-6)
        self.before = weight.copy()
        self.steps.append((view.step, view.state.position))
        weight[:] = gradient[:] = 0
        view.state.step, view.metrics["train/loss"] = 99, 0

    def after_epoch(self, view):
        self.steps.append(view.state.epoch)


def test_observers_see_each_step_and_epoch_and_change_nothing(tmp_path):
    look, written = Look(), []
    for observers in ([], [look]):
        trainer, loader = make(tmp_path, observers=observers)
        trainer.train(loader, 0, 2, tmp_path / "checkpoint")
        files = (trainer.model_path, tmp_path / "checkpoint/model_epoch1.pdopt")
        written.append([file.read_bytes() for file in files])
    assert look.steps == [(1, 1), (2, 2), (3, 3), 1, (4, 1), (5, 2), (6, 3), 2]
    assert written[0] == written[1]


class Outputs(Observer):
    """Keeps a layer's output at every second step, and checks what the view says at others."""

    def __init__(self, layer="relu1"):
        self.layer, self.outputs, self.errors = layer, {}, []

    def recorded_layers(self, step):
        return [self.layer] if step % 2 == 0 else []

    def after_step(self, view):
        try:
            self.outputs[view.step] = view.output(self.layer)
            view.output(self.layer)[:] = 0  # a copy
        except ConfigError as error:
            self.errors.append(str(error))


@pytest.mark.parametrize("fast_conv", ["off", 1])
def test_observers_read_the_outputs_of_layers_at_the_steps_that_they_name(tmp_path, fast_conv):
    images = paddle.to_tensor(np.random.RandomState(1).rand(4, 8, 1, 28, 28).astype("float32"))
    weights, seen, hooks = [], Outputs(), []

    class Before(Observer):
        """Keeps what the layer computes with the weights before the step, and counts its hooks."""

        def after_step(self, view):
            hooks.append(len(model.relu1._forward_post_hooks))
            if view.step < len(images):
                outputs[view.step + 1] = model.relu1(model.conv1(images[view.step])).numpy()

    for observers in ([], [Before(), seen]):
        paddle.seed(1)
        model, outputs = MNIST(fast_conv=fast_conv), {}
        optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
        trainer = Trainer(tmp_path / "model", model, optimizer, observers=observers)
        batches = [(batch, paddle.zeros([8, 1], "int64")) for batch in images]
        trainer.train(batches, 0, 1, tmp_path / "c")
        weights.append(model.conv1.weight.numpy())
    assert np.array_equal(*weights)
    assert list(seen.outputs) == [2, 4] and hooks == [0, 0, 0, 0]
    tolerance = 0 if fast_conv == "off" else 1e-6  # the compiled convolution rounds differently
    for step, output in seen.outputs.items():
        np.testing.assert_allclose(output, outputs[step], rtol=tolerance, atol=tolerance)
    assert (
        len(seen.errors) == 2 and "'relu1' was not recorded in step 1; expected" in seen.errors[0]
    )
    trainer.observers = [Outputs("relu3")]
    with pytest.raises(ConfigError, match="recorded_layers: unknown name 'relu3'; did you mean"):
        trainer.train(batches, 0, 1, tmp_path / "c")


def test_watch_as_an_observer_writes_its_values(tmp_path):
    recorder = Recorder()
    trainer, loader = make(tmp_path, writer=recorder)
    trainer.observers = [watch(trainer.model, every=2)]
    trainer.train(loader, 0, 2, tmp_path / "checkpoint")
    watched = {(step, tag) for step, values in recorder.written for tag in values}
    assert {step for step, tag in watched if tag.startswith("watch/")} == {1, 2, 4, 6}
    assert (4, "watch/0.weight/update_ratio") in watched


class Calls(Observer):
    """Returns after each step what a function of the view does."""

    def __init__(self, function):
        self.after_step = function


def test_observers_may_return_any_one_number_and_raise_for_others(tmp_path):
    recorder = Recorder()
    numbers = [1, 0.5, np.int64(1), np.bool_(True), np.ones(1), paddle.ones([])]
    values = {f"own/{number}": value for number, value in enumerate(numbers)}
    trainer, loader = make(tmp_path, observers=[Calls(lambda view: values)], writer=recorder)
    trainer.train(loader, 0, 1, tmp_path / "c")
    own = [values for _, values in recorder.written if "own/0" in values]
    assert [[*values.values()] for values in own] == [[1, 0.5, 1, 1, 1, 1]] * 3
    json.dumps(own)
    for function, message in (
        (lambda view: {"own": "high"}, "Calls gave .* as 'own'; expected one number"),
        (lambda view: {"own": np.ones(2)}, "Calls gave .* as 'own'; expected one number"),
        (lambda view: view.gradient("2.weights"), r"unknown name '2.weights'; did you mean"),
    ):
        trainer, loader = make(tmp_path, observers=[Calls(function)])
        with pytest.raises(ConfigError, match=message):
            trainer.train(loader, 0, 1, tmp_path / "c")
