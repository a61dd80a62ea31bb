"""Show runs in VisualDL, side by side: curves, images, histograms and more, in a browser."""

import locale
from collections.abc import Sequence

from paddle_mnist.checkpoint.names import find_run
from paddle_mnist.commands import Parser, command


@command()
def main(argv: Sequence[str]) -> None:
    """Serve the dashboard until SIGINT or SIGTERM; return the exit code.

    VisualDL leaves a thread that never ends, for which Python would wait: `run_script` abandons it.
    """
    parser = Parser("paddle-mnist dashboard", __doc__, "work/output/default")
    parser.usage = "%(prog)s [RUN ...] [options]"
    parser.add_argument(
        "runs",
        metavar="RUN",
        nargs="*",
        help="run directories, checkpoints or files of runs, folders that contain runs, or "
        "VisualDL logs [all of work/output]",
    )
    parser.add_argument(
        "--logdir", metavar="RUN", nargs="+", default=[], help="the same as RUN, as in VisualDL"
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
        help="path of the pages, as a proxy in front forwards it [/app]",
    )
    chinese = (locale.getlocale()[0] or "").startswith("zh")
    language = "zh" if chinese else "en"
    parser.add_argument(
        "--language", "-L", choices=["en", "zh"], default=language, help=f"[{language}]"
    )
    args = parser.parse_args(argv)
    from paddle_mnist.apps.dashboard import serve

    runs = [find_run(name).path for name in (*args.runs, *args.logdir)]
    serve(runs, args.host, args.port, args.language, args.public_path)
