"""Translate the state of an optimizer to the names of parameters in the model, and load it."""

from collections.abc import Collection, Container, Mapping, Sequence
from typing import Any, Optional

import paddle
from paddle import nn
from paddle.utils import unique_name

from paddle_mnist.errors import WEIGHTS_ALONE, CheckpointError, ConfigError, listed
from paddle_mnist.hidden_state.object_graph import is_users
from paddle_mnist.hidden_state.snapshot import Snapshot
from paddle_mnist.nn.schedule import STATE, load_state, schedule_numbers
from paddle_mnist.nn.state_dict import require_match, without_name_table

# By structured names, such as "conv1.weight". Paddle generates `.name`, which may differ in another
# process.
Parameters = Mapping[str, paddle.Tensor]
MOST_STEPS = 64  # after which an optimizer has its state


def optimizer_parameters(optimizer: paddle.optimizer.Optimizer) -> list[paddle.Tensor]:
    """Return all parameters of an optimizer, including those of its groups."""
    groups = optimizer._parameter_list or []
    return [
        parameter
        for group in groups
        for parameter in (group["params"] if isinstance(group, dict) else [group])
    ]


def cleared_parameters(optimizer: paddle.optimizer.Optimizer) -> list[paddle.Tensor]:
    """Return the parameters whose gradients the optimizer of a run clears as a step begins.

    A user's own class may clear them in some steps only.
    """
    is_paddles = not is_users(type(optimizer).clear_grad.__module__)
    return optimizer_parameters(optimizer) if is_paddles else []


def own_parameters(optimizer: paddle.optimizer.Optimizer, parameters: Parameters) -> Parameters:
    """Return an optimizer's parameters by their names among others, or else by number."""
    names = generated_names(parameters)
    own = optimizer_parameters(optimizer)
    return {names.get(p.name, f"parameter {number}"): p for number, p in enumerate(own)}


def require_distinct_names(model: nn.Layer, optimizer: paddle.optimizer.Optimizer) -> None:
    """Raise ConfigError if two parameters share a name, by which an optimizer keeps its state."""
    parameters = [*model.parameters(), *optimizer_parameters(optimizer)]
    names = {id(parameter): parameter.name for parameter in parameters}
    if len(set(names.values())) < len(names):
        raise ConfigError(
            "two parameters have one name, so the optimizer would mix up their states; give "
            "each model layers of its own, and create layers outside unique_name.guard"
        )


def require_trained(parameters: Parameters, optimizers: Collection[Any]) -> None:
    """Raise ConfigError if there are parameters that no optimizer has."""
    trained = {id(p) for optimizer in optimizers for p in optimizer_parameters(optimizer)}
    untrained = [name for name, parameter in parameters.items() if id(parameter) not in trained]
    if untrained:
        raise ConfigError(
            f"no optimizer has {listed(untrained)}, so they would never be trained; freeze them "
            "with stop_gradient=True, or add them to an optimizer: to the one passed to fit (a "
            "function gets the model's parameters, then the loss's, and may add others) or to one "
            "in state"
        )


def generated_names(parameters: Parameters) -> dict[str, str]:
    """Return the structured names of parameters by those that Paddle generated."""
    return {parameter.name: name for name, parameter in parameters.items()}


