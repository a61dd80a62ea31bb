"""An optimizer takes the state of differently named parameters silently, and trains without it."""

import paddle


def trained(steps):
    layer = paddle.nn.Linear(2, 2)
    optimizer = paddle.optimizer.Adam(0.1, parameters=layer.parameters())
    for _ in range(steps):
        layer(paddle.ones([1, 2])).sum().backward()
        optimizer.step()
    return optimizer


new, state = trained(0), trained(1).state_dict()
try:
    new.set_state_dict(state)
except Exception:
    is_refused = True
else:
    is_refused = False
assert is_refused
