"""`prove`: whether a program that calls `fit` ends with the same bits after it was killed."""

import contextlib
import glob
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
from paddle_mnist.proof.compare import differing_files, differing_objects, first_difference
from paddle_mnist.proof.program import Event, Program, Start
from paddle_mnist.system.environment import require_posix_processes
from paddle_mnist.system.scratch import PLAN, StartPlan, prefix, read_plan

SUFFIXES = (".pdparams", ".pdopt", ".json")  # of the files of a checkpoint
SAVES = 30  # about so many checkpoints in a killed run
WORDS = {
    "step": "inside step {step}",
    "evaluation": "inside the evaluation after step {step}",
    "epoch": "at the epoch's end after step {step}",
    "save": "inside the save after step {step}",
}


@dataclass(frozen=True)
class Proof:
    """What `prove` has found.

    same_bits: whether the killed program ended as the unbroken one. is_deterministic: whether two
    unbroken ones agree; True where none had to be repeated. lines: what was tried, and what
    differs; `str(proof)` joins them.
    """

    same_bits: bool
    is_deterministic: bool
    lines: Sequence[str]

    def __str__(self) -> str:
        return "\n".join(self.lines)


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
    kills: how often it is killed: inside a step, an evaluation or a save, or at an epoch's end.
    signal: the signal, such as "TERM". seed: of the moments.
    steps, epochs: after how many each run ends; by default, as many as fit into `minutes`.
    keep: keep the scratch folder, which the last of `Proof.lines` names.

    Raises ConfigError for a program that cannot be tried.
    """
    require_posix_processes("prove starts processes", "Linux or macOS")
    signum = getattr(signals, f"SIG{signal.upper().removeprefix('SIG')}", None)
    if signum is None:
        raise ConfigError(f"signal is {signal!r}; expected one such as KILL or TERM")
    numbers = {"kills": kills, "minutes": minutes, "steps": steps, "epochs": epochs}
    for name, number in numbers.items():
        if number is not None and not number > 0:
            raise ConfigError(f"{name} is {number}; expected a number above 0")
    _remove_leftovers()
    folder = Path(tempfile.mkdtemp(prefix=prefix())).resolve()
    try:
        with tqdm(desc="unbroken", unit="step", disable=None, leave=False) as bar:
            program = Program([*command], folder, signum, bar.update)
            prover = _Prover(program, bar, 60 * minutes, {"steps": steps, "epochs": epochs})
            return prover.prove(kills, random.Random(seed))
    finally:
        (folder / PLAN).unlink(missing_ok=True)
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def _remove_leftovers() -> None:
    """Remove the scratch folders that killed runs of `prove` have left."""
    for path in Path(tempfile.gettempdir()).glob(f"{glob.escape(prefix())}*/{PLAN}"):
        with contextlib.suppress(OSError, ValueError):  # another user's, or removed meanwhile
            if not read_plan(path.parent).is_alive():
                shutil.rmtree(path.parent, ignore_errors=True)


class _Prover:
    """Tries one program. seconds: the limit of a start. limits: of each run, by name."""

    def __init__(self, program: Program, bar: "tqdm[Any]", seconds: float, limits: dict[str, Any]):
        self.program, self.bar, self.seconds, self.limits = program, bar, seconds, limits
        self.command = shlex.join(program.command)

    def plan(self, attempt: str, **values: Any) -> StartPlan:
        return StartPlan(os.getpid(), str(self.program.folder / attempt), **self.limits, **values)

    def is_late(self, seconds: float, events: Sequence[Event] = ()) -> bool:
        return seconds > self.seconds

    def prove(self, kills: int, source: random.Random) -> Proof:
        unbroken = self.run_unbroken()
        killed, stops, failure = self.run_killed(unbroken, kills, source)
        starts = _all(killed, "start")
        if not failure and not any(start["checkpoint"] for start in starts):
            raise ConfigError(
                f"{self.command}: no start resumed after {len(stops)} kills; its runs were "
                f"{listed(sorted({start['run'] for start in starts}))}; expected the same output "
                "at each start, and several steps"
            )
        repeated = max(0, len(_all(killed, "step")) - len(_all(unbroken, "step")))
        tried = [
            f"ended {len(stops)} times: {'; '.join(stops)}; {repeated} steps were repeated",
            _coverage(unbroken, any(self.limits.values())),
            f"{self.command}, in {self.program.folder}",
        ]
        one, other = (self.plan(attempt).runs for attempt in ("unbroken", "killed"))
        differing = [failure] if failure else differing_files(one, other, "killed")
        if not differing:
            return Proof(True, True, ["the same bits", *tried])
        again = self.run_again(killed)
        runs_again = self.plan("again").runs
        own = first_difference(one, runs_again, again)
        if not own and not failure:  # a program that does not resume may not start at all now
            own = next(iter(differing_files(one, runs_again, "again")), None)
        if own:
            why = "not deterministic: a second unbroken run differs, so nothing can be proved"
            return Proof(False, False, [why, own, *tried])
        first = first_difference(one, other, killed) or "no step that was recorded"
        lines = ["DIFFERENT", f"the first to differ: {first}", *differing[:5]]
        if len(differing) > 5:
            lines.append(f"and {len(differing) - 5} more differences in files")
        if objects := differing_objects(again, killed):
            lines.append(f"not restored, it seems: {listed(objects, 5)}")
        return Proof(False, True, [*lines, *tried])

    def run_unbroken(self) -> list[Event]:
        """Run the program, with a limit on its steps or epochs if it takes too long without."""
        is_limited = any(self.limits.values())

        def takes_long(seconds: float, events: Sequence[Event]) -> bool:
            has_trained = not is_limited and len(_all(events, "step")) > 1
            return seconds > (self.seconds / 4 if has_trained else self.seconds)

        start = self.program.start(self.plan("unbroken"), takes_long)
        if start.code is None and not is_limited:
            self.limits = self._limits_reached(start)
            shutil.rmtree(self.plan("unbroken").attempt)
            self.bar.reset()
            start = self.program.start(self.plan("unbroken"), self.is_late)
        limits = [f"{name} {value}" for name, value in self.limits.items() if value]
        if start.code != 0:
            how = self._describe_end(start)
            if start.code is None:
                how += "; raise minutes, or set steps or epochs"
            limited = f" with {listed(limits)}" if limits else ""
            raise ConfigError(f"{self.command}{limited}, before anything is killed: {how}")
        if not _all(start.events, "step"):
            raise ConfigError(
                f"{self.command} ends without a step of fit; expected a program that calls fit"
            )
        self.seconds += 60  # a start that resumes has to repeat steps
        return start.events

    def _describe_end(self, start: Start) -> str:
        """Return how a start failed."""
        if start.code is None:
            return f"no end within {self.seconds:g} s"
        return f"exit code {start.code}: {self.program.last_line()}"

    def _limits_reached(self, start: Start) -> dict[str, Any]:
        """Return how far a start that takes too long has come, as limits for the next ones."""
        epochs = max((event["epoch"] for event in _all(start.events, "epoch")), default=0)
        steps = max((event["step"] for event in _all(start.events, "step")), default=0)
        if epochs > 1 or (epochs and not _resumes_inside_epochs(start.events)):
            return {"epochs": epochs}
        if steps > 1 and _resumes_inside_epochs(start.events):
            return {"steps": steps}
        raise ConfigError(
            f"{self.command}: no second step after {self.seconds:g} s, or no whole epoch, if its "
            "data resume only between epochs; raise minutes"
        )

    def run_killed(
        self, unbroken: Sequence[Event], kills: int, source: random.Random
    ) -> tuple[list[Event], list[str], Optional[str]]:
        """Run the program, end it at each chosen moment, and run it again until it has finished.

        Returns what it recorded, where it was ended, and why it cannot be resumed, if so.
        """
        events, stops = list[Event](), list[str]()
        steps = len(_all(unbroken, "step"))
        every = max(1, steps // SAVES) if _resumes_inside_epochs(unbroken) else None
        for stop in [*_stops(unbroken, kills, source), None]:
            self.bar.set_description(f"killed {len(stops)} times")
            plan = self.plan("killed", save_every=every, stop=stop)
            start = self.program.start(plan, self.is_late)
            events += start.events
            if reached := _all(start.events, "stop"):
                stops.append(WORDS[reached[0]["kind"]].format(**reached[0]))
            elif start.code == 0:
                break
            else:
                how = self._describe_end(start)
                failure = f"after kill {len(stops)} it does not resume: {how}"
                return events, stops, f"{failure} (a port or lock of its own must be free by then)"
        return events, stops, None

    def run_again(self, killed: Sequence[Event]) -> list[Event]:
        """Run the program unbroken again; describe its objects at the steps of the resumes."""
        self.bar.set_description("unbroken again")
        objects = [(e["run"], e["step"], e["epoch"]) for e in _all(killed, "objects")]
        return self.program.start(self.plan("again", objects=objects), self.is_late).events


def _all(events: Sequence[Event], kind: str) -> list[Event]:
    return [event for event in events if event["event"] == kind]


def _resumes_inside_epochs(events: Sequence[Event]) -> bool:
    return all(event["inside"] for event in _all(events, "start"))


def _stops(events: Sequence[Event], kills: int, source: random.Random) -> list[Any]:
    """Choose stops of all kinds, spread over a run, one of them in its second epoch."""
    steps = _all(events, "step")
    steps = steps[:-1] or steps  # after the last one, nothing would be repeated
    kinds = ["step", "evaluation", "epoch"] + ["save"] * _resumes_inside_epochs(events)
    source.shuffle(kinds)
    chosen, is_second = list[tuple[str, str, int, Union[int, str]]](), list[bool]()
    for number in range(kills):
        part = steps[len(steps) * number // kills : len(steps) * (number + 1) // kills]
        second = [event for event in part if event["epoch"] == 1]
        if second and not any(is_second):
            part = second
        is_second.append(bool(second))
        inside = [(event["run"], event["step"]) for event in part]
        for kind in [*kinds]:  # the first that occurs in this part
            occurring = _all(events, "step" if kind == "save" else kind)
            if found := [one for one in occurring if (one["run"], one["step"]) in inside]:
                at = source.choice(found)
                detail = source.choice(SUFFIXES) if kind == "save" else at.get("part", 0)
                chosen.append((kind, at["run"], at["step"], detail))
                kinds.remove(kind)  # the others come first next time
                kinds.append(kind)
                break
    return chosen


def _coverage(events: Sequence[Event], is_limited: bool) -> str:
    """Return how much of each run was tried."""
    texts = []
    for start in {start["run"]: start for start in _all(events, "start")}.values():
        own = [event for event in events if event["run"] == start["run"]]
        epochs, steps = len(_all(own, "epoch")), len(_all(own, "step"))
        text = f"all {epochs} epochs, {steps} steps"
        if is_limited:
            done = epochs if epochs else f"{steps} steps"
            text = f"the first {done} of {start['epochs']} epochs"
        texts.append(f"{text} of {os.path.relpath(start['run'])}")
    return f"covered: {'; '.join(texts)}"
