"""`MNIST`, the tutorial's convolutional net."""

from typing import Optional, Union

import paddle
from paddle import nn
from paddle.nn import functional as F
from paddle.utils import unique_name

from paddle_mnist import fast_conv
from paddle_mnist.checkpoint.contents import load_weights
from paddle_mnist.pretrained import WEIGHTS, weights
from paddle_mnist.watching import printed


class MNIST(nn.Layer):
    """Two blocks of convolution, ReLU and max pooling, and a linear layer: 20,350 parameters.

    [B, 1, 28, 28] -> conv 5x5, 20 -> pool 2 -> conv 5x5, 20 -> pool 2 -> 980 -> 10 logits.
    Layers and parameters are named as in the tutorial, so a `.pdparams` goes back and forth
    between its code and this package.

    The parameters' generated names (`conv2d_0.w_0`, ...) are the same in every instance, as if
    each were the first of its process. Optimizers key their state by them, so a `.pdopt` fits a
    model built later in the same process, which it does not in plain Paddle. Two instances
    therefore cannot share one optimizer.

    pretrained: start with the weights that come with the package (`paddle_mnist.pretrained`).

    Set `fast_conv` to a number of threads, on a CPU, to have both blocks computed by
    `paddle_mnist.fast_conv`, several times faster and equal to within float32's rounding; 0, the
    default, is Paddle's own layers. Hooks of these layers are then shown what Paddle's layers make
    of the same images, and what they return changes nothing.

    Set `dropout_rate` to the share of the linear layer's inputs that a training step leaves out at
    random (Srivastava et al., 2014; what is left is scaled up); 0, the default, is the tutorial's.
    """

    def __init__(self, pretrained: bool = False):
        super().__init__()
        self.fast_conv = 0
        self.dropout_rate = 0.0
        with unique_name.guard():
            self.conv1 = nn.Conv2D(in_channels=1, out_channels=20, kernel_size=5, padding=2)
            self.relu1 = nn.ReLU()
            self.max_pool1 = nn.MaxPool2D(kernel_size=2, stride=2)
            self.conv2 = nn.Conv2D(in_channels=20, out_channels=20, kernel_size=5, padding=2)
            self.relu2 = nn.ReLU()
            self.max_pool2 = nn.MaxPool2D(kernel_size=2, stride=2)
            self.fc = nn.Linear(in_features=980, out_features=10)
        if pretrained:
            load_weights(self, weights(), WEIGHTS)

    def logits(self, inputs: paddle.Tensor) -> paddle.Tensor:
        """The net itself: float32 [B, 1, 28, 28] -> [B, 10]."""
        features = self.features(inputs)
        if self.dropout_rate:
            features = F.dropout(features, self.dropout_rate, training=self.training)
        return self.fc(features)

    def features(self, inputs: paddle.Tensor) -> paddle.Tensor:
        """Both blocks: float32 [B, 1, 28, 28] -> [B, 980]."""
        # The gradient of images, and graphs of static mode, are for Paddle's own layers.
        if not (self.fast_conv and paddle.in_dynamic_mode() and inputs.stop_gradient):
            return self._blocks(inputs)
        if any(layer._forward_pre_hooks or layer._forward_post_hooks for layer in self.sublayers()):
            with paddle.no_grad():
                self._blocks(inputs)
        return fast_conv.features(inputs, self.conv1, self.conv2, self.fast_conv)

    def _blocks(self, inputs: paddle.Tensor) -> paddle.Tensor:
        x = self.max_pool1(self.relu1(self.conv1(inputs)))
        x = self.max_pool2(self.relu2(self.conv2(x)))
        return paddle.flatten(x, start_axis=1)

    def forward(
        self,
        inputs: paddle.Tensor,
        label: Optional[paddle.Tensor] = None,
        check_shape: bool = False,
        check_content: bool = False,
    ) -> Union[paddle.Tensor, tuple[paddle.Tensor, paddle.Tensor]]:
        """Logits [B, 10], or (logits, accuracy of this batch) when labels [B, 1] are given.

        inputs: float32 [B, 1, 28, 28].
        check_shape, check_content: print shapes or contents (`paddle_mnist.watching.printed`).
        """
        if check_shape or check_content:
            with printed(self, check_shape, check_content):
                return self.forward(inputs, label)
        logits = self.logits(inputs)
        if label is None:
            return logits
        return logits, paddle.metric.accuracy(input=logits, label=label)
