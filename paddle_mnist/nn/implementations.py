"""Records of the code that computes the parts of a net, since other code may round differently.

A layer of any net can name its code: its method `computed_by` returns it by part, such as
`{"attention": "my kernel, version 2"}`, or `PADDLE` where Paddle computes the part after all.
Manifests hold these names as `computed_by`, and a resume warns of others.
"""

import logging
from collections.abc import Mapping
from typing import Any

from paddle import nn

log = logging.getLogger("paddle_mnist")

PADDLE = "Paddle"
CONVOLUTION = "convolution"  # named in manifests even if no layer of the net does


def implementations(model: nn.Layer) -> dict[str, str]:
    """Return the code that computes the parts of a net in this process, by part."""
    names: dict[str, set[str]] = {CONVOLUTION: set()}
    for layer in model.sublayers(include_self=True):
        if hasattr(layer, "computed_by"):
            for part, name in layer.computed_by().items():
                names.setdefault(part, set()).add(name)
    return {part: " and ".join(sorted(found - {PADDLE})) or PADDLE for part, found in names.items()}


def warn_of_other_implementations(manifest: Mapping[str, Any], current: Mapping[str, str]) -> None:
    """Log a warning for each part that other code computes than in a checkpoint's run.

    current: of this process, as `implementations` returns it.
    """
    for part, name in current.items():
        before = manifest.get("computed_by", {}).get(part) or _former(manifest, part, name)
        if before != name:
            log.warning(
                "the %s was computed by %s up to step %d, and is by %s now, which rounds "
                "differently: the run continues, but its result differs from that of an unbroken "
                "one",
                part,
                before,
                manifest["state"]["step"],
                name,
            )


def _former(manifest: Mapping[str, Any], part: str, current: str) -> str:
    """Return what computed a part, by a manifest without `computed_by`.

    Of the convolution, some have an entry, and in the first of format 4 a fast one on a CPU was
    NumPy's. Of any other part they tell nothing: the answer is `current`, so that nobody is warned.
    """
    if part != CONVOLUTION:
        return current
    is_fast = (manifest["config"] or {}).get("fast_conv", "off") != "off"
    was_numpy = is_fast and manifest.get("device") == "cpu"
    return str(manifest.get(CONVOLUTION) or ("NumPy's products" if was_numpy else current))
