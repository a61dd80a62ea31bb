"""Pictures in files: what digits are they?"""

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
from paddle_mnist.mnist.pictures import MOST_BYTES, SUFFIXES, Digit, read_digit
from paddle_mnist.mnist.predictor import Predictor
from paddle_mnist.mnist.pretrained import about
from paddle_mnist.system.files import make_folder, writing
from paddle_mnist.training.run_directory import SavedWeights

STDIN = "-"
AT_ONCE = 64  # pictures
UNSURE = 0.6  # a probability below it
FORM = 1  # of what is exported into the cache; another one where `ExportedModel` computes otherwise


@dataclass(frozen=True)
class Reading:
    """What a picture was read as, or why it was not.

    digit, probability: None where there is an error. note: what is doubtful. pixels: uint8
    [28, 28], what the net saw.
    """

    file: str
    digit: Optional[int] = None
    probability: Optional[float] = None
    error: Optional[str] = None
    note: str = ""
    pixels: Optional[np.ndarray] = None

    def as_dict(self) -> dict:
        return {name: getattr(self, name) for name in ("file", "digit", "probability", "error")}


def pretrained_predictor(
    outputs: Sequence[str] = ("logits", "probabilities"), **options: Any
) -> Predictor:
    """The weights that come with the package, exported once into the cache.

    outputs: of `paddle_mnist.mnist.predictor.OUTPUTS`. options: of `Predictor`.
    """
    made = about()
    versions = (f"v{FORM}", paddle.__version__, paddle_mnist.__version__)
    name = "-".join([made["sha256"][:16], *versions, *outputs])
    folder = cache_folder() / "models" / name
    make_folder(folder)
    with writing(folder), FileLock(folder / ".lock"):  # of several processes, one exports
        try:
            return Predictor(folder, **options)
        except CheckpointError:  # not there yet, or damaged: it is only a cache
            export_model(MNIST(pretrained=True), folder, outputs)
        return Predictor(folder, **options)


def weights_predictor(
    weights: SavedWeights,
    outputs: Sequence[str] = ("logits", "probabilities"),
    **options: Any,
) -> Predictor:
    """Weights of a run or a file, exported for this process alone, as tools/export_model.py does.

    outputs: of `paddle_mnist.mnist.predictor.OUTPUTS`. options: of `Predictor`.
    Raises CheckpointError unless they fit the net.
    """
    model = MNIST()
    load_weights(model, weights.values, weights.path)
    with tempfile.TemporaryDirectory() as folder:  # the predictor has read it when it is made
        export_model(model, Path(folder), outputs)
        return Predictor(folder, **options)


def pictures_in(names: Iterable[str]) -> Iterator[str]:
    """The files that names stand for: files, folders and all below them, patterns, "-"."""
    for name in names:
        try:
            yield from _pictures_of(name) or [name]  # what is not there gets a line of its own
        except OSError:  # a name too long, a folder that is closed to us: said when it is read
            yield name


def _pictures_of(name: str) -> list[str]:
    path = Path(name)
    if name == STDIN or path.is_file():
        return [name]
    if path.is_dir():
        found = (p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
        return [str(p) for p in sorted(found)]
    return sorted(glob.glob(name, recursive=True)) if glob.has_magic(name) else []


def read_pictures(predictor: Predictor, files: Iterable[str]) -> Iterator[Reading]:
    """One `Reading` a file, in order; a picture that cannot be read says why in its own."""
    files = iter(files)
    while chunk := list(itertools.islice(files, AT_ONCE)):
        digits = [_digit(file) for file in chunk]
        pixels = [digit.pixels for digit in digits if isinstance(digit, Digit)]
        found = iter(predictor.run(np.stack(pixels))["probabilities"] if pixels else ())
        for file, digit in zip(chunk, digits):
            yield reading(file, digit, next(found) if isinstance(digit, Digit) else None)


def _digit(file: str) -> Union[Digit, DataError]:
    """The digit, or why there is none."""
    try:
        given = sys.stdin.buffer.read(MOST_BYTES + 1) if file == STDIN else Path(file)
        return read_digit(given)
    except DataError as error:
        return error
    except MemoryError:
        return DataError("too large for this machine's memory; make it smaller")


def reading(
    file: str, digit: Union[Digit, DataError], probabilities: Optional[np.ndarray]
) -> Reading:
    """What to say of a picture. probabilities: float32 [10], where there is a digit."""
    if isinstance(digit, DataError):
        return Reading(file, error=str(digit))
    if digit.shapes > 1:
        said = f"{digit.shapes} shapes side by side; expected one digit; cut them apart"
        return Reading(file, error=said, pixels=digit.pixels)
    best, second = np.argsort(probabilities)[::-1][:2]
    probability = float(probabilities[best])
    note = f"unsure: {best} or {second}" if probability < UNSURE else ""
    return Reading(file, int(best), probability, note=note, pixels=digit.pixels)


ON_A_SHEET = 1000  # pictures: 100 rows of ten, 11,200 pixels high


def sheet(readings: Iterable[Reading], columns: int = 10, times: int = 4) -> Image.Image:
    """What the net saw of each picture, side by side; one that could not be read is grey.

    Of the first ON_A_SHEET pictures.
    """
    tiles = [
        np.full((SIZE, SIZE), 64, np.uint8) if one.pixels is None else one.pixels
        for one in itertools.islice(readings, ON_A_SHEET)
    ]
    tiles += [np.zeros((SIZE, SIZE), np.uint8)] * (-len(tiles) % columns)
    rows = [np.hstack(tiles[at : at + columns]) for at in range(0, len(tiles), columns)]
    image = Image.fromarray(np.vstack(rows))
    return image.resize((image.width * times, image.height * times), Image.Resampling.NEAREST)
