"""One property of every program: stopped anywhere, in any way, it resumes to the same bits.

An example's name says all that it is: `-k "dropout-SIGKILL-step3"` repeats one that fails.
"""

import functools
import itertools
import math

import paddle
import pytest
from fit_rows import (
    CLASSES,
    REFUSED_DIVIDED,
    WIDTH,
    ProgramError,
    StopsAt,
    adam,
    bits,
    stop,
    train,
)
from paddle import nn
from paddle.nn import functional as F
from paddle.optimizer import lr
from silence import silent
from small_nets import with_dropout
from stateful_rows import falling_rate, seeded
from stopped_programs import (
    call,
    draw_examples,
    draw_for_two_processes,
    in_two_processes,
    some,
    stop_example,
)

from paddle_mnist import StartFrom
from paddle_mnist.errors import CheckpointError, ConfigError
from paddle_mnist.parallel.spawn import spawn
from paddle_mnist.plots.history import read_history, series

EXAMPLES, OF_TWO = draw_examples(), draw_for_two_processes()


def computed(result):
    """Return the results of a run, to the last bit, and its log lines without the time."""
    lines = read_history(result.weights.parent / "metrics.jsonl")
    return bits(result), [{**line, "time": None} for line in lines]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """Return a program's uninterrupted result in one process, by name and number of shards."""
    folder = tmp_path_factory.mktemp("unbroken")

    @functools.cache
    def train_once(program, shards=None):
        return computed(train(program, folder / f"{program} {shards}", grad_shards=shards))

    return train_once


@pytest.mark.parametrize("example", some(EXAMPLES, 40), ids=str)
def test_program_stopped_anywhere_resumes_to_the_same_bits(example, tmp_path, unbroken):
    allowed = ["the result may depend on the number of shards"] if example.shards else []
    with silent(*allowed):
        stop_example(example, tmp_path)
        result = call(example, tmp_path)
    assert result.stopped == "finished"
    assert computed(result) == unbroken(example.program, example.shards)


@pytest.mark.parametrize("program", ["GAN", "queue of keys in the step", "own optimizer"])
def test_program_without_a_rehearsal_has_the_same_bits(program, tmp_path, unbroken):
    assert computed(train(program, tmp_path, rehearse=False)) == unbroken(program)


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    """The folder where two processes have stopped and resumed some examples, and refused others."""

    @functools.cache
    def start(is_release):
        folder = tmp_path_factory.mktemp("processes")
        examples = OF_TWO[8:] if is_release else OF_TWO[:8]
        refused = () if is_release else REFUSED_DIVIDED
        spawn(in_two_processes, (str(folder), examples, refused), 2, device="cpu")
        return folder

    return start


@pytest.mark.slow
@pytest.mark.parametrize("example", some(OF_TWO, 8), ids=str)
def test_program_stopped_in_two_processes_resumes_to_the_bits_of_one(
    example, two_processes, unbroken
):
    folder = two_processes(example not in OF_TWO[:8]) / str(example)
    result = call(example, folder)
    assert result.stopped == "already finished"
    assert computed(result) == unbroken(example.program, example.shards)


@pytest.mark.slow
@pytest.mark.parametrize("program", REFUSED_DIVIDED)
def test_program_that_cannot_be_divided_raises_the_same_error_in_two_processes(
    program, two_processes
):
    folder = two_processes(False)
    first, second = ((folder / f"{program} {rank}.txt").read_text() for rank in (0, 1))
    assert first == second and "process" in first
    assert not list((folder / program).rglob("*.pdparams"))


def test_another_seed_draws_other_dropout(tmp_path):
    """From the same weights, on the same batches."""
    options = {"model": lambda: seeded(with_dropout), "shuffle": False}
    first, second = (train("dropout", tmp_path / str(n), seed=n, **options) for n in (5, 6))
    assert bits(first)["weights"] != bits(second)["weights"]


