"""Imported by the process that tests fork from: the net's machine code is loaded there, once."""

from paddle_mnist.mnist.options import net_sizes
from paddle_mnist.nn.compiled_net import compiled_net

for has_dropout in (False, True):
    net = compiled_net(net_sizes(has_dropout))
    for title in net.functions:
        net.compile(title)
