"""`MNIST`, the tutorial's convolutional net."""

from typing import Any, Optional, Union

import paddle
from paddle import nn
from paddle.nn import functional as F
from paddle.utils import unique_name

from paddle_mnist.mnist.pretrained import WEIGHTS, weights
from paddle_mnist.mnist.print_layers import print_layers
from paddle_mnist.nn.conv_blocks import FastConvSwitch, run_layers
from paddle_mnist.nn.state_dict import load_weights

# The names of the net's parameters, in their order.
PARAMETERS = (
    "conv1.weight",
    "conv1.bias",
    "conv2.weight",
    "conv2.bias",
    "fc.weight",
    "fc.bias",
)


class MNIST(FastConvSwitch, nn.Layer):
    """The tutorial's convolutional net for images of digits; 20,350 parameters.

    Two blocks of convolution, ReLU and max pooling, and a linear layer:
    [B, 1, 28, 28] -> conv 5x5, 20 -> pool 2 -> conv 5x5, 20 -> pool 2 -> 980 -> 10 logits.
    Layers and parameters are named as in the tutorial, so its code and this package read each
    other's `.pdparams`.

    The parameters' generated names (`conv2d_0.w_0`, ...) are the same in every instance, as if each
    were the first in its process. Optimizers use these names as keys of their state, so a `.pdopt`
    file also fits a model that is built later in the same process; in plain Paddle it does not. For
    the same reason, two instances cannot share one optimizer.

    pretrained: load the weights that come with the package (`paddle_mnist.mnist.pretrained`).
    fast_conv: how the net is computed. "auto": on a CPU as a compiled net, which is several times
        faster than Paddle's layers and equal to them up to float32 rounding error, with one thread
        per core, at most 16; on other devices with Paddle's layers. "off": always with
        Paddle's layers. A number: as "auto", with this number of threads; 0 means "off". You can
        set the attribute of this name at any time.

    The net is compiled as `paddle_mnist.nn.conv_blocks.ConvBlocks` is, whose documentation says
    what is covered. Paddle's layers are used for layers of other kinds, with hooks that may
    change values, in static graphs (`paddle.jit`) and for other dtypes. A compiled net allows one
    backward pass: a second one (`retain_graph=True`) and second derivatives raise an error that
    says how to switch to Paddle's layers.

    Set `dropout_rate` to the share of the linear layer's inputs that is dropped at random in a
    training step (Srivastava et al., 2014; the others are scaled up); the default is 0, as in the
    tutorial.
    """

    checkpoint_name = "mnist"
    # When a run resumes: `fast_conv` may change, and the option `dropout` is compared.
    not_compared = (*FastConvSwitch.not_compared, "dropout_rate")

    def __init__(self, pretrained: bool = False, fast_conv: Union[str, int] = "auto"):
        super().__init__()
        self.fast_conv = fast_conv
        self.dropout_rate = 0.0
        with unique_name.guard():
            self.conv1 = nn.Conv2D(in_channels=1, out_channels=20, kernel_size=5, padding=2)
            self.relu1 = nn.ReLU()
            self.max_pool1 = nn.MaxPool2D(kernel_size=2, stride=2)
            self.conv2 = nn.Conv2D(in_channels=20, out_channels=20, kernel_size=5, padding=2)
            self.relu2 = nn.ReLU()
            self.max_pool2 = nn.MaxPool2D(kernel_size=2, stride=2)
            self.fc = nn.Linear(in_features=980, out_features=10)
            # In a tuple it is not one of the model's layers, which are the tutorial's. Each model
            # needs its own: `paddle.jit.to_static` changes the layers of the model it converts.
            self._flatten = (nn.Flatten(),)
        if pretrained:
            load_weights(self, weights(), WEIGHTS)

    def forward(
        self, inputs: paddle.Tensor, *args: Any, **kwargs: Any
    ) -> Union[paddle.Tensor, tuple[paddle.Tensor, paddle.Tensor]]:
        """Return logits [B, 10], or with labels (logits, accuracy of this batch).

        The signature is (inputs, label=None, check_shape=False, check_content=False), as in the
        tutorial. Only `inputs` is written out, because `paddle.Model` and `paddle.jit` infer from
        the number of parameters how many values of a batch (image, label) are inputs.

        inputs: float32 [B, 1, 28, 28].
        label: int64 [B, 1].
        check_shape, check_content: print shapes or contents (`print_layers`).
        """
        # One expression: Paddle 2.6 cannot turn a function with two returns into a graph.
        return self._with_label(inputs, *args, **kwargs) if args or kwargs else self.logits(inputs)

    def _with_label(
        self,
        inputs: paddle.Tensor,
        label: Optional[paddle.Tensor] = None,
        check_shape: bool = False,
        check_content: bool = False,
    ) -> Union[paddle.Tensor, tuple[paddle.Tensor, paddle.Tensor]]:
        if check_shape or check_content:
            with print_layers(self, check_shape, check_content):
                logits = self.logits(inputs)
        else:
            logits = self.logits(inputs)
        if label is None:
            return logits
        return logits, paddle.metric.accuracy(input=logits, label=label)

    def logits(self, inputs: paddle.Tensor) -> paddle.Tensor:
        """Compute the logits: float32 [B, 1, 28, 28] -> [B, 10]."""
        if not self.dropout_rate and not self._is_replaced("features"):
            return run_layers([*self._feature_layers, self.fc], inputs, self.fast_conv)
        features = self.features(inputs)
        dropped = F.dropout(features, self.dropout_rate, training=self.training)
        return self.fc(dropped)  # type: ignore[no-any-return]  # 2.6.2 traces no annotated name

    def features(self, inputs: paddle.Tensor) -> paddle.Tensor:
        """Compute both blocks: float32 [B, 1, 28, 28] -> [B, 980]."""
        return run_layers(self._feature_layers, inputs, self.fast_conv)

    def layers_in_order(self) -> Optional[list[nn.Layer]]:
        """Return the layers that compute the logits, in order.

        Returns None with dropout, and in a subclass that computes something else.
        """
        methods = ("__call__", "forward", "logits", "features")
        if self.dropout_rate or any(map(self._is_replaced, methods)):
            return None
        return [*self._feature_layers, self.fc]

    def _is_replaced(self, method: str) -> bool:
        """Return whether this object or its class overrides a method of `MNIST`."""
        return method in vars(self) or getattr(type(self), method) is not getattr(MNIST, method)

    @property
    def _feature_layers(self) -> tuple[nn.Layer, ...]:
        return (
            self.conv1,
            self.relu1,
            self.max_pool1,
            self.conv2,
            self.relu2,
            self.max_pool2,
            *self._flatten,
        )
