"""The length of a run, for the function that builds the optimizer and its schedule."""

import functools
import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Optional

from paddle_mnist.errors import ConfigError
from paddle_mnist.nn.schedule import Schedule, own_length

log = logging.getLogger("paddle_mnist")


@dataclass(frozen=True)
class Plan:
    """The length of a run.

    steps: optimizer steps in all epochs, at most `Loading(max_steps=...)`.
    steps_per_epoch: optimizer steps in one epoch, for any number of processes; `accumulate` batches
        are one step.
    epochs: as passed to `fit`.
    """

    steps: int
    steps_per_epoch: int
    epochs: int


def build_optimizer(build: Callable[..., Any], parameters: list[Any], plan: Optional[Plan]) -> Any:
    """Call a function with the parameters, and with the plan if it has a parameter for it.

    That is one named `plan`, or else a second one without a default. plan: None if the data have no
    length; the function then uses its default. Raises ConfigError if it has none.
    """
    takes = _plan_parameter(build)
    if not takes or (not plan and takes.default is not takes.empty):
        return build(parameters)
    if not plan:
        raise ConfigError(
            f"the optimizer's function takes the plan of the run, as {takes.name!r}, but the "
            "training data have no length; expected Loading(steps_per_epoch=...), a "
            "paddle.io.Dataset, or a function of the parameters alone"
        )
    return build(parameters, plan) if takes.name != "plan" else build(parameters, plan=plan)


def _plan_parameter(build: Callable[..., Any]) -> Optional[inspect.Parameter]:
    """Return the parameter that takes the plan; None if there is none."""
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    try:
        parameters = inspect.signature(build, follow_wrapped=False).parameters
        # A decorator that takes any arguments passes them on; another may pass some itself.
        if any(p.kind in variable for p in parameters.values()):
            parameters = inspect.signature(build).parameters
    except (TypeError, ValueError):  # code in C may have no signature
        return None
    is_bound = isinstance(build, functools.partial) and "plan" in build.keywords
    if "plan" in parameters and not is_bound:
        return parameters["plan"]
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    second = [p for p in parameters.values() if p.kind in kinds][1:2]
    return next((p for p in second if p.default is inspect.Parameter.empty), None)


def check_schedule(schedule: Schedule, plan: Optional[Plan]) -> None:
    """Warn of a schedule whose length is not that of the run."""
    if not plan or not (length := own_length(schedule.scheduler)):
        return
    name, *numbers = length
    steps, unit = {"step": (plan.steps, "steps")}.get(schedule.every, (plan.epochs, "epochs"))
    if min(abs(number - steps) for number in numbers) > 1:
        log.warning(
            f"{name} of the schedule is {numbers[0]:,}; this run takes {steps:,} {unit}, after "
            "each of which the schedule advances; to fit it to the run, give the optimizer's "
            f"function a parameter plan, and use plan.{unit}"
        )
