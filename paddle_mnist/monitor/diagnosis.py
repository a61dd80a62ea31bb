"""What is wrong with a net, told from its figures, in words."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np

# A layer's output is too large when its root mean square is above this. In the recipe `default` on
# MNIST the largest is 7; drawn from U(-1, 1), the tutorial's weights give about 150 at once.
TOO_LARGE = 50.0
# Looks in a row at which a channel gives only zeros, or a gradient is zero, until that is said;
# with batches of 32, 160 images then agree.
PATIENCE = 5


@dataclass(frozen=True)
class Finding:
    """Something wrong, first seen at a step, in a layer or parameter.

    kind: "not finite", "exploding", "dead channels", "dead layer", "same answer" or "no gradient".
    """

    step: int
    place: str
    kind: str
    message: str

    def __str__(self) -> str:
        return f"step {self.step}, {self.place}: {self.message}"


class Diagnosis:
    """Collects findings, each kind at each place once, and tells them.

    Dead channels are told again when they have become twice as many.
    """

    def __init__(self, tell: Callable[[Finding], None], patience: int = PATIENCE):
        self.findings: list[Finding] = []
        self._tell, self._patience = tell, patience
        self._said: set[object] = set()
        # looks in a row, of each channel, by layer, and whether in training
        self._dead: dict[tuple[str, bool], np.ndarray] = {}
        self._no_gradient: Counter = Counter()  # looks in a row, by parameter

    def size(
        self, step: int, name: str, layer: Any, size: float, nonfinite: int, given: Optional[Any]
    ) -> None:
        """Judge one output: its root mean square, how much of it is not finite.

        given: the layer's input, a tensor.
        """
        if nonfinite:
            self._find(
                *(step, name, "not finite"),
                f"{nonfinite} of its outputs are NaN or infinite. What comes after it is lost "
                "too. Go back to the checkpoint before, and lower the learning rate.",
            )
        elif size > TOO_LARGE:
            self._find(step, name, "exploding", _exploding(layer, size, given))

    def channels(self, step: int, name: str, dead: np.ndarray, training: bool) -> None:
        """Judge one output's channels. dead: bool [C], those that this layer made all zero."""
        looks = self._dead.get((name, training), np.zeros(len(dead), int))
        if len(looks) != len(dead):
            looks = np.zeros(len(dead), int)
        self._dead[name, training] = looks = np.where(dead, looks + 1, 0)
        gone = np.flatnonzero(looks >= self._patience)
        if len(gone) == len(dead):
            self._find(step, name, "dead layer", _dead_layer(len(dead), self._patience))
        elif len(gone):
            self._find(
                *(step, name, "dead channels"),
                f"channel{'s' * (len(gone) > 1)} {', '.join(map(str, gone))} of {len(dead)} gave "
                f"nothing but zeros in {self._patience} batches that were looked at: no gradient "
                "reaches their weights, so they will hardly come back. A few are common; many mean "
                "that the learning rate, or the initial weights, are too large.",
                again=len(gone).bit_length(),
            )

    def answers(self, step: int, images: np.ndarray, answers: np.ndarray) -> None:
        """Judge the net's answers to a batch. images: [B, ...]; answers: [B, C]."""
        if len(images) != len(answers) or len(images) < 2 or not np.isfinite(answers).all():
            return
        if (
            np.ptp(answers, axis=0).max() <= 1e-6 * abs(answers).max()
            and np.ptp(images, axis=0).any()
        ):
            self._find(
                *(step, "the net", "same answer"),
                f"the {len(answers)} images of this batch differ, but all got the same answer: "
                "nothing of them gets through to the last layer. Look for the first layer that "
                "gives only zeros; start anew, with smaller initial weights or a lower learning "
                "rate.",
            )

    def gradient(self, step: int, name: str, norm: float) -> None:
        """Judge the norm of a parameter's gradient."""
        if not math.isfinite(norm):
            self._find(
                *(step, name, "not finite"),
                "its gradient is NaN or infinite, and the step puts that into the weights. Go back "
                "to the checkpoint before, and lower the learning rate.",
            )
        self._no_gradient[name] = self._no_gradient[name] + 1 if norm == 0 else 0
        if self._no_gradient[name] == self._patience:
            self._find(
                *(step, name, "no gradient"),
                f"its gradient was exactly zero in {self._patience} batches that were looked at: "
                "it learns nothing any more. A layer after it gives only zeros.",
            )

    def _find(self, step: int, place: str, kind: str, message: str, again: int = 0) -> None:
        """again: with another one the same is told once more."""
        # What is not finite goes on through the layers after: the first is named.
        said = kind if kind == "not finite" else (place, kind, again)
        if said not in self._said:
            self._said.add(said)
            finding = Finding(step, place, kind, message)
            self.findings.append(finding)
            self._tell(finding)


def _exploding(layer: Any, size: float, given: Optional[Any]) -> str:
    said = (
        f"its outputs are of size {size:.0f} (root mean square); where a net trains well they stay "
        f"below {TOO_LARGE:.0f}."
    )
    weight = getattr(layer, "weight", None)
    if weight is None:
        return f"{said} The layers before it make them so large."
    # He et al., "Delving Deep into Rectifiers", 2015: std sqrt(2 / inputs) keeps the size of
    # signals from layer to layer. Paddle's linear weights are [inputs, outputs].
    inputs = weight.shape[0] if weight.ndim == 2 else weight.size // weight.shape[0]
    right = math.sqrt(2 / inputs)
    found = _root_mean_square(weight)
    if found < 3 * right:
        fed = "unknown" if given is None else f"{_root_mean_square(given):.2g}"
        return (
            f"{said} What it is given is of size {fed}. The layers before it, or a learning rate "
            "that is too high, make it so; or, before the first layer, images that are not scaled "
            "to 0..1."
        )
    return (
        f"{said} Its weights are too large: {found:.2g} (root mean square), where with {inputs} "
        f"inputs {right:.2g} keeps signals at their size. If it was so from the first step, they "
        "were drawn too large: use Paddle's default initialisation; else lower the learning rate."
    )


def _root_mean_square(tensor: Any) -> float:
    return tensor.detach().astype("float32").pow(2).mean().sqrt().item()


def _dead_layer(channels: int, patience: int) -> str:
    return (
        f"all of its {channels} channels gave nothing but zeros in {patience} batches that were "
        "looked at. Every image now looks the same to the layers after it, so the net can only "
        "guess (with ten classes: accuracy 10 %, loss ln 10 = 2.30), and no gradient gets back "
        "through it, so training on will not mend it. Start anew, with smaller initial weights or "
        "a lower learning rate."
    )
