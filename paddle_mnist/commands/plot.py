"""Draw the figures of a run again, or compare several runs in one chart."""

from collections.abc import Sequence

from paddle_mnist.checkpoint.names import find_run
from paddle_mnist.commands import Parser, command
from paddle_mnist.commands._train_options import add_device_option
from paddle_mnist.mnist.figures import DIGIT_FIGURES
from paddle_mnist.options import split_names
from paddle_mnist.plots.figure import COMPARED_FILES
from paddle_mnist.plots.figure import FIGURES as FIGURES_OF_ANY_NET
from paddle_mnist.system.devices import require_paddle


@command(prints_data=True)
def main(argv: Sequence[str]) -> None:
    """Draw the figures and print their folder; return the exit code."""
    rows = [f"  {name}.png, {name}.svg" for name in DIGIT_FIGURES]
    rows += [f"  {', '.join(COMPARED_FILES)}  several runs, one over another"]
    parser = Parser(
        "paddle-mnist plot",
        __doc__,
        "work/output/default",
        epilog="\n".join(
            [
                "files that --only may name:",
                *rows,
                f"Runs of paddle_mnist.fit have {', '.join(FIGURES_OF_ANY_NET)}.",
            ]
        ),
    )
    parser.usage = "%(prog)s [RUN ...] [options]"
    parser.add_argument(
        "runs",
        metavar="RUN",
        nargs="*",
        help="run directories, or checkpoints or files of runs [newest in work/output]",
    )
    parser.add_argument(
        "--output",
        metavar="FOLDER",
        help="folder to write [RUN/figures; of several runs, the first]",
    )
    parser.add_argument(
        "--only",
        default="",
        metavar="FILES",
        help="comma-separated files from the list below [all]",
    )
    add_device_option(parser)
    args = parser.parse_args(argv)
    require_paddle()
    from paddle_mnist.mnist.run_figures import plot_runs

    runs = [find_run(name).path for name in args.runs or [None]]
    only = split_names(args.only)
    print(plot_runs(runs, args.output, args.device, only))
