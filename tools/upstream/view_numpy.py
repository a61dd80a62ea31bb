"""`.numpy()` of a view copies the whole tensor that it is a part of."""

from timeit import timeit

import paddle

whole = paddle.zeros([2_000_000, 10])
view, copy = whole[0], whole[0].clone()
assert timeit(view.numpy, number=20) < 100 * timeit(copy.numpy, number=20)
