"""What is read of sheets on a desk and of hard pages, drawn as phones photograph them."""

from collections.abc import Callable
from functools import partial

from benchmarks.turns import Benchmark, Figures, Report, Session

TILT = 7  # degrees
SHEETS, PAGES = 150, 40
FEW_SHEETS, FEW_PAGES = 10, 2  # of a quick run


def _kinds(session: Session) -> dict[str, Callable[[], Figures]]:
    from detector.photographs import count_pages, count_sheets

    from paddle_mnist.mnist.images import open_data

    split = open_data(session.source)["eval"]
    sheets, pages = (FEW_SHEETS, FEW_PAGES) if session.is_quick else (SHEETS, PAGES)
    return {
        "a sheet on a dark or patterned desk, in perspective": partial(
            count_sheets, split, sheets, 0, session.folder
        ),
        f"the same, turned by {TILT} degrees": partial(
            count_sheets, split, sheets, TILT, session.folder
        ),
        f"{pages} pages of close, ragged rows with fading strokes, `--many`": partial(
            count_pages, split, pages, session.folder
        ),
    }


def _note(report: Report) -> str:
    return (
        "Pictures are drawn by code, of MNIST's eval split. A digit of a page is right where it is "
        "read in the right order, and refused where it has a box and a `?`; what is missing has no "
        "box."
    )


BENCHMARK = Benchmark(
    __doc__,
    code=(
        "detector.camera",
        "detector.paper",
        "detector.photographs",
        "detector.textures",
        *(
            f"paddle_mnist.mnist.{name}"
            for name in "detector digit_normalization infer ink opencv pictures shapes".split()
        ),
    ),
    kinds=_kinds,
    head="digits on",
    columns={
        "digits": (",", "digits"),
        "right": (".1%", lambda row, rows: row["right"] / row["digits"]),
        "refused": (".1%", lambda row, rows: row["refused"] / row["digits"]),
        "missing": (".1%", lambda row, rows: row["missing"] / row["digits"]),
    },
    rounds=1,
    note=_note,
)
