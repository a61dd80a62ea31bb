"""What `fit` does in a program that `paddle-mnist prove` has started: divert, record, stop."""

import enum
import json
import logging
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional, Union

from paddle_mnist.hidden_state.object_graph import describe_path
from paddle_mnist.hidden_state.object_paths import walk
from paddle_mnist.hidden_state.plain_data import SCALARS, digest_of, is_plain
from paddle_mnist.interfaces import View
from paddle_mnist.system import heartbeat, signals
from paddle_mnist.system.arrays import is_tensor
from paddle_mnist.system.files import Journal
from paddle_mnist.system.scratch import StartPlan, find_plan
from paddle_mnist.training.arguments import FitArguments
from paddle_mnist.training.callbacks import Callback, Training, is_rehearsal

log = logging.getLogger("paddle_mnist")

# Where a program is stopped: inside a step or an evaluation, after an epoch and before its save,
# and inside a save.
STEP, EVALUATION, EPOCH, SAVE = "step", "evaluation", "epoch", "save"
WAIT_SECONDS = 30.0  # for the signal
MOST_ITEMS = 1000  # of a container whose contents are described


def in_scratch(arguments: FitArguments) -> FitArguments:
    """Return the arguments as they are under `prove`; unchanged in any other program."""
    if not (plan := find_plan()):
        return arguments
    loading, run = arguments.loading, os.path.abspath(os.path.expanduser(arguments.output))
    saving = replace(arguments.saving, mirror=None, stop_on_difference=False)
    if every := plan.save_every:
        saving = replace(saving, every_steps=min(every, saving.every_steps or every))
    if steps := plan.steps:
        loading = replace(loading, max_steps=min(steps, loading.max_steps or steps))
    return replace(
        arguments,
        output=str(plan.diverted(arguments.output)),
        fresh=False,  # the next start resumes
        resume="auto" if arguments.resume == "off" else arguments.resume,
        saving=saving,
        loading=loading,
        callbacks=[*arguments.callbacks, Recorder(plan, run)],
    )


class Recorder(Callback):
    """Records each step for `prove`, and waits for its signal at the moment that the plan names.

    run: the path of the run that `fit` was given.
    """

    def __init__(self, plan: StartPlan, run: str):
        self.plan, self.run = plan, run
        self.training: Optional[Training] = None  # while the main process trains
        self.journal: Optional[Journal] = None
        self.evaluated = (0, 0, 0)  # step, epoch and batch of the newest evaluation

    def should_stop(self, view: View) -> bool:
        return view.state.epoch >= (self.plan.epochs or sys.maxsize)

    def run_opened(self, training: Training) -> None:
        log.info("prove: the run %s is written to %s", self.run, training.run.path)
        if training.world.is_main_process:
            self.journal = Journal(self.plan.events)
            heartbeat.listeners.append(self._on_heartbeat)

    def before_first_step(self, training: Training) -> None:
        if self.journal:
            self.training = training
            self._record(
                "start",
                checkpoint=training.resumed_from and training.resumed_from.name,
                inside=training.loader.resumes_inside_epochs,
                epochs=training.arguments.epochs,
                epoch_steps=training.loader.steps_per_epoch,
            )
            if training.resumed_from:
                self._record("objects", values=self._objects())
            if self.plan.stop and self.plan.stop[0] == SAVE:
                sys.addaudithook(self._on_rename)  # a process cannot remove it

    def after_step(self, view: View) -> None:
        if self.training and not is_rehearsal():
            self._record(STEP)
            self._reached(STEP)

    def after_epoch(self, view: View) -> None:
        if self.training and not is_rehearsal():
            self._record(EPOCH)
            self._reached(EPOCH)

    def after_last_step(self, training: Training) -> None:
        self.training = None

    def close(self) -> None:
        self.training = None
        if self.journal:
            heartbeat.listeners.remove(self._on_heartbeat)
            self.journal.close()

    def _on_heartbeat(self) -> None:
        if not self.plan.is_alive():
            os._exit(1)  # nobody waits for the result
        if self.training and not self.training.model.training and not is_rehearsal():
            state, (step, epoch, batch) = self.training.state, self.evaluated
            batch = batch + 1 if (step, epoch) == (state.step, state.epoch) else 1
            self.evaluated = state.step, state.epoch, batch
            self._record(EVALUATION, part=batch)
            self._reached(EVALUATION, batch)

    def _on_rename(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "os.rename" and self.training:
            path, store = Path(os.fsdecode(args[1])), self.training.run.checkpoints
            if path.parent == store.folder:
                self._reached(SAVE, path.suffix)

    def _reached(self, kind: str, part: Union[int, str] = 0) -> None:
        """Describe all objects if the plan asks for it; wait for the signal if it comes here."""
        training, stop = self.training, self.plan.stop
        if not training:
            return
        if (self.run, training.state.step, training.state.epoch) in self.plan.objects:
            self._record("objects", values=self._objects())
        is_here = stop and (kind, self.run, part) == (*stop[:2], stop[3])
        if stop and is_here and training.state.step >= stop[2]:
            self.plan.stop = None
            self._record("stop", kind=kind)
            deadline = time.monotonic() + WAIT_SECONDS
            while not signals.received() and time.monotonic() < deadline:
                time.sleep(0.002)

    def _record(self, event: str, **values: Any) -> None:
        if self.journal and self.training:
            state = self.training.state
            entry = {"event": event, "run": self.run, "step": state.step, "epoch": state.epoch}
            self.journal.append(json.dumps({**entry, **values}) + "\n")

    def _objects(self) -> dict[str, str]:
        """Return the values of all objects on which the training may depend."""
        assert self.training
        extra, values = self.training.extra, dict[str, str]()
        for path, value, is_internal, is_alias in walk(extra.roots, extra.known, MOST_ITEMS):
            # Between epochs, a resumed run has not set the mode of the layers yet.
            is_mode = path[-1] == ("attribute", "training") and self.training.state.position
            if not is_alias and (not is_internal or is_mode or type(value) in (int, float)):
                values[describe_path(path)] = _described(value)
        return values


def _described(value: Any) -> str:
    """Return a text that is the same in two processes only if the values are equal."""
    if isinstance(value, (*SCALARS, enum.Enum)):
        return f"{value!r:.80}"
    kind = getattr(value, "__qualname__", type(value).__name__)
    if is_tensor(value):
        kind += f" with stop_gradient={value.stop_gradient}"
    return f"{kind} {digest_of(value)[:8]}" if is_plain(value) else kind
