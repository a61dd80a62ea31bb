#!/usr/bin/env python
"""Show runs in VisualDL, side by side: curves, images, histograms and more, in a browser."""

import locale
import logging
import os
import sys

from paddle_mnist.commands.cli import Parser, run_command


def main(argv) -> None:
    parser = Parser(prog="tools/dashboard.py", description=__doc__)
    parser.add_argument(
        "runs",
        metavar="RUN",
        nargs="*",
        help="run directories, folders of them, or VisualDL's log folders [all of work/output]",
    )
    # VisualDL's own names for these, which its users type.
    parser.add_argument(
        "--logdir", metavar="RUN", nargs="+", action="extend", default=[], help="the same"
    )
    parser.add_argument(
        *("--port", "-p"), type=int, default=8080, help="0: any that is free [8080]"
    )
    parser.add_argument(
        *("--host", "-t"), default="127.0.0.1", help="[127.0.0.1: this machine only]"
    )
    chinese = (locale.getlocale()[0] or "").startswith("zh")
    language = "zh" if chinese else "en"
    parser.add_argument(
        *("--language", "-L"), choices=["en", "zh"], default=language, help=f"[{language}]"
    )
    args = parser.parse_args(argv)
    from paddle_mnist.apps.dashboard import serve

    serve(args.runs + args.logdir, args.host, args.port, args.language)
    logging.shutdown()
    sys.stdout.flush()
    # VisualDL leaves a thread that never ends, and Python would wait for it; one that makes it a
    # daemon retires this.
    os._exit(0)


if __name__ == "__main__":
    run_command(main)
