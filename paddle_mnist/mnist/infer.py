"""Read the digits in picture files."""

import functools
import glob
import itertools
import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Optional, Union

import numpy as np

from paddle_mnist.errors import ConfigError, DataError
from paddle_mnist.mnist.arrays import noun_of
from paddle_mnist.mnist.detector import digit_scores, packaged_answers
from paddle_mnist.mnist.export import USUAL_OUTPUTS
from paddle_mnist.mnist.pictures import MAX_BYTES, SUFFIXES, UNREAD_SUFFIXES, Digit, read_digits
from paddle_mnist.mnist.predictor import DigitPredictor
from paddle_mnist.mnist.reading import STDIN, Reading, reading, together
from paddle_mnist.system.environment import memory_limit, usable_cpus

log = logging.getLogger("paddle_mnist")

AT_ONCE = 64  # pictures


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
    if not digits:
        return
    pixels = np.stack([digit.pixels for digit in digits])
    if check and predictor.is_pretrained:
        yield from zip(*packaged_answers(pixels))
    else:
        scores = digit_scores(pixels) if check else itertools.repeat(None)
        yield from zip(predictor.run(pixels)["probabilities"], scores)


def _digits(file: str, many: bool) -> Union[list[Digit], DataError]:
    """Return the digits in a picture, or the one, or the reason why none is found."""
    try:
        picture = sys.stdin.buffer.read(MAX_BYTES + 1) if file == STDIN else Path(file)
        return read_digits(picture, many)
    except DataError as error:
        return error
    except MemoryError:
        return DataError(memory_limit() or "too large for this machine's memory; make it smaller")
