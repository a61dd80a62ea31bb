"""A callback that writes metrics for TensorBoard, as one curve however often a run was stopped."""

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional, Union

from paddle_mnist.errors import ConfigError, OutputError
from paddle_mnist.metrics.writers import chart_of, read_jsonl
from paddle_mnist.system.files import make_folder, matching, writing
from paddle_mnist.train_state import TrainState
from paddle_mnist.training.callbacks import Callback, Training

log = logging.getLogger("paddle_mnist")


class TensorBoard(Callback):
    """Writes the metrics for TensorBoard; needs the extra `tensorboard`.

    Each split has a folder, so that they share charts: "valid/loss" is "loss" in `valid/`. Where a
    run resumes, a new file hides the points of the older ones from the checkpoint on.

    folder: by default `tensorboard` in the run directory.
    """

    def __init__(self, folder: Union[str, Path, None] = None):
        self.folder = folder
        self._files: dict[str, _EventFile] = {}  # by split

    def check_training(self, training: Training) -> None:
        try:
            import tensorboardX  # noqa: F401
        except ImportError as error:
            raise ConfigError(
                f"TensorBoard needs tensorboardX ({error}); pip install tensorboardX"
            ) from error

    def before_first_step(self, training: Training) -> None:
        if not training.world.is_main_process:
            return
        folder, step = Path(self.folder or training.run.path / "tensorboard"), training.state.step
        try:
            for split in ("train", *training.evaluator.datasets):
                self._files[split] = _EventFile(folder / split, step)
        except OutputError as error:
            self._switch_off(error)
        # The history ends where the run resumes; older files have what comes before that step.
        for _, row in read_jsonl(training.run.metrics):
            if row and row["value"] is not None:
                values = {row["tag"]: row["value"]}
                self._write(values, row["step"], row.get("time"), repeats=row["step"] < step)

    def write(self, state: TrainState, values: Mapping[str, float]) -> None:
        self._write(values, state.step)

    def _write(
        self,
        values: Mapping[str, float],
        step: int,
        seconds: Optional[float] = None,
        repeats: bool = False,
    ) -> None:
        """Write values by tag. repeats: only if there are no older files, which have them."""
        for tag, value in values.items() if self._files else ():
            split, name = chart_of(tag, self._files)
            try:
                if not (repeats and self._files[split].follows_others):
                    self._files[split].add(name, value, step, seconds)
            except OutputError as error:
                self._switch_off(error)
                return

    def _switch_off(self, error: OutputError) -> None:
        self.close()
        log.warning("TensorBoard is off until the next start; training continues: %s", error)

    def close(self) -> None:
        self._files = {}


class _EventFile:
    """A new file in a folder, which hides the events of older files there from a step on.

    follows_others: (attribute) whether there are any.
    """

    def __init__(self, folder: Path, step: int):
        # Not its SummaryWriter, which writes from a thread: a run that is killed would lose points.
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import SessionLog

        make_folder(folder)
        older = matching(folder, "events.out.tfevents.*")
        self.folder, self.follows_others = folder, bool(older)
        with writing(folder):  # names begin with the second
            self._file = EventsWriter(str(folder / "events"), f".{len(older):04}")
        self._write(step=step, session_log=SessionLog(status=SessionLog.START))

    def add(self, name: str, value: float, step: int, seconds: Optional[float]) -> None:
        """Write a scalar. seconds: when it was measured, since 1970. Raises OutputError."""
        from tensorboardX.summary import scalar

        self._write(step=step, summary=scalar(name, value), wall_time=seconds or time.time())

    def _write(self, **fields: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event

        with writing(self.folder):
            self._file.write_event(Event(**fields))
            self._file.flush()
