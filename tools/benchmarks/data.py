"""Time until the images of an AI Studio JSON file are there, and peak memory."""

from collections.abc import Callable
from functools import partial

from benchmarks.timing import run_python
from benchmarks.turns import Benchmark, Figures, Session

# Each runs in a process of its own, so that the peak of its memory is its own too. Imports come
# before the clock starts.
CHILD = """
import sys, time
path = sys.argv[1]
{imports}
started = time.perf_counter()
data = {work}
print(time.perf_counter() - started)
"""
STDLIB = CHILD.format(imports="import gzip, json", work="json.load(gzip.open(path))")
OURS = CHILD.format(
    imports="from paddle_mnist.mnist.images import open_data", work="open_data(path)"
)
BASE = "`json.load(gzip.open(...))`"
# The second of ours finds what the first has cached.
KINDS = {BASE: STDLIB, "this package, first time": OURS, "this package, cached": OURS}


def _kinds(session: Session) -> dict[str, Callable[[], Figures]]:
    return {kind: partial(_open, session, program) for kind, program in KINDS.items()}


def _open(session: Session, program: str) -> Figures:
    done = run_python("-c", program, session.json_file, **session.own_cache)
    return {"seconds": float(done.printed), "peak_mib": done.peak_mib}


BENCHMARK = Benchmark(
    __doc__,
    code=(
        __name__,
        *(f"paddle_mnist.mnist.{name}" for name in ("arrays", "cache", "json_reader", "readers")),
    ),
    kinds=_kinds,
    head="images ready",
    columns={
        "seconds": (".3g", "seconds"),
        "peak MiB": (".0f", "peak_mib"),
        "json.load takes": (
            "",
            lambda row, rows: f"{rows[BASE]['seconds'] / row['seconds']:.1f}x",
        ),
    },
)
