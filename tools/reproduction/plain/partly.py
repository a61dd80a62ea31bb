"""Load a trained net's weights into one with another second convolution: Paddle's way, and ours.

python partly.py DATA SEED
"""

import json
import sys
import warnings

import paddle
from paddle import nn
from short import accuracy, new_net, train

from paddle_mnist.errors import CheckpointError
from paddle_mnist.nn.state_dict import load_weights

data, seed = sys.argv[1:]
paddle.seed(int(seed))
trained, other = train(new_net(), data), new_net()
other.conv2 = nn.Conv2D(20, 20, 3, padding=1)
before = other.conv2.weight.numpy()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    other.set_state_dict(trained.state_dict())
report = {"trained": accuracy(trained, data), "loaded": accuracy(other, data)}
report["untouched"] = bool((other.conv2.weight.numpy() == before).all())
report["warnings"] = [" ".join(str(warning.message).split()) for warning in caught]
try:
    load_weights(other, trained.state_dict(), "the file")
except CheckpointError as error:
    report["refused"] = " ".join(str(error).split())
print(json.dumps(report))
