"""Precision-recall and ROC curves for VisualDL's dashboard, computed here.

VisualDL 2.5.3 would compute them from labels and scores, but its `add_pr_curve` and `add_roc_curve`
ask for `np.float`, which NumPy 1.24 took away; take the precision at a threshold that no score
reaches for 0, which draws a ramp from (0, 0) that no classifier has; and divide the true positives
by the number of negatives. Ones that do neither retire this module.
"""

import time
from typing import Any

import numpy as np

THRESHOLDS = 100  # evenly from 0 to 1


def add_curves(file: Any, name: str, is_class: np.ndarray, scores: np.ndarray, step: int) -> None:
    """Write the two curves of a class against the others into a `visualdl.LogWriter`.

    name: of the class; the tags are "precision and recall/NAME" and "roc/NAME".
    is_class: bool [N], which samples are of the class. scores: floats [N], 0 to 1, that they are.
    """
    from visualdl.component import base_component  # here, for it is slow to import

    predicted = np.floor(scores * (THRESHOLDS - 1)) >= np.arange(THRESHOLDS)[:, None]
    tp, fp = (predicted & is_class).sum(axis=1), (predicted & ~is_class).sum(axis=1)
    fn, tn = is_class.sum() - tp, (~is_class).sum() - fp
    # As scikit-learn has it: a classifier that names nothing has named nothing wrongly.
    precision = np.where(tp + fp, tp / np.maximum(tp + fp, 1), 1.0)
    recall, false_positive_rate = tp / np.maximum(tp + fn, 1), fp / np.maximum(fp + tn, 1)
    counts = [values.tolist() for values in (tp, fp, tn, fn)]
    now = round(1000 * time.time())
    # A tag of its own for each kind: VisualDL knows one kind a tag.
    records = (
        base_component.pr_curve_raw(
            f"precision and recall/{name}", *counts, precision.tolist(), recall.tolist(), step, now
        ),
        base_component.roc_curve_raw(
            f"roc/{name}", *counts, recall.tolist(), false_positive_rate.tolist(), step, now
        ),
    )
    for record in records:
        file._get_file_writer().add_record(record)
