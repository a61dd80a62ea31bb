"""The files of an exported model, and `about.json`, which commits and describes them."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paddle_mnist.errors import CheckpointError

ABOUT = "about.json"
ONNX = "model.onnx"
PROGRAMS = ("inference.json", "inference.pdmodel")  # as Paddle 3 writes it, and Paddle 2
PARAMETERS = "inference.pdiparams"

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Input:
    """An input of an exported model.

    name: in the program. dtype: NumPy's name of its type. shape: of one sample, without the batch
    dimension, which comes first and is free.
    """

    name: str
    dtype: str
    shape: Shape

    def __str__(self) -> str:
        return f"{self.dtype} [{', '.join(['N', *map(str, self.shape)])}]"

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "dtype": self.dtype, "shape": [-1, *self.shape]}

    @classmethod
    def from_about(cls, spec: Mapping[str, Any]) -> "Input":
        """Read what `describe` gave. Raises KeyError, TypeError or ValueError."""
        batch, *shape = spec["shape"]
        if batch != -1 or not all(isinstance(size, int) and size > 0 for size in shape):
            raise ValueError(f"the input's shape is {spec['shape']}")
        return cls(str(spec["name"]), np.dtype(spec["dtype"]).name, tuple(shape))


@dataclass(frozen=True)
class Signature:
    """The inputs of an exported model, and the names of its outputs, both in order."""

    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]

    def describe(self) -> dict[str, Any]:
        """Return the entries of `about.json`: "input" of a model that has one, else "inputs"."""
        specs = [spec.describe() for spec in self.inputs]
        inputs = {"input": specs[0]} if len(specs) == 1 else {"inputs": specs}
        return {**inputs, "outputs": list(self.outputs)}

    @classmethod
    def from_about(cls, about: Mapping[str, Any]) -> "Signature":
        """Read the entries of `about.json`. Raises KeyError, TypeError or ValueError."""
        specs = about["inputs"] if "inputs" in about else [about["input"]]
        inputs, outputs = tuple(map(Input.from_about, specs)), about["outputs"]
        if len({spec.name for spec in inputs}) < len(specs) or not inputs:
            raise ValueError(f"inputs are {specs!r}")
        if not isinstance(outputs, list) or not all(isinstance(name, str) for name in outputs):
            raise ValueError(f"outputs are {outputs!r}")
        return cls(inputs, tuple(outputs))


def read_about(folder: Path) -> tuple[dict[str, Any], Signature]:
    """Read `about.json` and verify every file that it names.

    Raises CheckpointError if it is missing or damaged, or if a file is not the one it names.
    """
    path = folder / ABOUT
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        files, signature = dict(about["files"]), Signature.from_about(about)
    except OSError as error:
        raise CheckpointError(
            f"{path}: {error.strerror}; expected a folder that the command export wrote"
        ) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path}: damaged ({error!r}); export again") from error
    needed = set(files) - {f"{PARAMETERS}.info"}  # Paddle 2 writes it too, and nobody reads it
    forms = [{ONNX}, *({program, PARAMETERS} for program in PROGRAMS)]
    outputs = signature.outputs
    if needed not in forms or not outputs or len(set(outputs)) < len(outputs):
        raise CheckpointError(
            f"{path}: names the files {', '.join(map(repr, files))} and the outputs "
            f"{', '.join(map(repr, outputs))}; expected those of an exported model; export again"
        )
    for name, digest in files.items():
        _verify(folder / name, str(digest))
    return about, signature


def _verify(path: Path, expected: str) -> None:
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}; export again") from error
    if digest != expected:
        raise CheckpointError(
            f"{path}: SHA-256 {digest[:12]}...; {ABOUT} says {expected[:12]}...; export again"
        )
