"""Serve a page to draw digits on, and show the net's answer, input and layers live.

Only this machine can reach the page unless you give --host. Other programs can send requests to
/read: see "Use via API" on the page. Press Ctrl-C to stop.
"""

from collections.abc import Sequence

from paddle_mnist.commands import Parser, command
from paddle_mnist.commands._weights import KINDS, add_weights_arguments, named_weights
from paddle_mnist.system.devices import require_paddle


@command(prints_data=True)
def main(argv: Sequence[str]) -> None:
    """Serve the page until SIGINT or SIGTERM; return the exit code."""
    parser = Parser("paddle-mnist demo", __doc__, "work/output/default")
    add_weights_arguments(parser, "pretrained", f"{KINDS}, an exported model")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on [127.0.0.1]")
    parser.add_argument(
        "--port", type=int, default=7860, help="port to listen on; 0: any free port [7860]"
    )
    parser.add_argument(
        "--share", action="store_true", help="make the page public through gradio's tunnel"
    )
    args = parser.parse_args(argv)
    weights = named_weights(args)
    require_paddle(hide_warnings=True)
    from paddle_mnist.apps.demo import serve

    serve(weights.name, args.host, args.port, args.share, weights.run, args.net)
