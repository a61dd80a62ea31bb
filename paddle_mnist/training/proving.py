"""What `fit` does in a program that `paddle-mnist prove` has started: divert, record, stop.

`prove` stops a program inside a step, inside an evaluation, after an epoch and before its save,
and inside a save: the process announces that it is there, and waits for the signal.
"""

import enum
import json
import logging
import os
import sys
import time
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional, Union

from paddle_mnist.hidden_state.object_graph import describe_path
from paddle_mnist.hidden_state.object_paths import walk
from paddle_mnist.hidden_state.plain_data import SCALARS, digest_of, is_plain, nbytes
from paddle_mnist.interfaces import View
from paddle_mnist.system import heartbeat, signals
from paddle_mnist.system.arrays import as_array, is_tensor
from paddle_mnist.system.files import Journal
from paddle_mnist.system.scratch import Scratch, scratch
from paddle_mnist.train_state import TrainState
from paddle_mnist.training.arguments import FitArguments
from paddle_mnist.training.callbacks import Callback, Training, is_rehearsal

log = logging.getLogger("paddle_mnist")

STEP, EVALUATION, EPOCH, SAVE = "step", "evaluation", "epoch", "save"
SUFFIXES = (".pdparams", ".pdopt", ".json")  # of the files of a save, each renamed
WAIT_SECONDS = 30.0  # for the signal
MOST_BYTES = 2**20  # of the tensors of which each step records a checksum
MOST_ITEMS = 1000  # of a container whose contents are described


def in_scratch(arguments: FitArguments) -> FitArguments:
    """Return the arguments as they are in a program that `prove` has started; else unchanged.

    The run goes to the scratch folder, where it resumes what an earlier start has left.
    """
    if not (folder := scratch()):
        return arguments
    every, steps = folder.plan.get("save_every"), folder.plan.get("steps")
    saving, loading = replace(arguments.saving, mirror=None), arguments.loading
    if every:
        saving = replace(saving, every_steps=min(every, saving.every_steps or every))
    if steps:
        loading = replace(loading, max_steps=min(steps, loading.max_steps or steps))
    return replace(
        arguments,
        output=str(folder.diverted(arguments.output)),
        fresh=False,
        resume="auto" if arguments.resume == "off" else arguments.resume,
        saving=saving,
        loading=loading,
        callbacks=[*arguments.callbacks, Recorder(folder, os.path.abspath(arguments.output))],
    )


class Recorder(Callback):
    """Records each step and evaluation for `prove`, and waits for its signal at the right moment.

    run: the path of the run that `fit` was given.
    """

    def __init__(self, folder: Scratch, run: str):
        self.folder, self.run = folder, run
        self.training: Optional[Training] = None  # while the main process trains
        self.journal: Optional[Journal] = None
        self.evaluated = (0, 0, 0)  # step, epoch and batch of the newest evaluation

    def should_stop(self, view: View) -> bool:
        return view.state.epoch >= (self.folder.plan.get("epochs") or sys.maxsize)

    def run_opened(self, training: Training) -> None:
        log.info("prove: the run %s is written to %s", self.run, training.run.path)
        if training.world.is_main_process:
            self.journal = Journal(self.folder.events)
            heartbeat.listeners.append(self._on_heartbeat)

    def before_first_step(self, training: Training) -> None:
        if self.journal:
            self.training = training
            checkpoint = training.resumed_from
            self._record(
                "start",
                checkpoint=checkpoint.name if checkpoint else None,
                inside=training.loader.resumes_inside_epochs,
                epochs=training.arguments.epochs,
                epoch_steps=training.loader.steps_per_epoch,
            )
            if checkpoint:
                self._describe_objects()
            if (stop := self.folder.plan.get("stop")) and stop[0] == SAVE:
                sys.addaudithook(self._on_rename)  # which cannot be removed

    def after_step(self, view: View) -> None:
        if self.training and not is_rehearsal():
            self._record(STEP, loss=(view.loss or 0.0).hex(), tensors=self._checksum())
            self._describe_objects(only_planned=True)
            self._reached(STEP)

    def write(self, state: TrainState, values: Any) -> None:
        values = {tag: repr(v) for tag, v in values.items() if not tag.startswith("speed/")}
        if self.training and values:
            self._record("metrics", values=values)

    def after_epoch(self, view: View) -> None:
        if self.training and not is_rehearsal():
            self._record(EPOCH)
            self._describe_objects(only_planned=True)
            self._reached(EPOCH)

    def after_last_step(self, training: Training) -> None:
        self.training = None

    def close(self) -> None:
        self.training = None
        if self.journal:
            heartbeat.listeners.remove(self._on_heartbeat)
            self.journal.close()

    def _on_heartbeat(self) -> None:
        if not self.folder.is_alive():
            os._exit(1)  # nobody waits for the result
        if self.training and not self.training.model.training and not is_rehearsal():
            state, (step, epoch, batch) = self.training.state, self.evaluated
            batch = batch + 1 if (step, epoch) == (state.step, state.epoch) else 1
            self.evaluated = state.step, state.epoch, batch
            self._record(EVALUATION, part=batch)
            self._reached(EVALUATION, batch)

    def _on_rename(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "os.rename" and self.training:
            path = Path(os.fsdecode(args[1]))
            if path.parent.resolve() == self.training.run.checkpoints.folder.resolve():
                self._reached(SAVE, path.suffix)

    def _reached(self, kind: str, part: Union[int, str] = 0) -> None:
        """Wait for the signal of `prove` if this is the moment."""
        stop = self.folder.plan.get("stop")
        if stop and self.training and (kind, self.run, part) == (*stop[:2], stop[3]):
            if self.training.state.step >= stop[2]:
                self.folder.plan["stop"] = None
                self._record("moment", kind=kind, part=part)
                deadline = time.monotonic() + WAIT_SECONDS
                while not signals.received() and time.monotonic() < deadline:
                    time.sleep(0.002)

    def _record(self, event: str, **values: Any) -> None:
        if self.journal and self.training:
            state = self.training.state
            entry = {"event": event, "run": self.run, "step": state.step, "epoch": state.epoch}
            self.journal.append(json.dumps({**entry, **values}) + "\n")

    def _checksum(self) -> int:
        """Return a checksum of the buffers, and of small weights."""
        assert self.training
        tensors = [*self.training.model.state_dict().values()]
        if nbytes(tensors) > MOST_BYTES:
            tensors = [tensor for tensor in tensors if tensor.stop_gradient]
        checksum = 0
        for tensor in tensors:
            checksum = zlib.crc32(as_array(tensor).tobytes(), checksum)
        return checksum

    def _describe_objects(self, only_planned: bool = False) -> None:
        """Record the values of all objects that the training may depend on."""
        assert self.training
        extra, state = self.training.extra, self.training.state
        place = [self.run, state.step, state.epoch]
        if only_planned and place not in map(list, self.folder.plan.get("objects", ())):
            return
        places = walk(extra.roots, extra.known, MOST_ITEMS)
        values = {describe_path(p.path): _described(p.value) for p in places if not p.is_alias}
        self._record("objects", values=values)


def _described(value: Any) -> str:
    """Return a text that two processes have in common only for equal values."""
    if isinstance(value, (*SCALARS, enum.Enum)):
        return f"{value!r:.80}"
    kind = type(value).__name__
    if is_tensor(value):
        kind += f" with stop_gradient={value.stop_gradient}"
    if is_plain(value):
        return f"{kind} {digest_of(value)[:8]}"
    return getattr(value, "__qualname__", kind)
