"""cross_entropy with label_smoothing rejects integer labels [N, 1]; it takes [N]."""

import paddle

labels = paddle.zeros([4, 1], "int64")
try:
    paddle.nn.functional.cross_entropy(paddle.rand([4, 10]), labels, label_smoothing=0.1)
except RuntimeError as error:
    raise AssertionError from error
