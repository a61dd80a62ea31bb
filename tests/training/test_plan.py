"""The length of a run, as the function that builds the optimizer gets it."""

import functools

import paddle
import pytest
from fit_rows import ProgramError, StopsAt, bits, history, stop, train
from paddle.optimizer import lr
from small_nets import Points

from paddle_mnist.errors import ConfigError
from paddle_mnist.training.plan import build_optimizer

ROW = "SGD with clipping"  # 33 samples in batches of 8: five steps an epoch, of two epochs


def sgd(rate, parameters):
    return paddle.optimizer.SGD(rate, parameters)


def seen_by(build, tmp_path, **options):
    """Return what a function gets beside the parameters."""
    seen = []
    train(ROW, tmp_path / "run", optimizer=build(seen), **options)
    return seen[0]


def named(seen):
    return lambda parameters, plan: seen.append(plan) or sgd(0.1, parameters)


def named_with_default(seen):
    return lambda parameters, rate=0.1, *, plan=None: seen.append(plan) or sgd(rate, parameters)


def second(seen):
    return lambda parameters, length: seen.append(length) or sgd(0.1, parameters)


def of_a_class(seen):
    class Build:
        def __call__(self, parameters, plan):
            seen.append(plan)
            return sgd(0.1, parameters)

    return Build()


def optional(seen):
    return lambda parameters, lr=0.1: seen.append(lr) or sgd(lr, parameters)


def bound(seen):
    def build(parameters, plan, rate=0.2):
        seen.append(plan)
        return sgd(rate, parameters)

    return functools.partial(build, plan="mine")


def partly_bound(seen):
    def build(rate, parameters, plan):
        seen.append(plan)
        return sgd(rate, parameters)

    return functools.partial(build, 0.1)


def decorated(seen):
    @functools.wraps(named(seen))
    def build(*args, **kwargs):
        return named(seen)(*args, **kwargs)

    return build


def decorated_with_a_rate(seen):
    def rated(parameters, rate):
        seen.append(rate)
        return sgd(rate, parameters)

    @functools.wraps(rated)
    def build(parameters):
        return rated(parameters, 0.1)

    return build


@pytest.mark.parametrize(
    "build", [named, named_with_default, second, of_a_class, partly_bound, decorated]
)
def test_function_with_a_parameter_for_it_gets_the_plan(build, tmp_path):
    plan = seen_by(build, tmp_path)
    assert (plan.steps, plan.steps_per_epoch, plan.epochs) == (10, 5, 2)


@pytest.mark.parametrize(
    "build, expected", [(optional, 0.1), (bound, "mine"), (decorated_with_a_rate, 0.1)]
)
def test_any_other_function_works_as_before(build, expected, tmp_path):
    assert seen_by(build, tmp_path) == expected


@pytest.mark.parametrize(
    "options, steps, steps_per_epoch",
    [
        ({"accumulate": 2}, 6, 3),
        ({"drop_last": True}, 8, 4),
        ({"max_steps": 7}, 7, 5),
        ({"max_steps": 70}, 10, 5),
        ({"steps_per_epoch": 3}, 6, 3),
        ({"grad_shards": 2, "accumulate": 2}, 6, 3),
    ],
)
def test_plan_counts_the_steps_of_the_optimizer(options, steps, steps_per_epoch, tmp_path):
    plan = seen_by(named, tmp_path, **options)
    assert (plan.steps, plan.steps_per_epoch) == (steps, steps_per_epoch)


def batches():
    points = Points()
    return iter([points[0]])


def test_plan_of_data_without_a_length_raises(tmp_path):
    """A function of the parameters alone does not need one."""
    for build in (named, second):
        with pytest.raises(ConfigError) as raised:
            seen_by(build, tmp_path, train=batches)
        (line,) = str(raised.value).splitlines()
        assert "the training data have no length; expected Loading(steps_per_epoch=...)" in line
    assert not (tmp_path / "run").exists()


def test_plan_with_a_default_may_be_missing():
    seen = []
    build_optimizer(named_with_default(seen), paddle.nn.Linear(1, 1).parameters(), None)
    assert seen == [None]


def warmed_up(parameters, plan):
    rate = lr.LinearWarmup(lr.CosineAnnealingDecay(0.1, plan.steps - 3), 3, 0.0, 0.1)
    return sgd(rate, parameters)


def test_schedule_of_the_plan_resumes_to_the_same_bits(tmp_path, lines):
    unbroken = train(ROW, tmp_path / "unbroken", optimizer=warmed_up, log_every=1)
    assert history(tmp_path / "unbroken", "train/lr")[1][-1] < 0.01
    with pytest.raises(ProgramError):
        train(ROW, tmp_path / "run", optimizer=warmed_up, callbacks=[StopsAt(7, stop)])
    assert bits(train(ROW, tmp_path / "run", optimizer=warmed_up)) == bits(unbroken)
    assert not [line for line in lines() if "of the schedule" in line]


def test_override_of_epochs_changes_the_plan_and_moves_the_schedule(tmp_path, lines):
    train(ROW, tmp_path / "run", optimizer=warmed_up)
    with pytest.raises(ConfigError, match=r"schedule\.learning_rate\.T_max: 7 in the run, 17 now"):
        train(ROW, tmp_path / "run", optimizer=warmed_up, epochs=4, override="epochs")
    longer = {"optimizer": warmed_up, "epochs": 4, "log_every": 1}
    train(ROW, tmp_path / "run", override="epochs,schedule", **longer)
    train(ROW, tmp_path / "unbroken", **longer)
    rates = [history(tmp_path / name, "train/lr")[1][-10:] for name in ("run", "unbroken")]
    assert rates[0] == pytest.approx(rates[1])
    moved = [line for line in lines() if "the schedule has changed, and is moved to where" in line]
    assert moved and "after step 10" in moved[0]


@pytest.mark.parametrize(
    "schedule, options, name",
    [
        (lambda: lr.CosineAnnealingDecay(0.1, 100), {}, "T_max"),
        (lambda: lr.CosineAnnealingDecay(0.1, 2), {}, "T_max"),  # of epochs
        (lambda: lr.CosineAnnealingDecay(0.1, 10), {"schedule_every": "epoch"}, "T_max"),
        (lambda: lr.OneCycleLR(0.1, total_steps=50), {}, "total_steps"),
        (lambda: lr.CosineAnnealingDecay(0.1, 10), {}, None),
        (lambda: lr.CosineAnnealingDecay(0.1, 9), {}, None),  # ends with the last step
        (lambda: lr.OneCycleLR(0.1, total_steps=10), {}, None),
        (lambda: lr.LinearWarmup(lr.CosineAnnealingDecay(0.1, 10), 3, 0.0, 0.1), {}, None),
        (lambda: lr.CosineAnnealingDecay(0.1, 2), {"schedule_every": "epoch"}, None),
        (lambda: lr.StepDecay(0.1, 100), {}, None),
    ],
)
def test_schedule_of_another_length_gets_a_line(schedule, options, name, tmp_path, lines):
    train(ROW, tmp_path / "run", optimizer=lambda p: sgd(schedule(), p), **options)
    said = [line for line in lines() if " of the schedule is " in line]
    assert len(said) == bool(name)
    unit = "2 epochs" if options else "10 steps"
    assert not said or (said[0].startswith(f"{name} of the schedule") and unit in said[0])
