"""Draw a net's graph for VisualDL; a process of its own, since it changes how Paddle works.

    python -m paddle_mnist.metrics.visualdl_graph FOLDER MODULE FUNCTION SHAPE

FUNCTION, of MODULE, builds the net; SHAPE is that of its input, as JSON with null for any size.
"""

import importlib
import json
import sys


def main(folder: str, module: str, function: str, shape: str) -> None:
    from paddle.static import InputSpec
    from visualdl import LogWriter

    build = getattr(importlib.import_module(module), function)
    with LogWriter(folder) as writer:
        writer.add_graph(build(), [InputSpec(json.loads(shape), name="images")])


if __name__ == "__main__":
    main(*sys.argv[1:])
