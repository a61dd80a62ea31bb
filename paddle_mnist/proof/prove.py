"""`prove`: whether a program that calls `fit` ends with the same bits after it was killed."""

import os
import random
import shlex
import shutil
import signal as signals
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional, Union

from tqdm import tqdm

from paddle_mnist.errors import ConfigError, listed
from paddle_mnist.proof.compare import (
    differing_files,
    differing_objects,
    first_difference,
    new_warnings,
)
from paddle_mnist.proof.program import Event, Program, Start
from paddle_mnist.system.environment import require_posix_processes
from paddle_mnist.system.scratch import PLAN, RUNS, Plan

UNBROKEN, KILLED, AGAIN = "unbroken", "killed", "unbroken again"  # the attempts
SUFFIXES = (".pdparams", ".pdopt", ".json")  # of the files of a checkpoint, in this order
SAVES = 30  # about so many checkpoints in a killed run
Moment = tuple[str, str, int, Union[int, str]]  # see `Plan.stop`


@dataclass(frozen=True)
class Proof:
    """What `prove` has found.

    same_bits: whether the killed run ended as the unbroken one. is_deterministic: whether two
    unbroken runs agree; True where one was enough. tried, differences: lines that say what was
    done, and what differs.
    """

    same_bits: bool
    is_deterministic: bool
    tried: Sequence[str]
    differences: Sequence[str] = ()

    def __str__(self) -> str:
        return "\n".join([*self.differences, *self.tried])


def prove(
    command: Sequence[str],
    *,
    kills: int = 3,
    signal: str = "KILL",
    steps: Optional[int] = None,
    epochs: Optional[int] = None,
    seed: int = 0,
    minutes: float = 2.0,
    keep: bool = False,
) -> Proof:
    """Run a program that calls `fit` unbroken, then kill and repeat it, and compare the results.

    command: a program and its arguments, such as `["python", "my.py"]`. Its runs are written to a
        scratch folder; whatever else it does happens once for each start.
    kills: how often it is killed: inside a step, an evaluation, a save, and at an epoch's end.
    signal: the signal, such as "TERM". seed: of the moments.
    steps, epochs: after how many each run ends; by default, as many as fit into `minutes`.
    keep: keep the scratch folder, whose path the result has.

    Raises ConfigError for a program that cannot be tried.
    """
    require_posix_processes("prove starts processes", "Linux or macOS")
    signum = getattr(signals, f"SIG{signal.upper().removeprefix('SIG')}", None)
    if signum is None or min(kills, minutes, steps or 1, epochs or 1) <= 0:
        raise ConfigError(
            f"signal is {signal!r}, kills {kills}, minutes {minutes}, steps {steps}, epochs "
            f"{epochs}; expected a signal such as KILL or TERM, and numbers above 0"
        )
    folder = Path(tempfile.mkdtemp(prefix="paddle_mnist_prove_")).resolve()
    limits: Plan = {"steps": steps, "epochs": epochs}
    try:
        with tqdm(desc=UNBROKEN, unit="step", disable=None, leave=False) as bar:
            return _Prover(Program(command, folder, signum), minutes * 60, limits, bar).run(
                kills, random.Random(seed)
            )
    finally:
        if keep:
            (folder / PLAN).unlink(missing_ok=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)


