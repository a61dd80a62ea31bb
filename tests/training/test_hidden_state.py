"""State hidden anywhere: a run resumes to the same bits, or is refused by the state's name."""

import collections
import functools
import itertools

import numpy as np
import paddle
import pytest
import usual_programs
from fit_rows import ProgramError, StopsAt, stop
from flat_options import grouped
from hiding_places import DRAWN, KINDS, PLACES, UNSAVABLE, linear, sgd, task
from hypothesis import given, settings
from hypothesis import strategies as st
from paddle import nn
from paddle.nn import functional as F
from small_nets import CLASSES, WIDTH, Points
from stateful_rows import seeded

from paddle_mnist import Callback, fit, is_rehearsal
from paddle_mnist.checkpoint.weights import load
from paddle_mnist.errors import ConfigError

EPOCHS, STEPS = 3, 12
CASES = [
    (place, influence)
    for place, details in PLACES.items()
    for influence in (*details.influences, None)
]


class Started(Callback):
    """Knows whether a step was trained, apart from a rehearsal."""

    def __init__(self):
        self.is_true = False

    def after_step(self, view):
        self.is_true |= not is_rehearsal()


def train(output, build, *callbacks, **options):
    """Train as a new process does: `build` builds the arguments of `fit` anew."""
    with paddle.utils.unique_name.guard():
        values = {**build(), **options}
        callbacks = [*values.pop("callbacks", ()), *callbacks]
        arguments = grouped(
            **values,
            callbacks=callbacks,
            epochs=EPOCHS,
            batch_size=3,
            seed=3,
            output=output,
            visualdl=(),
            figures=False,
            device="cpu",
        )
        return fit(**arguments)


def bits(result):
    weights = {name: np.asarray(value).tobytes() for name, value in load(result.weights).items()}
    return {**weights, **result.metrics, "file": result.weights.read_bytes()}


def train_or_refuse(folder, build):
    """Return the result of a training, or the text of the error if it is refused at the start."""
    started = Started()
    try:
        return train(folder, build, started), None
    except ConfigError as error:
        assert not started.is_true, f"refused only after a step was trained: {error}"
        assert not list(folder.rglob("*.pdparams")), f"refused, but a checkpoint exists: {error}"
        return None, str(error)


def resumed(folder, build, step, killed):
    """Stop after a step, and return the result of the same call in a new process.

    killed: nothing is saved as it ends, so that the run goes on from the step before.
    """
    options = {"save_every_steps": 1, "save_on_exception": False} if killed else {}
    with pytest.raises(ProgramError):
        train(folder, build, StopsAt(step, stop), **options)
    return train(folder, build, **options)


def check(folder, build, step, killed, has_influence=True, names=("hidden", "step.args")):
    """Return whether hidden state is saved; else it was refused by its name."""
    unbroken, text = train_or_refuse(folder / "unbroken", build)
    if text:
        assert has_influence, f"refused, though it has no influence: {text}"
        found = [name for name in names if name in text.lower()]
        assert found, f"the text does not name the attribute: {text}"
        return False
    result = resumed(folder / "resumed", build, step, killed)
    assert result.stopped == "finished"
    assert bits(result) == bits(unbroken), f"other bits, resumed after step {step}"
    return True


def check_case(folder, place, kind, influence, step, killed):
    build = functools.partial(task, place, kind, influence)
    # A generator of the data's own may matter now and then, as in a flip of few images, although
    # two readings agree: it may be refused in any case.
    has_influence = bool(influence) or (PLACES[place].of_data and kind in DRAWN)
    return check(folder, build, step, killed, has_influence)


def hidden_states(examples):
    """Return the decorator of a test of so many random examples."""

    def decorate(test):
        return settings(max_examples=examples, derandomize=True)(
            given(
                case=st.sampled_from(CASES),
                kind=st.sampled_from(list(KINDS)),
                step=st.integers(1, STEPS - 1),
                killed=st.booleans(),
            )(test)
        )

    return decorate


