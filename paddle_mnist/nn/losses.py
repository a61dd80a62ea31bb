"""The cross-entropy, how Paddle's own losses are averaged, and which need equal shapes."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, Optional

import numpy as np
import paddle
from paddle import nn
from paddle.nn import functional as F

Loss = Callable[..., object]  # only its identity and its options matter here

# Losses of each element of the outputs and the label in its place. Paddle broadcasts the two.
_ELEMENTWISE = {
    "BCELoss": "binary_cross_entropy",
    "BCEWithLogitsLoss": "binary_cross_entropy_with_logits",
    "HuberLoss": "",  # not in Paddle 2.6
    "KLDivLoss": "kl_div",
    "L1Loss": "l1_loss",
    "MSELoss": "mse_loss",
    "PoissonNLLLoss": "poisson_nll_loss",
    "SmoothL1Loss": "smooth_l1_loss",
    "SoftMarginLoss": "soft_margin_loss",
}
ELEMENTWISE = tuple(getattr(nn, name) for name in _ELEMENTWISE if hasattr(nn, name))
ELEMENTWISE_FUNCTIONS = tuple(getattr(F, name) for name in _ELEMENTWISE.values() if name)


class CrossEntropy:
    """The mean cross-entropy of logits [B, C] against labels [B, 1], in nats.

    With label_smoothing s the label's share is 1 - s + s/C and every other class's s/C (Szegedy et
    al., "Rethinking the Inception Architecture", 2016, section 7).
    """

    def __init__(self, label_smoothing: float = 0.0):
        self.label_smoothing = label_smoothing

    # reduction="mean" would look, on Paddle 2.6.2, at a value, which waits for the device.
    def __call__(self, logits: paddle.Tensor, labels: paddle.Tensor) -> paddle.Tensor:
        if not self.label_smoothing:
            return F.cross_entropy(logits, labels, reduction="none").mean()
        # F.cross_entropy(label_smoothing=...) fails on labels [B, 1] (Paddle 3.3.1, CPU).
        shares = F.label_smooth(
            F.one_hot(labels.flatten(), logits.shape[-1]), epsilon=self.label_smoothing
        )
        return F.cross_entropy(logits, shares, soft_label=True, reduction="none").mean()


# ------------------------------------------------------------------ Paddle's own losses


def is_elementwise(loss: Loss) -> bool:
    """Return whether a loss compares each element of the outputs with the label in its place."""
    return _is_one_of(loss, ELEMENTWISE, ELEMENTWISE_FUNCTIONS)


def is_cross_entropy(loss: Loss) -> bool:
    """Return whether a loss is a cross-entropy of Paddle's, whose mean `label_weight` knows."""
    return _is_one_of(loss, (nn.CrossEntropyLoss, nn.NLLLoss), (F.cross_entropy, F.nll_loss))


def reduction_of(loss: Loss) -> Optional[str]:
    """Return how one of Paddle's losses reduces a batch: "mean", "sum" or "none"; else None."""
    if isinstance(loss, functools.partial):
        is_paddles = getattr(loss.func, "__module__", "").startswith("paddle.nn.")
        return loss.keywords.get("reduction") if is_paddles else None
    if not isinstance(loss, nn.Layer) or not _is_paddles(loss):
        return None
    return getattr(loss, "reduction", getattr(loss, "_reduction", None))


def mean_options(loss: Loss) -> Optional[dict[str, Any]]:
    """Return the options of Paddle's cross-entropy, by which it takes its mean.

    "is_nll": whether it is an `NLLLoss`, or the function. Returns None for any other loss.
    """
    if not is_cross_entropy(loss):
        return None
    is_nll = _is_one_of(loss, (nn.NLLLoss,), (F.nll_loss,))
    options: dict[str, Any] = {"weight": None, "ignore_index": -100, "soft_label": False}
    options |= {"label_smoothing": 0.0, "axis": -1}
    if isinstance(loss, nn.Layer):
        prefix = "_" if is_nll else ""
        given = {name: getattr(loss, f"{prefix}{name}", value) for name, value in options.items()}
    else:
        given = getattr(loss, "keywords", {})
    return {**options, **given, "is_nll": is_nll}


def label_weight(options: Mapping[str, Any], labels: Any) -> Optional[float]:
    """Return the divisor of the mean of Paddle's cross-entropy, unless it is the sample count.

    It is the number of labels that are not `ignore_index`, or the sum of their classes' weights: 0
    where every label is ignored. options: see `mean_options`. Waits for the device.
    """
    ignored, weight = options["ignore_index"], options["weight"]
    # A cross-entropy with a negative ignore_index divides by the number of all labels.
    is_over_samples = not options["is_nll"] and weight is None and ignored < 0
    if is_over_samples or not isinstance(labels, paddle.Tensor):
        return None
    values = labels.numpy()
    are_shares = labels.is_floating_point() or options["soft_label"]
    counted = values if are_shares else values[values != ignored]
    if weight is None:
        return None if are_shares else float(counted.size)
    weight = weight.numpy().astype(np.float64)
    of_samples = counted @ weight if are_shares else weight[counted]
    smoothing = options["label_smoothing"]
    return float(((1 - smoothing) * of_samples + smoothing * weight.mean()).sum())


def has_ignored_nll(options: Mapping[str, Any], labels: Any) -> bool:
    """Return whether a loss is an `NLLLoss`, and one of the labels is its `ignore_index`.

    Then Paddle's own mean and sum write beyond the end of their result, which ends the process
    sooner or later (2.6.2 and 3.3.1, CPU).
    """
    is_checked = options["is_nll"] and isinstance(labels, paddle.Tensor)
    return is_checked and bool((labels.numpy() == options["ignore_index"]).any())


def summed_nll(
    options: Mapping[str, Any], outputs: paddle.Tensor, labels: paddle.Tensor
) -> paddle.Tensor:
    """Return the sum that an `NLLLoss` takes the mean of."""
    return F.nll_loss(
        outputs, labels, options["weight"], options["ignore_index"], reduction="none"
    ).sum()


def usable_labels(options: Mapping[str, Any], outputs: Any, labels: Any) -> Any:
    """Return whole-number labels [N, 1] as [N] for a cross-entropy that smooths them.

    Paddle's own only takes the latter (2.6.2 and 3.3.1). Returns any other labels unchanged.
    """
    is_smoothed = options["label_smoothing"] and isinstance(labels, paddle.Tensor)
    if not is_smoothed or labels.is_floating_point() or labels.ndim != getattr(outputs, "ndim", 0):
        return labels
    return labels.squeeze(options["axis"])


def _is_one_of(loss: Loss, kinds: tuple[type[nn.Layer], ...], functions: tuple[Loss, ...]) -> bool:
    """Return whether a loss is a layer of these classes, or one of the functions, or a partial.

    A subclass with a `forward` of its own may compute anything else.
    """
    if isinstance(loss, nn.Layer):
        return isinstance(loss, kinds) and _is_paddles(loss)
    return (loss.func if isinstance(loss, functools.partial) else loss) in functions


def _is_paddles(loss: nn.Layer) -> bool:
    return type(loss).forward.__module__.startswith("paddle.nn.")