class _Prover:
    """The attempts at one program. seconds: the limit. limits: `steps` and `epochs`."""

    def __init__(self, program: Program, seconds: float, limits: Plan, bar: "tqdm[Any]"):
        self.program, self.seconds, self.limits, self.bar = program, seconds, limits, bar
        self.command = shlex.join(program.command)
        self.most = seconds  # of a start
        program.on_step = bar.update

    def run(self, kills: int, source: random.Random) -> Proof:
        unbroken = self.unbroken()
        moments = _moments(unbroken, kills, source)
        steps = [event for event in unbroken if event["event"] == "step"]
        every = max(1, len(steps) // SAVES) if _saves_inside_epochs(unbroken) else None
        events, done, failure = self.killed(moments, every)
        one, other = (self.program.folder / attempt / RUNS for attempt in (UNBROKEN, KILLED))
        starts = [event for event in events if event["event"] == "start"]
        if not done or not (failure or any(start["checkpoint"] for start in starts)):
            runs = sorted({start["run"] for start in starts})
            raise ConfigError(
                f"no start of {self.command} has resumed, after {len(done)} kills; its runs were "
                f"written to {listed(runs)}; expected the same output at each start, and more steps"
            )
        repeated = sum(event["event"] == "step" for event in events) - len(steps)
        tried = [
            f"{len(done)} of {kills} times ended by {signals.Signals(self.program.signum).name}: "
            f"{', '.join(done)}",
            f"{max(0, repeated)} steps were repeated; {_coverage(unbroken)}",
            f"{self.command}; scratch folder {self.program.folder}",
        ]
        differences = failure or differing_files(one, other)
        if not differences:
            return Proof(True, True, ["the same bits", *tried])
        again = self.again(events)
        if first := first_difference(unbroken, again):
            words = "the program is not deterministic, so nothing can be proved: a second unbroken "
            return Proof(False, False, tried, [f"{words}run differs: {first}", *differences[:3]])
        lines = [
            "DIFFERENT: " + (first_difference(unbroken, events) or "no recorded step differs"),
            *differences[:5],
        ]
        objects = differing_objects(again, events)
        if objects:
            lines.append(f"objects that were not restored: {listed(objects, 5)}")
        lines += [f"warned: {line:.300}" for line in new_warnings(one, other)[:3]]
        return Proof(False, True, tried, lines)

    def unbroken(self) -> list[Event]:
        """Run the program without a kill, and return what it recorded.

        A program that takes too long is started again with a limit on its steps or epochs.
        """
        is_limited = any(self.limits.values())
        share = self.seconds if is_limited else self.seconds / 4

        def is_late(seconds: float, events: Sequence[Event]) -> bool:
            has_steps = any(event["event"] == "step" and event["step"] > 1 for event in events)
            return seconds > self.seconds or (seconds > share and has_steps)

        start = self.program.start({"attempt": UNBROKEN, **self.limits}, is_late)
        if start.code is None and not is_limited:
            self.limits = self._reached(start)
            shutil.rmtree(self.program.folder / UNBROKEN)
            self.bar.reset()
            start = self.program.start(
                {"attempt": UNBROKEN, **self.limits}, lambda seconds, _: seconds > self.seconds
            )
        self._require_good(start)
        self.most = self.seconds + 60
        return start.events

    def _reached(self, start: Start) -> Plan:
        """Return the limit to which a start has come that took too long."""
        steps = [event for event in start.events if event["event"] == "step"]
        epochs = max([event["epoch"] for event in start.events if event["event"] == "epoch"] or [0])
        if epochs > 1 or (epochs and not _saves_inside_epochs(start.events)):
            return {"epochs": epochs}
        if len(steps) > 1 and _saves_inside_epochs(start.events):
            return {"steps": max(event["step"] for event in steps)}
        raise ConfigError(
            f"{self.command} has not come to a second step, or with data that resume only there, "
            f"to the end of an epoch, within {self.seconds:g} s; raise minutes"
        )

    def _require_good(self, start: Start) -> None:
        limits = ", ".join(f"{name} {value}" for name, value in self.limits.items() if value)
        if start.code is None:
            raise ConfigError(
                f"{self.command} does not end within {self.seconds:g} s ({limits or 'no limit'}); "
                "raise minutes, or give fewer steps or epochs"
            )
        if start.code:
            raise ConfigError(
                f"{self.command} ends with exit code {start.code} before anything is killed: "
                f"{start.last_line}; expected a program that ends well by itself"
                + (f", also after {limits}" if limits else "")
            )
        if not any(event["event"] == "step" for event in start.events):
            raise ConfigError(
                f"{self.command} ends without a step of paddle_mnist.fit; expected a program that "
                "calls fit"
            )

    def killed(
        self, moments: Sequence[Moment], every: Optional[int]
    ) -> tuple[list[Event], list[str], list[str]]:
        """Run the program with a kill at each moment, until it ends.

        Returns what it recorded, where it was killed, and why it could not be resumed, if so.
        """
        events, done = list[Event](), list[str]()
        for moment in [*moments, None]:
            self.bar.set_description(f"killed {len(done)} times")
            plan: Plan = {"attempt": KILLED, **self.limits, "save_every": every, "stop": moment}
            start = self.program.start(plan, lambda seconds, _: seconds > self.most)
            events += start.events
            reached = [event for event in start.events if event["event"] == "moment"]
            if reached:
                done.append(_described(reached[-1]))
            elif start.code == 0:
                break
            else:
                how = f"exit code {start.code}" if start.code else f"no end in {self.most:g} s"
                return (
                    events,
                    done,
                    [
                        f"after {len(done)} kills it cannot be resumed: {how}: {start.last_line}",
                        "if that is a port or a lock of the program, it must be free after a kill",
                    ],
                )
        return events, done, []

    def again(self, events: Sequence[Event]) -> list[Event]:
        """Run the program unbroken once more, and describe its objects where others resumed."""
        self.bar.set_description(AGAIN)
        places = [(e["run"], e["step"], e["epoch"]) for e in events if e["event"] == "objects"]
        plan: Plan = {"attempt": AGAIN, **self.limits, "objects": places}
        return self.program.start(plan, lambda seconds, _: seconds > self.most).events


def _saves_inside_epochs(events: Sequence[Event]) -> bool:
    return all(event["inside"] for event in events if event["event"] == "start")


def _moments(events: Sequence[Event], kills: int, source: random.Random) -> list[Moment]:
    """Choose moments of all kinds, spread over an unbroken run, one of them in a second epoch."""
    steps = [event for event in events if event["event"] == "step"]
    kinds = ["step", "evaluation", "epoch"] + ["save"] * _saves_inside_epochs(events)
    source.shuffle(kinds)
    chosen = list[Moment]()
    for number in range(kills):
        part = steps[len(steps) * number // kills : len(steps) * (number + 1) // kills]
        second = [event for event in part if event["epoch"] == 1]
        part = (second or part)[:-1] or part
        if not part:
            continue
        kind = kinds[number % len(kinds)]
        inside = {(event["run"], event["step"]) for event in part}
        found = [e for e in events if e["event"] == kind and (e["run"], e["step"]) in inside]
        if kind == "save":
            found = part
        elif not found:
            kind, found = "step", part
        at = source.choice(found)
        detail = source.choice(SUFFIXES) if kind == "save" else at.get("part", 0)
        chosen.append((kind, at["run"], at["step"], detail))
    return chosen


def _described(moment: Event) -> str:
    """Return where the program was killed."""
    words = {
        "step": "inside step {step}",
        "evaluation": "inside the evaluation after step {step}",
        "epoch": "at the epoch's end after step {step}",
        "save": "inside the save after step {step}",
    }
    return words[moment["kind"]].format(**moment) + f", epoch {moment['epoch'] + 1}"


def _coverage(events: Sequence[Event]) -> str:
    """Return how much of the runs was tried."""
    texts = []
    for run in dict.fromkeys(event["run"] for event in events):
        own = [event for event in events if event["run"] == run]
        start = next(event for event in own if event["event"] == "start")
        steps = sum(event["event"] == "step" for event in own)
        epochs = sum(event["event"] == "epoch" for event in own)
        total = start["epochs"] * start["epoch_steps"] if start["epoch_steps"] else None
        if epochs == start["epochs"]:
            text = f"all {epochs} epochs"
        else:
            text = (
                f"the first {steps} of {total or 'all'} steps, {epochs} of {start['epochs']} epochs"
            )
        texts.append(f"covered: {text} of {os.path.relpath(run)}")
    return "; ".join(texts)
