"""The code that computes the parts of a net, of which other code may round differently.

A layer of any net can name it: its method `computed_by` returns the code by part, such as
`{"attention": "my kernel, version 2"}`, or `PADDLE` where Paddle computes the part after all.
Manifests hold these names, and a resume warns of others.
"""

import logging
from collections.abc import Mapping
from typing import Any

from paddle import nn

log = logging.getLogger("paddle_mnist")

PADDLE = "Paddle"
PARTS = ("convolution",)  # those that manifests name even if no layer of the net does


def implementations(model: nn.Layer) -> dict[str, str]:
    """Return the code that computes the parts of a net in this process, by part."""
    names: dict[str, set[str]] = {part: set() for part in PARTS}
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
        before = manifest.get(part) or _former(manifest, part, name)
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
    """Return what computed a part whose code a manifest does not name.

    The first manifests of format 4 named none; otherwise nobody knows, and nothing is said.
    """
    is_fast = (manifest["config"] or {}).get("fast_conv", "off") != "off"
    was_numpy = part == "convolution" and is_fast and manifest.get("device") == "cpu"
    return "NumPy's products" if was_numpy else current
