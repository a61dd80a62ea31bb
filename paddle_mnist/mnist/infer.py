"""Read the digits in picture files."""

import contextlib
import functools
import glob
import itertools
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Optional, Union

import numpy as np
import paddle

import paddle_mnist
from paddle_mnist.errors import CheckpointError, ConfigError, DataError, OutputError
from paddle_mnist.mnist.arrays import SIZE, noun_of
from paddle_mnist.mnist.detector import FEATURES, moved, packaged_detector
from paddle_mnist.mnist.export import USUAL_OUTPUTS, export_model
from paddle_mnist.mnist.model import MNIST
from paddle_mnist.mnist.pictures import (
    MAX_BYTES,
    SUFFIXES,
    UNREAD_SUFFIXES,
    Digit,
    read_digit,
    read_digits,
)
from paddle_mnist.mnist.predictor import DigitPredictor
from paddle_mnist.mnist.pretrained import about
from paddle_mnist.mnist.reading import STDIN, Reading, reading, together
from paddle_mnist.system.files import (
    cache_folder,
    make_folder,
    temporary_folder,
    warn_once,
    writing,
)
from paddle_mnist.system.lock import locked
from paddle_mnist.system.machine import memory_limit, usable_cpus

log = logging.getLogger("paddle_mnist")

AT_ONCE = 64  # pictures
EXPORT_VERSION = 1  # of the exports in the cache; bump it when their outputs change


def pretrained_predictor(outputs: Sequence[str] = USUAL_OUTPUTS, **options: Any) -> DigitPredictor:
    """Return a predictor of the weights that come with the package, exported into the cache.

    outputs: of `paddle_mnist.mnist.export.OUTPUTS`. options: of `DigitPredictor`.
    """
    versions = (f"v{EXPORT_VERSION}", paddle.__version__, paddle_mnist.__version__)
    name = "-".join([about()["sha256"][:16], *versions, *outputs])
    folder = cache_folder() / "models" / name
    try:
        return _exported_into(folder, outputs, options)
    except OutputError as error:
        warn_once(
            folder.parent,
            "%s cannot be written (%s), so the weights are exported at each start; "
            "PADDLE_MNIST_CACHE names another folder",
            folder.parent,
            error.__cause__ or error,
        )
    with temporary_folder() as temporary:
        return _exported_into(temporary, outputs, options)


def _exported_into(
    folder: Path, outputs: Sequence[str], options: Mapping[str, Any]
) -> DigitPredictor:
    """Return a predictor of what is in a folder, exported first where it is missing or damaged."""
    with contextlib.suppress(CheckpointError):
        return DigitPredictor(folder, **options)
    make_folder(folder)
    with writing(folder), locked(folder / ".lock"):  # of several processes, one exports
        try:
            return DigitPredictor(folder, **options)
        except CheckpointError:
            export_model(MNIST(pretrained=True), folder, outputs)
        return DigitPredictor(folder, **options)


def open_predictor(
    name: Optional[str],
    run: Optional[str] = None,
    net: Optional[str] = None,
    outputs: Sequence[str] = USUAL_OUTPUTS,
    **options: Any,
) -> DigitPredictor:
    """Return the predictor of weights or an exported model, by default of the packaged weights.

    For the arguments, see `DigitPredictor`. Raises ConfigError for one without probabilities.
    """
    if name is None:
        name, run = run or "pretrained", None  # the final weights of the run, if one is given
    if name == "pretrained" and not (run or net):
        log.info("pretrained weights; for those of a run: --run")
        return pretrained_predictor(outputs, **options)
    predictor = DigitPredictor(name, run=run, outputs=outputs, net=net, **options)
    if "probabilities" not in predictor.outputs:
        raise ConfigError(
            f"{name}: gives {', '.join(predictor.outputs)}; expected probabilities among them; "
            f"export it with --outputs {','.join(outputs)}"
        )
    return predictor


def reads_digits(predictor: DigitPredictor) -> bool:
    """Return whether a model was trained on digits; yes, if it does not say on what."""
    dataset = predictor.about.get("dataset")
    return dataset is None or noun_of(dataset) == "digit"


def digit_scores(images: np.ndarray) -> np.ndarray:
    """Return how much each image looks like one digit: float64 [N], 0 to 1; see `Detector`.

    images: uint8 [N, 28, 28], as `read_digit` makes them. Whichever weights read the digits, the
    scores are those of the weights that come with the package.
    """
    images = moved(images)
    features = _feature_predictor().run(images.reshape(-1, SIZE, SIZE))[FEATURES]
    return packaged_detector().scores(features.reshape(*images.shape[:2], -1))


@functools.lru_cache(1)
def _feature_predictor() -> DigitPredictor:
    return pretrained_predictor((FEATURES,), device="cpu", parallel=2)


def pictures_in(names: Iterable[str]) -> Iterator[str]:
    """Yield the files that names stand for: files, folders and all below them, patterns, "-".

    Hidden files in a folder, such as `._x.jpg` of macOS, are left out.
    """
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
        files = (p for p in path.rglob("*") if "/." not in f"/{p.relative_to(path).as_posix()}")
        suffixes = (*SUFFIXES, *UNREAD_SUFFIXES)
        return [str(p) for p in sorted(files) if p.suffix.lower() in suffixes and p.is_file()]
    return sorted(glob.glob(name, recursive=True)) if glob.has_magic(name) else []


def read_pictures(
    predictor: DigitPredictor, files: Iterable[str], many: bool = False, check: bool = True
) -> Iterator[Reading]:
    """Yield a `Reading` for each file, in order, with the reason for a picture that is not read.

    AT_ONCE files are held at a time, and opened by as many threads as there are CPUs.

    many: read every digit of a picture, in reading order, instead of refusing several.
    check: give no digit for what is probably none. Without it there are no scores, nor are there
        for a model that was not trained on digits.
    """
    check = check and reads_digits(predictor)
    files = iter(files)
    with ThreadPoolExecutor(usable_cpus()) as pool:  # NumPy and Pillow work side by side
        while chunk := list(itertools.islice(files, AT_ONCE)):
            per_file = list(pool.map(functools.partial(_digits, many=many), chunk))
            digits = [
                digit for content in per_file if isinstance(content, list) for digit in content
            ]
            answers = iter(_answers(predictor, digits, check))
            for file, content in zip(chunk, per_file):
                if isinstance(content, DataError):
                    yield Reading(file, error=str(content))
                    continue
                readings = [reading(file, digit, *next(answers)) for digit in content]
                yield together(file, readings) if many else readings[0]


def _answers(
    predictor: DigitPredictor, digits: Sequence[Digit], check: bool
) -> Iterator[tuple[np.ndarray, Optional[float]]]:
    """Yield the probabilities of each digit, and its score."""
    if digits:
        pixels = np.stack([digit.pixels for digit in digits])
        scores = digit_scores(pixels) if check else itertools.repeat(None)
        yield from zip(predictor.run(pixels)["probabilities"], scores)


def _digits(file: str, many: bool) -> Union[list[Digit], DataError]:
    """Return the digits in a picture, or the one, or the reason why none is found."""
    try:
        picture = sys.stdin.buffer.read(MAX_BYTES + 1) if file == STDIN else Path(file)
        return read_digits(picture) if many else [read_digit(picture)]
    except DataError as error:
        return error
    except MemoryError:
        return DataError(memory_limit() or "too large for this machine's memory; make it smaller")