class InTurn(nn.Layer):
    """Makes its layers in another order each time, with the same weights."""

    number = itertools.count()

    def __init__(self):
        super().__init__()
        names = ["first", "second"]
        for name in names if next(self.number) % 2 else reversed(names):
            setattr(self, name, seeded(lambda: nn.Linear(WIDTH, WIDTH)))

    def forward(self, points):
        return self.second(F.relu(self.first(points)))


def test_layers_made_in_another_order_resume_to_the_same_bits(tmp_path):
    """Paddle numbers layers as they are made: by its own keys, moments would be mixed up."""
    options = {"model": InTurn, "optimizer": adam}
    unbroken = train("dropout", tmp_path / "unbroken", **options)
    with pytest.raises(ProgramError):
        train("dropout", tmp_path / "run", callbacks=[StopsAt(3, stop)], **options)
    assert bits(train("dropout", tmp_path / "run", **options)) == bits(unbroken)


def follows_the_schedule_of_look_ahead(lines):
    steps, rates = series(lines, "train/lr")
    assert steps == [3, 5, 6, 9, 10]
    schedule, expected = falling_rate(), []
    for _ in range(10):
        expected.append(schedule.get_lr())
        schedule.step()
    return rates == pytest.approx([expected[step - 1] for step in steps])


def test_schedule_of_an_inner_optimizer_is_stepped_and_logged(unbroken):
    assert follows_the_schedule_of_look_ahead(unbroken("LookAhead")[1])


def test_run_that_starts_from_another_begins_the_schedule_of_an_inner_optimizer(tmp_path):
    train("LookAhead", tmp_path / "first")
    _, lines = computed(train("LookAhead", tmp_path / "run", start=StartFrom(tmp_path / "first")))
    assert follows_the_schedule_of_look_ahead(lines)


def test_optimizer_in_state_of_another_class_is_refused(tmp_path):
    """SGD has no state, which another optimizer would take for one that has not begun."""

    def options(kind):
        scale = paddle.create_parameter([1], "float32")
        second = kind(0.01, parameters=[scale])

        def step(model, batch):
            if model.training:
                (scale**2).sum().backward()
                second.step()
                second.clear_grad()
            return {"loss": F.cross_entropy(model(batch[0] * scale.detach()), batch[1])}

        return {"step": step, "loss": None, "metrics": None, "state": {"second": second}}

    sgd, adam = paddle.optimizer.SGD, paddle.optimizer.Adam
    with pytest.raises(ProgramError):
        train("dropout", tmp_path, callbacks=[StopsAt(4, stop)], **options(sgd))
    with pytest.raises(CheckpointError, match=r"second.*: the optimizers differ: SGD there, Adam"):
        train("dropout", tmp_path, **options(adam))
    train("dropout", tmp_path, **options(sgd))


class Masked(nn.Layer):
    """Has a buffer of each dtype, which steps change."""

    def __init__(self, dtypes):
        super().__init__()
        self.out = nn.Linear(WIDTH, CLASSES)
        for dtype in dtypes:
            mask = paddle.to_tensor([1, 0, 1, 1, 0, 1]).astype(dtype)
            self.register_buffer(f"mask_{dtype}", mask)

    def forward(self, points):
        for buffer in self.buffers():
            mask = buffer.astype("float32")
            points = points + mask
            if self.training:
                buffer.set_value((1 - mask).astype(buffer.dtype))
        return self.out(points)


DTYPES = "bool int8 uint8 int16 int32 int64 float32 float64 complex64".split()


@pytest.mark.parametrize("ema", [0, 0.9])
def test_buffers_of_any_dtype_are_saved_and_resume(ema, tmp_path):
    # A CPU adds up no bfloat16.
    dtypes = DTYPES if ema else [*DTYPES, "bfloat16"]
    options = {"model": lambda: seeded(lambda: Masked(dtypes)), "ema": ema}
    unbroken = train("dropout", tmp_path / "unbroken", **options)
    with pytest.raises(ProgramError):
        train("dropout", tmp_path / "run", callbacks=[StopsAt(4, stop)], **options)
    assert bits(train("dropout", tmp_path / "run", **options)) == bits(unbroken)


