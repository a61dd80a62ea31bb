"""A second backward pass through a PyLayer ends the process."""

import paddle


class Double(paddle.autograd.PyLayer):
    forward, backward = staticmethod(lambda ctx, x: 2 * x), staticmethod(lambda ctx, dy: 2 * dy)


x = paddle.ones([2])
x.stop_gradient = False
y = Double.apply(x).sum()
y.backward(retain_graph=True)
y.backward()
