"""Show runs in VisualDL, side by side: curves, images, histograms and more, in a browser."""

import locale
from collections.abc import Sequence

from paddle_mnist.commands import Parser, command
from paddle_mnist.commands._weights import add_runs_arguments, named_runs


@command()
def main(argv: Sequence[str]) -> None:
    """Serve the dashboard until SIGINT or SIGTERM; return the exit code.

    VisualDL leaves a thread that never ends, for which Python would wait: `run_script` abandons it.
    """
    parser = Parser("paddle-mnist dashboard", __doc__, "work/output/default")
    add_runs_arguments(
        parser,
        "run directories, checkpoints or files of runs, folders that contain runs, or VisualDL "
        "logs [all of work/output]",
        more_options=("--logdir",),  # VisualDL's own name, which its users type
    )
    parser.add_argument(
        "--port", "-p", type=int, default=8080, help="port to listen on; 0: any free port [8080]"
    )
    parser.add_argument(
        "--host",
        "-t",
        default="127.0.0.1",
        help="address to listen on [127.0.0.1: this machine only]",
    )
    parser.add_argument(
        "--public_path",
        default="/app",
        metavar="PATH",
        help="path of the pages, as a proxy in front passes it on [/app]",
    )
    chinese = (locale.getlocale()[0] or "").startswith("zh")
    language = "zh" if chinese else "en"
    parser.add_argument(
        "--language", "-L", choices=["en", "zh"], default=language, help=f"[{language}]"
    )
    args = parser.parse_args(argv)
    from paddle_mnist.apps.dashboard import serve

    serve(named_runs(args), args.host, args.port, args.language, args.public_path)