class Worsening(lr.LRScheduler):
    """Begins with an infinite best value, as users write it; NaN and infinity come and go."""

    def __init__(self):
        self.best, self.bounds, self.calls = math.inf, [0.0, math.inf], 0
        super().__init__(0.1)

    def get_lr(self):
        self.calls += 1
        self.best = {3: math.nan, 4: 0.5, 7: -math.inf}.get(self.calls, self.best)
        self.bounds = [float(self.calls), math.inf]
        return 0.1 / (1 + (self.best < 1) + self.bounds[0])


@pytest.mark.parametrize("step", [1, 3, 5, 8])
def test_schedule_with_numbers_that_json_lacks_resumes_to_the_same_bits(step, tmp_path):
    def optimizer(parameters):
        return paddle.optimizer.SGD(Worsening(), parameters)

    options = {"optimizer": optimizer, "must_match": {"limit": math.inf}}
    unbroken = train("dropout", tmp_path / "unbroken", **options)
    with pytest.raises(ProgramError):
        train("dropout", tmp_path / "run", callbacks=[StopsAt(step, stop)], **options)
    assert bits(train("dropout", tmp_path / "run", **options)) == bits(unbroken)
    with pytest.raises(ConfigError, match=r"limit.*Infinity"):
        train("dropout", tmp_path / "run", **{**options, "must_match": {"limit": 3}})


L1 = paddle.regularizer.L1Decay(0.01)
# Each optimizer with a schedule; Rprop takes none.
OPTIMIZERS = {
    "RMSProp": ({"centered": True, "momentum": 0.5}, lambda: lr.StepDecay(0.1, 3)),
    "Momentum": ({"use_nesterov": True}, lambda: lr.LinearWarmup(lr.StepDecay(0.1, 2), 3, 0, 0.1)),
    "Adadelta": ({}, lambda: lr.CosineAnnealingDecay(0.1, T_max=8)),
    "Adagrad": ({}, lambda: lr.CyclicLR(0.01, 0.1, step_size_up=3, mode="triangular2")),
    "Adam": ({"beta1": 0.8}, lambda: lr.ExponentialDecay(0.1, 0.9)),
    "Adamax": ({}, lambda: lr.InverseTimeDecay(0.1, 0.5)),
    "AdamW": ({"weight_decay": 0.1}, lambda: lr.LambdaDecay(0.1, lambda step: 0.95**step)),
    "ASGD": ({"batch_num": 3}, lambda: lr.MultiplicativeDecay(0.1, lambda step: 0.95)),
    "Lamb": ({"lamb_weight_decay": 0.1}, lambda: lr.MultiStepDecay(0.1, [2, 6, 8])),
    "NAdam": ({}, lambda: lr.NaturalExpDecay(0.1, 0.1)),
    "RAdam": ({}, lambda: lr.OneCycleLR(0.1, total_steps=10)),
    "Rprop": ({}, lambda: 0.1),
    "SGD": ({"weight_decay": L1}, lambda: lr.PiecewiseDecay([3, 8], [0.1, 0.05, 0.01])),
}


KNOWN = [name for name in OPTIMIZERS if hasattr(paddle.optimizer, name)]


@pytest.mark.filterwarnings("error:There are some unused values")
@pytest.mark.parametrize("name", some(KNOWN, 2))
def test_optimizer_and_schedule_stopped_twice_resume_to_the_same_bits(name, tmp_path):
    options, schedule = OPTIMIZERS[name]

    def optimizer(parameters):
        build = getattr(paddle.optimizer, name)
        return build(learning_rate=schedule(), parameters=parameters, **options)

    program = "SGD with clipping"
    unbroken = train(program, tmp_path / "unbroken", optimizer=optimizer)
    for step in (3, 8):
        with pytest.raises(ProgramError):
            train(program, tmp_path / "run", callbacks=[StopsAt(step, stop)], optimizer=optimizer)
    assert bits(train(program, tmp_path / "run", optimizer=optimizer)) == bits(unbroken)
