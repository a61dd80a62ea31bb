"""The options of `fit` by their flat names, as tables of tests and command lines have them."""

from dataclasses import replace

from paddle_mnist import PrintLayers
from paddle_mnist.data.loading import Loading
from paddle_mnist.options import build_group, flat_options
from paddle_mnist.training.arguments import GROUPS
from paddle_mnist.training.bundled import Console, EarlyStopping, Figures, Profile, VisualDL, Watch

CALLBACKS = (EarlyStopping, Watch, Profile, PrintLayers, VisualDL, Figures, Console)
FLAT = flat_options([*GROUPS.values(), *CALLBACKS])


def grouped(**values):
    """Return the arguments of `fit` with options by flat name put into their groups."""
    flat = {name: values.pop(name) for name in [*values] if name in FLAT}
    chosen = {FLAT[name].group for name in flat}
    for name, group in GROUPS.items():
        if group in chosen:
            values[name] = build_group(group, flat)
    for name in {"collate_fn", "order"} & {*values}:
        values["loading"] = replace(values.get("loading", Loading()), **{name: values.pop(name)})
    built = [build_group(kind, flat) for kind in CALLBACKS if kind in chosen]
    if built:
        values["callbacks"] = [*values.get("callbacks", ()), *built]
    return values
