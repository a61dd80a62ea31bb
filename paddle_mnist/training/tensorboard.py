"""A callback that writes metrics for TensorBoard, as one curve even if a run was interrupted."""

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping
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

    Each split has a folder, so that they share charts: "valid/loss" is "loss" in `valid/`. When a
    run resumes, a new file hides the points of older files from the checkpoint on.

    folder: by default `tensorboard` in the run directory.
    """

    def __init__(self, folder: Union[str, Path, None] = None):
        self.folder = folder
        # By split. Not SummaryWriter, which writes from a thread: a kill would lose points.
        self._files: dict[str, Any] = {}

    def check_training(self, training: Training) -> None:
        try:
            import tensorboardX  # noqa: F401
        except ImportError as error:
            raise ConfigError(
                f"TensorBoard needs tensorboardX ({error}); pip install tensorboardX"
            ) from error

    def before_first_step(self, training: Training) -> None:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import SessionLog

        if not training.world.is_main_process:
            return
        folder, step = Path(self.folder or training.run.path / "tensorboard"), training.state.step
        continued = set()
        with self._switched_off_by_errors(folder):
            for split in ("train", *training.evaluator.datasets):
                make_folder(folder / split)
                older = matching(folder / split, "events.out.tfevents.*")
                continued |= {split} if older else set()
                # The names begin with the time in seconds.
                file = EventsWriter(str(folder / split / "events"), f".{len(older):04}")
                self._files[split] = file
                self._write(split, step=step, session_log=SessionLog(status=SessionLog.START))
            # The history ends where the run resumes; older files have the points before.
            for _, row in read_jsonl(training.run.metrics):
                if row and row["value"] is not None:
                    split, name = chart_of(row["tag"], self._files)
                    if row["step"] == step or split not in continued:
                        self._add(split, name, row["value"], row["step"], row.get("time"))

    def write(self, state: TrainState, values: Mapping[str, float]) -> None:
        if self._files:
            with self._switched_off_by_errors(self.folder or "tensorboard"):
                for tag, value in values.items():
                    self._add(*chart_of(tag, self._files), value, state.step)

    @contextlib.contextmanager
    def _switched_off_by_errors(self, folder: Union[str, Path]) -> Iterator[None]:
        try:
            with writing(Path(folder)):
                yield
        except OutputError as error:
            self.close()
            message = "TensorBoard is off until the next start; training continues: %s"
            log.warning(message, error)

    def _add(
        self, split: str, name: str, value: float, step: int, seconds: Optional[float] = None
    ) -> None:
        from tensorboardX.summary import scalar

        wall_time = time.time() if seconds is None else seconds
        self._write(split, step=step, summary=scalar(name, value), wall_time=wall_time)

    def _write(self, split: str, **fields: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event

        self._files[split].write_event(Event(**fields))
        self._files[split].flush()

    def close(self) -> None:
        self._files = {}
