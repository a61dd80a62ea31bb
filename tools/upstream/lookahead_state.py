"""LookAhead's state_dict lacks the number of its steps, so it does not resume."""

import paddle

layer = paddle.nn.Linear(2, 2)
inner = paddle.optimizer.SGD(0.1, parameters=layer.parameters())
optimizer = paddle.incubate.LookAhead(inner, k=5)
layer(paddle.ones([1, 2])).sum().backward()
optimizer.step()
assert any("step" in name.lower() for name in optimizer.state_dict())
