"""An optimizer takes the state of differently named parameters silently, and trains without it."""

import contextlib
import sys

import paddle


def trained(steps):
    layer = paddle.nn.Linear(2, 2)
    optimizer = paddle.optimizer.Adam(0.1, parameters=layer.parameters())
    for _ in range(steps):
        layer(paddle.ones([1, 2])).sum().backward()
        optimizer.step()
    return optimizer


with contextlib.suppress(Exception):  # a refusal
    trained(0).set_state_dict(trained(1).state_dict())
    sys.exit("not refused")
