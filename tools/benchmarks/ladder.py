"""From the tutorial's loop to ours, one change a row: seconds and accuracy of whole commands."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Optional

from benchmarks.time_to_accuracy import timed
from benchmarks.timing import TRAIN, TUTORIAL, run_python
from benchmarks.turns import Benchmark, Figures, Report, Rows, Session

BARE = ("--visualdl", "false", "--figures", "false", "--watch", "0")
DEFAULT = ("--visualdl", "true", "--figures", "true", "--watch", "100")
OWN = ("--fast_conv", "off")
ONE = ("--threads", "1")
# Recipe and options: each differs from the one before in what its title says.
BASE = "the tutorial's loop"
ARRAY = "images in one array, cached; batches by one index"
STEPS = {
    BASE: None,
    ARRAY: ("tutorial", *OWN, *BARE),
    "the fast convolution, one thread": ("tutorial", "--fast_conv", "on", *ONE, *BARE),
    "a thread on each core": ("tutorial", "--fast_conv", "on", *BARE),
    "the recipe `default`: Momentum, one-cycle, weight decay, batches of 64": ("default", *BARE),
    "one epoch instead of five": ("default", "--epochs", "1", *BARE),
    "42,000 images instead of 50,000": ("fast",),
    "plus the default watching, VisualDL and figures": ("fast", *DEFAULT),
}
FILL = "import sys; from paddle_mnist.mnist.images import open_data; open_data(sys.argv[1])"


def _kinds(session: Session) -> dict[str, Callable[[], Figures]]:
    run_python("-c", FILL, session.json_file, **session.own_cache)
    return {title: partial(_train, session, title, options) for title, options in STEPS.items()}


def _train(session: Session, title: str, options: Optional[Sequence[str]]) -> Figures:
    """Seconds and eval accuracy of a command; the cache has been filled."""
    command = [TUTORIAL]
    if options:
        command = [TRAIN, "--recipe", *options, "--output", session.folder / title[:20]]
    return timed(*command, "--data", session.json_file, **session.own_cache)


def _rows(report: Report) -> Rows:
    rows = report.medians
    for row, before in zip([*rows.values()][1:], rows.values()):
        row["times"] = before["seconds"] / row["seconds"]
    return rows


BENCHMARK = Benchmark(
    __doc__,
    code=(
        __name__,
        "baseline_tutorial",
        "paddle_mnist.data",
        *(f"paddle_mnist.mnist.{name}" for name in ("cache", "model", "setup")),
        "paddle_mnist.monitor.watch",
        "paddle_mnist.nn",
        "paddle_mnist.training.trainer",
    ),
    kinds=_kinds,
    head="change",
    columns={
        "seconds": (".1f", "seconds"),
        "times faster than the row before": (".2f", "times"),
        "eval accuracy": (".2%", "accuracy"),
    },
    rows=_rows,
    note=lambda report: (
        "Whole commands, seed 1, once each, so an accuracy is one of many that chance allows. "
        "[REPRODUCTION.md](../../REPRODUCTION.md#default) has several seeds of `default`."
    ),
    rounds=1,
    quick=(BASE, ARRAY),
)