def check_example(tmp_path_factory, case, kind, step, killed):
    place, influence = case
    folder = tmp_path_factory.mktemp("hidden")
    check_case(folder, place, kind, influence, step, killed)


@hidden_states(20)
def test_hidden_state_is_saved_or_refused(tmp_path_factory, case, kind, step, killed):
    check_example(tmp_path_factory, case, kind, step, killed)


@pytest.mark.release
@hidden_states(200)
def test_hidden_state_is_saved_or_refused_in_many_examples(
    tmp_path_factory, case, kind, step, killed
):
    check_example(tmp_path_factory, case, kind, step, killed)


PLAIN_PLACES = [place for place, details in PLACES.items() if not details.of_data]


@pytest.mark.parametrize("place", PLAIN_PLACES)
def test_plain_state_is_saved_at_every_place(place, tmp_path):
    influence = PLACES[place].influences[0]
    assert check_case(tmp_path, place, "int", influence, step=6, killed=False), "refused"


@pytest.mark.release
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in UNSAVABLE])
@pytest.mark.parametrize("place", ["optimizer", "schedule", "step's closure"])
def test_every_plain_kind_is_saved(place, kind, tmp_path):
    influence = PLACES[place].influences[0]
    assert check_case(tmp_path, place, kind, influence, step=9, killed=True), "refused"


@pytest.mark.parametrize("place", [place for place in PLACES if PLACES[place].of_data])
def test_samples_that_differ_when_read_again_are_refused(place, tmp_path):
    assert not check_case(tmp_path, place, "int", "inputs", step=6, killed=False), "trained"


class After(Callback):
    """Calls a function after each step or epoch."""

    def __init__(self, step=None, epoch=None):
        self.step, self.epoch = step, epoch

    def after_step(self, view):
        if self.step:
            self.step()

    def after_epoch(self, view):
        if self.epoch:
            self.epoch()


def base(**others):
    return {
        "model": linear,
        "optimizer": sgd,
        "loss": F.cross_entropy,
        "train": Points(12),
        "valid": Points(6),
        **others,
    }


def gradients_left_over():
    """The generator's loss leaves gradients in the discriminator, which its next step adds to."""
    discriminator = seeded(lambda: nn.Linear(CLASSES, 1))
    optimizer = paddle.optimizer.SGD(0.1, parameters=discriminator.parameters())

    def step(model, batch):
        outputs = model(batch[0])
        if model.training:
            (discriminator(outputs.detach()) ** 2).mean().backward()
            optimizer.step()
            optimizer.clear_grad()  # and not before the backward pass
        return {"loss": (discriminator(outputs) - 1).square().mean()}

    state = {"discriminator": discriminator, "discriminator_optimizer": optimizer}
    return base(step=step, loss=None, state=state)


def trained_by_hand():
    """The step trains a layer of its own without an optimizer, and leaves gradients in it."""
    other = seeded(lambda: nn.Linear(CLASSES, 1))

    def step(model, batch):
        outputs = model(batch[0])
        if model.training:
            other.clear_gradients()
            (other(outputs.detach()) ** 2).mean().backward()
            for parameter in other.parameters():
                parameter.set_value(parameter - 0.1 * parameter.grad)
        return {"loss": (other(outputs) - 1).square().mean()}

    return base(step=step, loss=None)


