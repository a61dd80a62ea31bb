"""Read the digits in picture files."""

import glob
import itertools
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional, Union

import numpy as np
import paddle
from filelock import FileLock
from PIL import Image

import paddle_mnist
from paddle_mnist.checkpoint.contents import load_weights
from paddle_mnist.errors import CheckpointError, DataError
from paddle_mnist.mnist.arrays import SIZE
from paddle_mnist.mnist.cache import cache_folder
from paddle_mnist.mnist.export import export_model
from paddle_mnist.mnist.model import MNIST
from paddle_mnist.mnist.own_nets import refuse_own_net
from paddle_mnist.mnist.pictures import MAX_BYTES, SUFFIXES, Digit, read_digit
from paddle_mnist.mnist.predictor import Predictor
from paddle_mnist.mnist.pretrained import about
from paddle_mnist.system.files import make_folder, writing
from paddle_mnist.training.saved_weights import SavedWeights

STDIN = "-"
AT_ONCE = 64  # pictures
UNSURE = 0.6  # a probability below it
FORM = 1  # of what is exported into the cache; another one where `ExportedModel` computes otherwise


@dataclass(frozen=True)
class Reading:
    """What was read in a picture, or why nothing was.

    digit, probability: None where there is an error. note: what is doubtful. pixels: uint8
    [28, 28], what the net saw; None where it saw nothing.
    """

    file: str
    digit: Optional[int] = None
    probability: Optional[float] = None
    error: Optional[str] = None
    note: str = ""
    pixels: Optional[np.ndarray] = None

    def as_dict(self) -> dict[str, Any]:
        """Return what the command `infer --json` prints."""
        return {name: getattr(self, name) for name in ("file", "digit", "probability", "error")}


def pretrained_predictor(
    outputs: Sequence[str] = ("logits", "probabilities"), **options: Any
) -> Predictor:
    """Return a predictor of the weights that come with the package, exported into the cache.

    outputs: of `paddle_mnist.mnist.predictor.OUTPUTS`. options: of `Predictor`.
    """
    versions = (f"v{FORM}", paddle.__version__, paddle_mnist.__version__)
    name = "-".join([about()["sha256"][:16], *versions, *outputs])
    folder = cache_folder() / "models" / name
    make_folder(folder)
    with writing(folder), FileLock(folder / ".lock"):  # of several processes, one exports
        try:
            return Predictor(folder, **options)
        except CheckpointError:  # missing or damaged: it is only a cache
            export_model(MNIST(pretrained=True), folder, outputs)
        return Predictor(folder, **options)


def weights_predictor(
    weights: SavedWeights,
    outputs: Sequence[str] = ("logits", "probabilities"),
    **options: Any,
) -> Predictor:
    """Return a predictor of the weights of a run or a file, exported for this process alone.

    outputs: of `paddle_mnist.mnist.predictor.OUTPUTS`. options: of `Predictor`.
    Raises CheckpointError unless they fit the net, and for those of a run of `fit`.
    """
    refuse_own_net(weights.run, "predict_run")
    model = MNIST()
    load_weights(model, weights.values, weights.path)
    with tempfile.TemporaryDirectory() as folder:  # the predictor has read it when it is made
        export_model(model, Path(folder), outputs)
        return Predictor(folder, **options)


def pictures_in(names: Iterable[str]) -> Iterator[str]:
    """Yield the files that names stand for: files, folders and all below them, patterns, "-"."""
    for name in names:
        try:
            yield from _pictures_of(name) or [name]  # a missing file gets a line of its own
        except OSError:  # a name too long, no access to a folder: reported when it is read
            yield name


def _pictures_of(name: str) -> list[str]:
    path = Path(name)
    if name == STDIN or path.is_file():
        return [name]
    if path.is_dir():
        files = (p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
        return [str(file) for file in sorted(files)]
    return sorted(glob.glob(name, recursive=True)) if glob.has_magic(name) else []


def read_pictures(predictor: Predictor, files: Iterable[str]) -> Iterator[Reading]:
    """Yield a `Reading` for each file, in order, with the reason for a picture that is not read."""
    files = iter(files)
    while chunk := list(itertools.islice(files, AT_ONCE)):
        digits = [_digit(file) for file in chunk]
        pixels = [digit.pixels for digit in digits if isinstance(digit, Digit)]
        rows = iter(predictor.run(np.stack(pixels))["probabilities"] if pixels else ())
        for file, digit in zip(chunk, digits):
            yield reading(file, digit, next(rows) if isinstance(digit, Digit) else None)


def _digit(file: str) -> Union[Digit, DataError]:
    """Return the digit in a picture, or the reason why none is found."""
    try:
        return read_digit(sys.stdin.buffer.read(MAX_BYTES + 1) if file == STDIN else Path(file))
    except DataError as error:
        return error
    except MemoryError:
        return DataError("too large for this machine's memory; make it smaller")


def reading(
    file: str, digit: Union[Digit, DataError], probabilities: Optional[np.ndarray]
) -> Reading:
    """Return the reading of a picture. probabilities: float32 [10], where there is a digit."""
    if isinstance(digit, DataError):
        return Reading(file, error=str(digit))
    if digit.shapes > 1:
        error = f"{digit.shapes} shapes side by side; expected one digit; cut them apart"
        return Reading(file, error=error, pixels=digit.pixels)
    best, second = np.argsort(probabilities)[::-1][:2]
    probability = float(probabilities[best])
    note = f"unsure: {best} or {second}" if probability < UNSURE else ""
    return Reading(file, int(best), probability, note=note, pixels=digit.pixels)


ON_A_SHEET = 1000  # pictures: 100 rows of ten, 11,200 pixels high


def sheet(readings: Iterable[Reading], columns: int = 10, times: int = 4) -> Image.Image:
    """Draw what the net saw of the first ON_A_SHEET pictures, side by side.

    A picture that could not be read is grey. times: how much to enlarge.
    """
    tiles = [
        np.full((SIZE, SIZE), 64, np.uint8) if reading.pixels is None else reading.pixels
        for reading in itertools.islice(readings, ON_A_SHEET)
    ]
    tiles += [np.zeros((SIZE, SIZE), np.uint8)] * (-len(tiles) % columns)
    rows = [np.hstack(tiles[start : start + columns]) for start in range(0, len(tiles), columns)]
    image = Image.fromarray(np.vstack(rows))
    return image.resize((image.width * times, image.height * times), Image.Resampling.NEAREST)
