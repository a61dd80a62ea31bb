"""Diagnose a net from statistics of its layers and gradients, and explain it in words."""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np

# A layer's output is too large if its root mean square is above this. In a net that trains well on
# inputs in 0..1, the largest is 7; the tutorial's weights, drawn from U(-1, 1), start at about 150.
TOO_LARGE = 50.0
GO_BACK = "Resume from the last checkpoint before this step with a lower learning rate."
START_AGAIN = "Start again with smaller initial weights or a lower learning rate."
# Watched passes in a row in which a channel has only zeros, or a gradient is zero, before that is
# reported; with batches of 32, 160 samples then agree.
PATIENCE = 5
TRAIN, VALID = "train/loss", "valid/loss"
EVALUATIONS = 2  # in a row above the lowest validation loss, before that is called overfitting
MIN_STEPS = 100  # of a training run that can be said to underfit


@dataclass(frozen=True)
class Finding:
    """A problem of a layer or parameter, with the step at which it was first seen.

    kind: "not finite", "exploding", "dead channels", "dead layer", "same answer", "no gradient",
        "overfitting" or "underfitting".
    """

    step: int
    place: str
    kind: str
    message: str

    def __str__(self) -> str:
        return f"step {self.step}, {self.place}: {self.message}"


class Diagnosis:
    """Collects findings and reports each kind at each place once.

    Dead channels are reported again when their number has doubled.

    on_finding: called with each finding.
    patience: passes in a row before a channel, layer or gradient counts as dead.
    first_loss: (attribute) the training loss of untrained weights, if it is known.
    """

    def __init__(self, on_finding: Callable[[Finding], None], patience: int = PATIENCE):
        self.findings: list[Finding] = []
        self._on_finding, self._patience = on_finding, patience
        self._reported: set[object] = set()
        self._dead_passes: dict[str, np.ndarray] = {}  # in a row, of each channel, by layer
        self._zero_gradients: Counter[str] = Counter()  # passes in a row, by parameter
        self.first_loss = math.nan
        self._losses = {TRAIN: math.nan, VALID: math.nan}  # the newest
        self._lowest, self._since_lowest = math.inf, 0  # validation loss, evaluations since then

    def check_layer(
        self,
        step: int,
        name: str,
        layer: Any,
        root_mean_square: float,
        nonfinite: int,
        layer_input: Optional[Any],
    ) -> None:
        """Check the size of a layer's output.

        nonfinite: how many of its elements are NaN or infinite. layer_input: a tensor, if known.
        """
        if nonfinite:
            self._report(
                step,
                place=name,
                kind="not finite",
                message=f"{nonfinite} of its outputs are NaN or infinite, and so may be those of "
                f"later layers. {GO_BACK}",
            )
        elif root_mean_square > TOO_LARGE:
            message = _exploding(layer, root_mean_square, layer_input)
            self._report(step, place=name, kind="exploding", message=message)

    def check_channels(self, step: int, name: str, dead: np.ndarray) -> None:
        """Check the channels of a layer's output.

        dead: bool [C], the channels that are all zero and were not so in the layer's input.
        """
        passes = self._dead_passes.get(name, np.zeros(len(dead), int))
        if len(passes) != len(dead):
            passes = np.zeros(len(dead), int)
        self._dead_passes[name] = passes = np.where(dead, passes + 1, 0)
        gone = np.flatnonzero(passes >= self._patience)
        if len(gone) == len(dead):
            message = _dead_layer(len(dead), self._patience)
            self._report(step, place=name, kind="dead layer", message=message)
        elif len(gone):
            self._report(
                step,
                place=name,
                kind="dead channels",
                message=_dead_channels(gone, len(dead), self._patience),
                magnitude=len(gone).bit_length(),
            )

    def check_model(self, step: int, inputs: np.ndarray, outputs: np.ndarray) -> None:
        """Check that a net's outputs [B, C] differ where its inputs [B, ...] do."""
        if len(inputs) != len(outputs) or len(inputs) < 2:
            return
        if not outputs.size or not np.isfinite(outputs).all():
            return
        are_constant = np.ptp(outputs, axis=0).max() <= 1e-6 * abs(outputs).max()
        if are_constant and np.ptp(inputs, axis=0).any():
            self._report(
                step,
                place="the net",
                kind="same answer",
                message=f"the {len(outputs)} samples of this batch differ, but the net's outputs "
                "for them do not: no information reaches the last layer. Find the first layer "
                f"whose outputs are all zero. {START_AGAIN}",
            )

    def check_gradient(self, step: int, name: str, norm: float) -> None:
        """Check the norm of a parameter's gradient."""
        if not math.isfinite(norm):
            self._report(
                step,
                place=name,
                kind="not finite",
                message="its gradient is NaN or infinite, and the step writes that into the "
                f"weights. {GO_BACK}",
            )
        self._zero_gradients[name] = self._zero_gradients[name] + 1 if norm == 0 else 0
        if self._zero_gradients[name] == self._patience:
            self._report(
                step,
                place=name,
                kind="no gradient",
                message=f"its gradient was exactly zero in the last {self._patience} recorded "
                "batches, so it no longer learns. Its inputs are all zero, or the outputs of a "
                "later layer are.",
            )

    def check_losses(self, step: int, values: Mapping[str, float]) -> None:
        """Check the losses of a log line or an evaluation for overfitting. values: by tag."""
        self._losses.update({tag: values[tag] for tag in self._losses if tag in values})
        train, valid = self._losses.values()
        if VALID not in values:
            return
        self._since_lowest = 0 if valid <= self._lowest else self._since_lowest + 1
        self._lowest = min(self._lowest, valid)
        if self._since_lowest >= EVALUATIONS and valid > max(2 * train, 1.1 * self._lowest):
            self._report(
                step,
                place="the net",
                kind="overfitting",
                message=f"the validation loss, {valid:.3g}, has risen from {self._lowest:.3g} for "
                f"{self._since_lowest} evaluations, while the training loss is {train:.3g}: the "
                "net memorizes the training samples. Stop earlier, augment the data, or use "
                "dropout, weight decay or a smaller net.",
            )

    def check_end(self, step: int) -> None:
        """Check the last losses of a training run for underfitting."""
        train, valid = self._losses.values()
        if step >= MIN_STEPS and self.first_loss > 0 and min(train, valid) > self.first_loss / 2:
            self._report(
                step,
                place="the net",
                kind="underfitting",
                message=f"training ends with a training loss of {train:.3g} and a validation loss "
                f"of {valid:.3g}, both above half of the first step's {self.first_loss:.3g}: the "
                "net has learned little of either. Train longer, try a higher learning rate, use "
                "a larger net or less regularization, or check the labels.",
            )

    def _report(self, step: int, place: str, kind: str, message: str, magnitude: int = 0) -> None:
        """Report a finding, unless the same was reported before with the same magnitude."""
        # NaN and infinity spread from one layer to all later ones: report only the first.
        key = kind if kind == "not finite" else (place, kind, magnitude)
        if key not in self._reported:
            self._reported.add(key)
            finding = Finding(step, place, kind, message)
            self.findings.append(finding)
            self._on_finding(finding)


