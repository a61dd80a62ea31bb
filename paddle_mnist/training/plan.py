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
    steps_per_epoch: in one, where `accumulate` batches are one step, whatever the processes.
    epochs: as passed to `fit`.
    """

    steps: int
    steps_per_epoch: int
    epochs: int


def build_optimizer(build: Callable[..., Any], parameters: list[Any], plan: Optional[Plan]) -> Any:
    """Call a function of the parameters, and of the plan if it has a parameter for it.

    That is one named `plan`, or else a second one without a default. plan: None if the data have no
    length. Raises ConfigError if the function needs it then.
    """
    takes = _plan_parameter(build)
    if not takes:
        return build(parameters)
    if not plan:
        raise ConfigError(
            f"the optimizer's function takes the plan of the run, as {takes!r}, but the training "
            "data have no length; expected Loading(steps_per_epoch=...), a paddle.io.Dataset, or a "
            "function of the parameters alone"
        )
    return build(parameters, plan) if takes != "plan" else build(parameters, plan=plan)


def _plan_parameter(build: Callable[..., Any]) -> Optional[str]:
    """Return the name of the parameter that takes the plan; None if there is none."""
    try:
        parameters = inspect.signature(build).parameters
    except (TypeError, ValueError):  # code in C may have no signature
        return None
    is_bound = isinstance(build, functools.partial) and "plan" in build.keywords
    if "plan" in parameters and not is_bound:
        return "plan"
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    second = [p for p in parameters.values() if p.kind in kinds][1:2]
    return next((p.name for p in second if p.default is inspect.Parameter.empty), None)


def check_schedule(schedule: Schedule, plan: Optional[Plan]) -> None:
    """Warn of a schedule whose own length is not that of the run."""
    if not plan or not (length := own_length(schedule.scheduler)):
        return
    name, *numbers = length
    steps, unit = {"step": (plan.steps, "steps")}.get(schedule.every, (plan.epochs, "epochs"))
    if min(abs(number - steps) for number in numbers) > 1:
        log.warning(
            f"{name} of the schedule is {numbers[0]:,}; this run takes {steps:,} {unit}, after "
            "each of which the schedule advances; to build it for the run, give the optimizer's "
            f"function a parameter plan, and use plan.{unit}"
        )
