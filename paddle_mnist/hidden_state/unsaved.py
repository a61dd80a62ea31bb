"""Tell which changes that checkpoints cannot hold need a warning."""

import numbers
import types
from typing import Any

import paddle

from paddle_mnist.hidden_state.object_graph import ObjectPath, is_users
from paddle_mnist.hidden_state.optimizer_state import Parameters, optimizer_parameters
from paddle_mnist.hidden_state.plain_data import ABSENT
from paddle_mnist.hidden_state.snapshot import is_iterator
from paddle_mnist.nn.layers import dense_gradient, own_gradient_hooks
from paddle_mnist.system.arrays import is_tensor

GRADIENT = "the gradient of"


class ProcessState:
    """What no object holds as a value: hooks of gradients, the default dtype, what is optimized.

    parameters: those that may have hooks, by name. Changes are compared with the present state.
    """

    def __init__(self, parameters: Parameters, optimizer: paddle.optimizer.Optimizer):
        self._parameters, self._optimizer = parameters, optimizer
        self._optimized = optimizer_parameters(optimizer)
        self._dtype = paddle.get_default_dtype()
        self._next_hooks: dict[str, int] = {}  # the numbers of the next ones, by parameter
        self.changes()

    def changes(self) -> list[str]:
        """Return the names of what has changed; of hooks, since the last call.

        Paddle numbers the hooks of a tensor, and does not list them. Those of this package do not
        count.
        """
        names = []
        for name, parameter in self._parameters.items():
            if not parameter.stop_gradient:
                probe = parameter.register_hook(lambda gradient: gradient)
                probe.remove()
                number = probe._hook_id - own_gradient_hooks[id(parameter)]
                if number > self._next_hooks.get(name, number):
                    names.append(f"a gradient hook of {name}")
                self._next_hooks[name] = number + 1
        if paddle.get_default_dtype() != self._dtype:
            names.append("paddle.get_default_dtype()")
        optimized = optimizer_parameters(self._optimizer)
        if [*map(id, optimized)] != [*map(id, self._optimized)]:
            names.append("the list of the optimizer's parameters")
        return names


def may_have_gradient(value: Any) -> bool:
    """Return whether a value is a parameter, or another tensor that a step may train."""
    return is_tensor(value) and (hasattr(value, "trainable") or not value.stop_gradient)


def gradients_of(parameters: Parameters) -> dict[ObjectPath, tuple[paddle.Tensor, paddle.Tensor]]:
    """Return the gradients of parameters, those in full of embeddings, after the parameters."""
    gradients = {name: (value, dense_gradient(value)) for name, value in parameters.items()}
    return {
        (("root", f"{GRADIENT} {name}"),): (value, gradient)
        for name, (value, gradient) in gradients.items()
        if gradient is not None
    }


def is_shown(path: ObjectPath, value: Any) -> bool:
    """Return whether a callback has a value only to show it: the time, or a progress bar.

    It is an attribute, its class is of an installed library, and steps cannot compute with it, as
    they can with numbers, iterators, and objects of Paddle and NumPy.
    """
    module = type(value).__module__
    computes = isinstance(value, numbers.Number) or is_iterator(value)
    is_known = module.partition(".")[0] in ("builtins", "paddle", "numpy")
    is_of_a_library = not (computes or is_known or is_users(module))
    return path[0][1] == "callbacks" and len(path) == 3 and is_of_a_library


def is_made_by_paddle(path: ObjectPath, value: Any) -> bool:
    """Return whether a value is a hook of a library, or a function that `to_static` has put."""
    kind, name = path[-1]
    if kind == "hook":
        return value is not ABSENT and not is_users(
            getattr(value, "__module__", type(value).__module__)
        )
    is_method = isinstance(value, types.MethodType)
    is_own = is_method and getattr(type(value.__self__), str(name), None) is value.__func__
    return is_own or type(value).__module__.startswith("paddle.jit")