def structured_state(state: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return an optimizer's state_dict by structured names, such as "conv1.weight moment1".

    Paddle's entry of generated names is left out. names: the structured names, by these.
    """
    entries = without_name_table(state).items()
    return {_structured_key(key, names): value for key, value in entries}


def parameters_with_state(
    optimizer: paddle.optimizer.Optimizer, parameters: Parameters
) -> list[str]:
    """Return the structured names of the parameters for which an optimizer has state.

    Paddle creates the state in the first step that has a gradient for the parameter.
    """
    names = generated_names(parameters)
    owners = {_owner(key, names) for key in optimizer.state_dict()}
    return [name for name, parameter in parameters.items() if parameter.name in owners]


def optimizer_contents(
    optimizer: paddle.optimizer.Optimizer, parameters: Parameters
) -> dict[str, Any]:
    """Return the state of an optimizer and its schedule as plain data.

    parameters: by structured name; others than its own may be among them, and its own missing.
    """
    own = own_parameters(optimizer, parameters)
    return {
        "class": type(optimizer).__name__,
        "parameters": parameters_with_state(optimizer, own),
        "state": structured_state(optimizer.state_dict(), generated_names(own)),
        # `_var_name` is a generated name, which differs each time an optimizer uses the schedule.
        "schedule": _without(schedule_numbers(optimizer), "_var_name"),
    }


def _without(numbers: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {
        key: _without(value, name) if isinstance(value, Mapping) else value
        for key, value in numbers.items()
        if key != name
    }


def load_optimizer(
    optimizer: paddle.optimizer.Optimizer,
    saved: Mapping[str, Any],
    parameters: Parameters,
    origin: Any,
    keeps_schedule: bool = False,
) -> None:
    """Load the state and the schedule that `optimizer_contents` returned into an optimizer.

    saved: it may also have "names", of all parameters when it was saved; by default the present
    ones. A parameter that is not among them has state if it is trained.
    parameters: see `optimizer_contents`. origin: where the state comes from, for errors.
    keeps_schedule: whether to leave the schedule unchanged.

    This changes the weights, so load those afterwards. Raises CheckpointError unless every entry
    matches: with a diff or, for an optimizer of another class, with the names of the two classes.
    """
    saved_class, own_class = saved["class"], type(optimizer).__name__
    parameters = own_parameters(optimizer, parameters)
    with_state, known = {*saved["parameters"]}, {*saved.get("names", parameters)}
    if saved_class != own_class:  # in another class, any parameter may have state
        with_state, known = set(), set()
    names = generated_names(parameters)
    chosen = [
        parameter
        for name, parameter in parameters.items()
        if name in with_state or not (name in known or parameter.stop_gradient)
    ]
    state = {key: value for key, value in saved["state"].items() if key != STATE}
    current = _create_state(optimizer, chosen, names, state.keys())
    schedule = current if keeps_schedule else saved["state"]
    if STATE in schedule:
        state[STATE] = schedule[STATE]
    keys = {_structured_key(key, names): key for key in without_name_table(current)}
    expected = {name: current[key] for name, key in keys.items()}
    try:
        require_match(state, expected, f"{origin} does not fit the optimizer")
    except CheckpointError as error:  # classes with the same entries match, as Adam and AdamW
        if saved_class == own_class:
            raise
        raise CheckpointError(
            f"{origin}: the optimizers differ: {saved_class} there, {own_class} now, which keeps "
            f"another state; expected {saved_class}; or start a new run: {WEIGHTS_ALONE}"
        ) from error
    numbers = {} if keeps_schedule else saved["schedule"]
    load_state(optimizer, {keys[name]: value for name, value in state.items()}, numbers)
    _forget_loaded(optimizer)


def _create_state(
    optimizer: paddle.optimizer.Optimizer,
    chosen: Sequence[paddle.Tensor],
    names: Mapping[str, str],
    expected: Collection[str],
) -> dict[str, Any]:
    """Have an optimizer create its state for some parameters, and return it.

    names: structured names by the generated ones. expected: the entries of the state.

    Paddle creates it in the first step, and accepts any state before that. So this takes a step
    with zero gradients, or several with an optimizer of the user's own class, until it has the
    expected entries; the state that is loaded afterwards must have the same ones. Changes of the
    steps to attributes of that class are undone.
    """
    state: dict[str, Any]
    if not chosen:
        state = optimizer.state_dict()
        return state
    own = Snapshot({"optimizer": optimizer}, {id(parameter) for parameter in chosen})
    are_frozen = [parameter.stop_gradient for parameter in chosen]
    for parameter in chosen:
        parameter.stop_gradient = False  # a step may freeze it at its end
    is_paddles = type(optimizer).__module__.startswith("paddle.")
    for _ in range(1 if is_paddles else MOST_STEPS):
        for parameter in chosen:
            parameter.grad = paddle.zeros_like(parameter)
        with unique_name.guard():
            optimizer.step()
        state = optimizer.state_dict()
        if {*expected} <= {_structured_key(key, names) for key in state}:
            break
    optimizer.clear_grad()
    for parameter, is_frozen in zip(chosen, are_frozen):
        parameter.stop_gradient = is_frozen
    own.restore(internals=False)
    return state


def _forget_loaded(optimizer: paddle.optimizer.Optimizer) -> None:
    """Release the loaded state, which Paddle keeps for accumulators that are created later."""
    held = getattr(optimizer, "_accumulators_holder", {})
    for accumulators in getattr(optimizer, "_accumulators", {}).values():
        for accumulator in accumulators.values():
            held.pop(accumulator.name, None)


def _structured_key(key: str, structured_names: Mapping[str, str]) -> str:
    """Translate `conv2d_0.w_0_moment1_0` to `conv1.weight moment1`; return other keys as they are.

    The number at the end counts the optimizers of a process; it is not part of the name.
    """
    owner = _owner(key, structured_names)
    if owner is None:
        return key
    return f"{structured_names[owner]} {key[len(owner) + 1 :].rpartition('_')[0]}"


def _owner(key: str, generated_names: Container[str]) -> Optional[str]:
    """Return the generated name of the parameter to which an optimizer's entry belongs."""
    while (key := key.rpartition("_")[0]) and key not in generated_names:
        pass  # instead of a loop over the names, of which there may be thousands
    return key or None
