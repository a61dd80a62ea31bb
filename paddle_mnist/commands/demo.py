"""Serve a page to draw digits on: the net's answer, what it saw, and its layers, live.

Only this machine can reach it unless --host says otherwise. Other programs may ask at /read, see
the page's "Use via API". Ctrl-C ends it.
"""

import os
import sys
from collections.abc import Sequence
from typing import Optional

from paddle_mnist.commands import Parser, program_name, run_command
from paddle_mnist.system.devices import require_paddle


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Serve the page until SIGINT or SIGTERM; return the exit code."""
    return run_command(_serve, argv, log_to=sys.stderr)


def _serve(argv: Sequence[str]) -> None:
    parser = Parser(prog=program_name("demo"), description=__doc__)
    parser.add_argument(
        "--model", metavar="FOLDER", help=f"what {program_name('export')} wrote [pretrained]"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at [127.0.0.1]")
    parser.add_argument(
        "--port", type=int, default=7860, help="0: the first free from there on [7860]"
    )
    parser.add_argument(
        "--share", action="store_true", help="also through gradio's public tunnel, for all to see"
    )
    args = parser.parse_args(argv)
    os.environ.setdefault("GLOG_minloglevel", "2")  # Paddle warns when it exports its softmax
    require_paddle()
    from paddle_mnist.apps.demo import serve

    serve(args.model, args.host, args.port, args.share)