class Scale(nn.Layer):
    """A layer that only the step uses, and the optimizer has."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(CLASSES, 1)

    def forward(self, outputs):
        return (self.head(outputs) - 1).square().mean()


def trained_outside_the_model(in_state=False, is_bare=False, **others):
    scale = seeded(lambda: paddle.create_parameter([1], "float32") if is_bare else Scale())
    parameters = [scale] if is_bare else scale.parameters()

    def step(model, batch):
        outputs = model(batch[0])
        return {"loss": (outputs * scale - 1).square().mean() if is_bare else scale(outputs)}

    def optimizer(own):
        return paddle.optimizer.Momentum(0.1, parameters=[*own, *parameters])

    state = {"scale": scale} if in_state else None
    return base(step=step, loss=None, optimizer=optimizer, state=state, **others)


def gradients_never_cleared():
    """The step adds to the gradients of a layer that only it knows."""
    other = seeded(lambda: nn.Linear(CLASSES, 1))
    optimizer = paddle.optimizer.SGD(0.1, parameters=other.parameters())

    def step(model, batch):
        outputs = model(batch[0])
        if model.training:
            (other(outputs.detach()) ** 2).mean().backward()
            optimizer.step()
        return {"loss": (outputs + other(outputs).detach()).square().mean()}

    return base(step=step, loss=None)


def with_objects(act, model=linear, **options):
    """Build the net and the optimizer; a callback acts on both after each epoch."""
    net = seeded(model)
    optimizer = paddle.optimizer.Momentum(0.1, parameters=net.parameters(), **options)
    callback = After(epoch=lambda: act(net, optimizer))
    return base(model=net, optimizer=optimizer, callbacks=[callback])


def halve_rate(net, optimizer):
    optimizer.set_lr(optimizer.get_lr() / 2)


def clip_more(net, optimizer):
    optimizer._grad_clip.clip_norm /= 2


def drop_less(net, optimizer):
    net[1].p /= 2


def toggle_freezing(net, optimizer):
    net.bias.stop_gradient = not net.bias.stop_gradient


def with_dropout():
    return nn.Sequential(linear(), nn.Dropout(0.5))


def turns():
    """Two parts of the net are trained in turn, as the parts of a GAN are."""
    is_first = True

    def step(model, batch):
        nonlocal is_first
        points, labels = batch
        outputs = model(points)
        if model.training:
            outputs = outputs if is_first else outputs.detach() + 0 * outputs
            is_first = not is_first
        return {"loss": F.cross_entropy(outputs, labels)}

    return base(step=step, loss=None)


def every_second_batch():
    """Two steps bring this cycle back to where it was."""
    weights = itertools.cycle([1.0, 3.0])

    def step(model, batch):
        loss = F.cross_entropy(model(batch[0]), batch[1])
        return {"loss": loss * next(weights) if model.training else loss}

    return base(step=step, loss=None)


class ScaledByFirst(nn.Layer):
    """Takes its scale from the first batch, as ActNorm and weight normalization can."""

    def __init__(self):
        super().__init__()
        self.linear, self.scale = linear(), None

    def forward(self, points):
        outputs = self.linear(points)
        if self.scale is None:
            self.scale = 1 / np.abs(outputs.numpy()).max()
        return outputs * self.scale


class ScaledByLargest(nn.Layer):
    """Keeps the largest value so far, as an observer of a quantization does."""

    def __init__(self):
        super().__init__()
        self.linear, self.largest = linear(), 0.1

    def forward(self, points):
        outputs = self.linear(points)
        if self.training:
            self.largest = max(self.largest, outputs.abs().max().item())
        return outputs / self.largest


def loss_scale_in_shared_list():
    """A callback and the loss share a list: what is restored must be the same list for both."""
    recent = [1.0]

    def remember():
        recent.append(0.8 * recent[-1])

    def loss(outputs, labels):
        return F.cross_entropy(outputs, labels) * recent[-1]

    return base(loss=loss, callbacks=[After(step=remember)])


def optimizer_before_discriminator():
    """The step names the optimizer first, by which the discriminator's weights are found, too."""
    discriminator = seeded(lambda: nn.Linear(CLASSES, 1))
    optimizer = paddle.optimizer.SGD(0.1, parameters=discriminator.parameters())

    def step(model, batch, optimizer=optimizer, discriminator=discriminator):
        outputs = model(batch[0])
        if model.training:
            optimizer.clear_grad()
            (discriminator(outputs.detach()) ** 2).mean().backward()
            optimizer.step()
        return {"loss": (discriminator(outputs) - 1).square().mean()}

    return base(step=step, loss=None)


