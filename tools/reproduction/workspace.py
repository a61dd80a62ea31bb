"""The place and the size of measurements, and the stored results of trainings."""

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from paddle_mnist.mnist.images import Images
from paddle_mnist.system.files import write_atomically
from paddle_mnist.system.lock import locked

if TYPE_CHECKING:
    from reproduction.trainings import Training


@dataclass(frozen=True)
class Scale:
    """The size of the measurements.

    seeds: train with seeds 1 to `seeds`; 0: each claim's own number. quick: a quick run.
    """

    seeds: int = 0
    quick: bool = False

    def choose(self, full: Any, quick: Any) -> Any:
        """Return the size for this scale."""
        return quick if self.quick else full


class Results:
    """The results of trainings by name, in a JSON file that several processes may write to."""

    def __init__(self, path: Path):
        self.path = path
        self._results = self._read()

    def _read(self) -> dict[str, Any]:
        return json.loads(self.path.read_text("utf-8")) if self.path.exists() else {}

    def get(self, training: "Training", data: Images) -> Optional[dict[str, Any]]:
        """Return the result of a training with these settings and images.

        Names do not count: it is the same training whatever its recipe is called.
        """
        settings = training.settings(data)
        alike = (stored for stored in self._results.values() if stored["settings"] == settings)
        return next(alike, None)

    def versions(self) -> list[str]:
        """Return the versions of the libraries that the trainings ran with."""
        return [
            f"{name} {', '.join(sorted(versions))}"
            for name in ("paddle", "numpy")
            if (versions := {result[name] for result in self._results.values() if name in result})
        ]

    def put(self, training: "Training", data: Images, result: Mapping[str, Any]) -> None:
        """Store the result of a training."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with locked(self.path.with_name(f"{self.path.name}.lock")):
            stored = {"settings": training.settings(data), **result}
            self._results = {**self._read(), training.name: stored}
            lines = (
                f"{json.dumps(name)}: {json.dumps(one)}"
                for name, one in sorted(self._results.items())
            )
            write_atomically(self.path, ("{\n" + ",\n".join(lines) + "\n}\n").encode())


@dataclass(frozen=True)
class Workspace:
    """The data that the claims are tested on, and the place of their results.

    folder: of the stored results. output: of the trainings and other working files.
    jobs: how many trainings run at once.
    """

    data: Images
    folder: Path
    output: Path
    scale: Scale = Scale()
    jobs: int = 1

    @property
    def is_in_process(self) -> bool:
        """Whether trainings run in this process, which saves a rehearsal their starts."""
        return self.scale.quick and self.jobs == 1

    @functools.cached_property
    def results(self) -> Results:
        return Results(self.folder / "trainings.json")
