"""LBFGS' state_dict cannot be loaded again."""

import paddle

layer = paddle.nn.Linear(2, 1)
optimizer, other = (
    paddle.optimizer.LBFGS(parameters=layer.parameters(), max_iter=2) for _ in range(2)
)
optimizer.step(lambda: layer(paddle.ones([1, 2])).square().sum())
other.set_state_dict(optimizer.state_dict())
assert other.state_dict()["state"]