def _exploding(layer: Any, root_mean_square: float, layer_input: Optional[Any]) -> str:
    symptom = (
        f"the root mean square of its outputs is {root_mean_square:.0f}; in a net that trains well "
        f"it stays below {TOO_LARGE:.0f}."
    )
    weight = getattr(layer, "weight", None)
    if weight is None:
        return f"{symptom} The layers before it produce values that large."
    # He et al., "Delving Deep into Rectifiers", 2015: std sqrt(2 / inputs) keeps the size of
    # signals from layer to layer. Paddle's linear weights are [inputs, outputs].
    inputs = weight.shape[0] if weight.ndim == 2 else weight.size // weight.shape[0]
    proper_size = math.sqrt(2 / inputs)
    weight_size = _root_mean_square(weight)
    if weight_size < 3 * proper_size:
        input_size = "unknown" if layer_input is None else f"{_root_mean_square(layer_input):.2g}"
        return (
            f"{symptom} The root mean square of its inputs is {input_size}. Check the layers "
            "before it, whether the learning rate is too high, and, for the first layer, whether "
            "the images are scaled to 0..1."
        )
    return (
        f"{symptom} Its weights are too large: their root mean square is {weight_size:.2g}; with "
        f"{inputs} inputs, {proper_size:.2g} keeps the size of the signal constant. If they were "
        "too large from the first step, use Paddle's default initialization; otherwise lower the "
        "learning rate."
    )


def _root_mean_square(tensor: Any) -> float:
    return float(tensor.detach().astype("float32").pow(2).mean().sqrt().item())


def _dead_channels(dead: np.ndarray, channels: int, patience: int) -> str:
    is_one = len(dead) == 1
    return (
        f"channel{'' if is_one else 's'} {', '.join(map(str, dead))} of {channels} "
        f"{'was' if is_one else 'were'} zero in the last {patience} recorded batches. No gradient "
        f"reaches {'its' if is_one else 'their'} weights, so {'it is' if is_one else 'they are'} "
        "unlikely to recover. A few dead channels are common; many indicate that the learning rate "
        "or the initial weights are too large."
    )


def _dead_layer(channels: int, patience: int) -> str:
    return (
        f"all {channels} channels were zero in the last {patience} recorded batches. The later "
        "layers receive the same values for every image, so the net can only guess (with ten "
        "classes: accuracy 10%, loss ln 10 = 2.30). No gradient passes back through this layer, "
        f"so further training does not help. {START_AGAIN}"
    )
