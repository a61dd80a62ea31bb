"""The files of a run directory: where they are, and what is read from them.

`paddle_mnist.training.run_directory` writes them.
"""

import json
import logging
from pathlib import Path
from typing import Any, Optional, Union

from paddle_mnist.checkpoint.manifest import PARAMS
from paddle_mnist.checkpoint.store import CheckpointStore
from paddle_mnist.errors import ConfigError
from paddle_mnist.system.yaml_reader import read_yaml

log = logging.getLogger("paddle_mnist")

RUNS = "work/output"  # where runs are, unless --output says otherwise
DEFAULT_OUTPUT = f"{RUNS}/default"
TRAINED_WITH = "trained_with"  # of config.yaml: the function that trained the run, if it says so
METRICS_LINES = "metrics_lines"  # of a manifest: how many lines metrics.jsonl had when it was saved
MIRROR_RECORD = ".mirror.json"  # the checkpoint that was uploaded last: see `mirror_copy`
FIT = "paddle_mnist.fit"  # the function that trains any net


class RunFiles:
    """The paths of a run directory, and what they say of it. Nothing here changes the disk.

    path: the directory. name: the model's, after which the final weights are called; by default
        the one that is found in the directory.
    Raises ConfigError for a path whose `~user` does not exist.
    """

    def __init__(self, path: Union[str, Path], name: Optional[str] = None):
        try:
            self.path = Path(path).expanduser()
        except RuntimeError as error:  # ~nobody
            raise ConfigError(f"output is {path}; {error}; expected a folder") from error
        self.config = self.path / "config.yaml"
        self.metrics = self.path / "metrics.jsonl"
        self.result = self.path / "result.json"
        self.log = self.path / "train.log"
        self.visualdl = self.path / "vdl"
        self.figures = self.path / "figures"
        self.profile = self.path / "profile"
        self.checkpoints = CheckpointStore(self.path / "checkpoints")
        self._name = name

    @property
    def name(self) -> str:
        """The name of the model, with which the names of its checkpoints begin."""
        return self._name or self._recorded_name()

    @property
    def weights(self) -> Path:
        """The file of the final weights, `{name}.pdparams`."""
        return self.path / f"{self.name}{PARAMS}"

    def _recorded_name(self) -> str:
        """Return the name of the model that was trained here, from its weights and checkpoints."""
        names = sorted(
            path.stem
            for path in self.path.glob(f"*{PARAMS}")
            if not path.with_suffix(".json").exists()  # a checkpoint's
        )
        checkpoints = [path.stem for path in self.checkpoints.folder.glob("*_epoch*.json")]
        for name in names:
            if any(stem.startswith(f"{name}_epoch") for stem in checkpoints):
                return name
        is_unambiguous = len(names) == 1 or (names and self.config.exists())
        return names[0] if is_unambiguous else "model"

    def read_config(self) -> dict[str, Any]:
        """Return what `config.yaml` holds, whatever trained the run; {} if there is none.

        Raises ConfigError if it is damaged.
        """
        return read_yaml(self.config) if self.config.exists() else {}

    @property
    def is_of_fit(self) -> bool:
        """Return whether `fit` trained a net of the caller's, which only its function builds."""
        return self.read_config().get(TRAINED_WITH) == FIT

    def final_checkpoint(self) -> Optional[str]:
        """Return the name of the checkpoint with which the run ended; None if it is unfinished.

        A training that continues a finished run deletes its result first.
        """
        result = self.read_result("checkpoint", ", so the run counts as unfinished")
        return str(result["checkpoint"]) if result else None

    def read_result(self, needed: str, consequence: str) -> Optional[dict[str, Any]]:
        """Return what `result.json` holds; None if it is not there, or damaged, which is logged.

        needed: an entry that it must have. consequence: of damage, the end of the warning.
        """
        if not self.result.exists():
            return None
        try:
            result: dict[str, Any] = json.loads(self.result.read_text(encoding="utf-8"))
            result[needed]
            return result
        except (ValueError, TypeError, KeyError) as error:
            log.warning("%s is damaged (%r)%s", self.result, error, consequence)
            return None
