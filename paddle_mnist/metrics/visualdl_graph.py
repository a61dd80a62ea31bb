"""Draw a net's graph for VisualDL; a process of its own, since it changes how Paddle works.

The process reads a pickled `(folder, build, input_shape, dtype)` from its standard input.
"""

import pickle
import sys


def main() -> None:
    folder, build, input_shape, dtype = pickle.load(sys.stdin.buffer)
    from paddle.static import InputSpec
    from visualdl import LogWriter

    with LogWriter(folder) as writer:
        writer.add_graph(build(), [InputSpec(input_shape, dtype, "images")])


if __name__ == "__main__":
    main()
