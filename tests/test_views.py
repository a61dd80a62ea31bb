"""Tensors become NumPy arrays; a view, such as `images[i]`, without a copy of all behind it."""

import numpy as np
import paddle

from paddle_mnist.system.arrays import as_array, copied_array


def test_arrays_of_views_have_the_same_bits_and_copies_share_no_memory():
    images = paddle.to_tensor(np.random.RandomState(0).rand(100, 1, 28, 28).astype("float32"))
    views = (images[7], images[3:9:2], images.transpose([0, 2, 3, 1])[5], images[0:0])
    for values in (*views, images, images.numpy(), paddle.zeros([])):
        assert np.array_equal(as_array(values), np.asarray(values))
        before = as_array(values).copy()
        copy = copied_array(values)
        assert np.array_equal(copy, before) and copy.dtype == before.dtype
        copy += 1
        assert np.array_equal(as_array(values), before)
    assert as_array(paddle.full([2], 0.5, "bfloat16")).dtype == np.uint16
    assert as_array([1, 2.5]).tolist() == [1, 2.5]
