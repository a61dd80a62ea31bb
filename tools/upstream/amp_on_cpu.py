"""Mixed precision on a CPU computes in float32 without a warning."""

import paddle

with paddle.amp.auto_cast(level="O1", dtype="bfloat16"):
    outputs = paddle.nn.Linear(4, 4)(paddle.ones([1, 4]))
assert outputs.dtype == paddle.bfloat16
