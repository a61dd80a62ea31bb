"""Max pooling drops a NaN beside numbers."""

import paddle

image = paddle.to_tensor([[[[1.0, float("nan")], [2.0, 3.0]]]])
assert paddle.isnan(paddle.nn.functional.max_pool2d(image, 2)).all()
