"""VisualDL's precision-recall and ROC curves use `np.float`, which NumPy has removed."""

import tempfile

import numpy as np
import visualdl

with visualdl.LogWriter(tempfile.mkdtemp()) as writer:
    try:
        writer.add_pr_curve("curve", np.array([0, 1]), np.array([0.2, 0.7]), 0)
    except AttributeError as error:
        raise AssertionError from error