class Note:
    """An object of the user's own."""

    def __init__(self, value):
        self.value = value


class KeepsNotes(nn.Layer):
    """Keeps objects in a sequence that grows."""

    def __init__(self, kind, influence):
        super().__init__()
        self.linear, self.notes, self.influence = linear(), kind([Note(1.0)]), influence

    def forward(self, points):
        if self.training:
            note = Note(0.9 * list(self.notes)[-1].value)
            if isinstance(self.notes, tuple):
                self.notes = (*self.notes, note)
            else:
                self.notes.append(note)
        outputs = self.linear(points)
        return outputs * list(self.notes)[-1].value if self.influence else outputs


def spectral_norm():
    """Has buffers, which Paddle names by the number of temporary tensors in the process so far."""
    return nn.Sequential(nn.utils.spectral_norm(nn.Linear(WIDTH, CLASSES)))


def keeps_notes(kind, influence=True):
    return lambda: base(model=lambda: KeepsNotes(kind, influence))


def recent_notes(notes):
    return collections.deque(notes, maxlen=3)


# Programs as people write them: what builds one, and words one of which a refusal must contain.
PROGRAMS = {
    "gradients left over": (gradients_left_over, ["grad", "discriminator"]),
    "parameters outside the model": (trained_outside_the_model, []),
    "parameters in state": (lambda: trained_outside_the_model(in_state=True), []),
    "a parameter by itself": (lambda: trained_outside_the_model(is_bare=True), []),
    "parameters outside the model, in shards": (
        lambda: trained_outside_the_model(grad_shards=2),
        [],
    ),
    "spectral norm": (lambda: base(model=spectral_norm), []),
    "a layer trained by hand": (trained_by_hand, []),
    "gradients never cleared": (gradients_never_cleared, ["gradient of step.other"]),
    "rate set by a callback": (lambda: with_objects(halve_rate), ["learning_rate"]),
    "clipping changed by a callback": (
        lambda: with_objects(clip_more, grad_clip=nn.ClipGradByGlobalNorm(0.4)),
        ["clip_norm"],
    ),
    "dropout changed by a callback": (lambda: with_objects(drop_less, with_dropout), [".p"]),
    "layers frozen by a callback": (lambda: with_objects(toggle_freezing), ["stop_gradient"]),
    "parts trained in turn": (turns, ["is_first"]),
    "a cycle of two": (every_second_batch, ["weights"]),
    "scale of the first batch": (lambda: base(model=ScaledByFirst), ["scale"]),
    "largest value so far": (lambda: base(model=ScaledByLargest), ["largest"]),
    "a list shared by callback and loss": (loss_scale_in_shared_list, ["recent"]),
    "optimizer named before its discriminator": (optimizer_before_discriminator, []),
    "a list of objects": (keeps_notes(list), ["notes"]),
    "a deque of objects": (keeps_notes(recent_notes), ["notes"]),
    "a tuple of objects": (keeps_notes(tuple), ["notes"]),
}


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("step", [5, 9])  # inside the second and the third epoch
def test_programs_resume_or_are_refused(program, step, tmp_path):
    build, names = PROGRAMS[program]
    check(tmp_path, build, step, killed=False, names=names)


@pytest.mark.parametrize("program", usual_programs.SAVED)
@pytest.mark.parametrize("killed", [False, True])
def test_usual_programs_resume(program, killed, tmp_path):
    assert check(tmp_path, usual_programs.SAVED[program], 9, killed, has_influence=False)


@pytest.mark.parametrize("program", usual_programs.REFUSED)
def test_what_a_usual_program_keeps_is_refused_by_name(program, tmp_path):
    build, words = usual_programs.REFUSED[program]
    assert not check(tmp_path, build, 9, killed=False, names=[words])


@pytest.mark.parametrize("kind", [list, recent_notes, tuple])
def test_objects_without_influence_are_not_refused(kind, tmp_path):
    build = keeps_notes(kind, influence=False)
    assert check(tmp_path, build, step=6, killed=False, has_influence=False)
