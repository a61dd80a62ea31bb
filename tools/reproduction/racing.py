"""A race of recipes: rows of options, several seeds each, on the valid split alone.

Successive halving (Jamieson & Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter
Optimization", 2016): every row runs a first round of short trainings, and the best go on to the
next, longer one. In a round all rows have the same seeds, and are compared seed by seed. No round
has the seeds of another, so that the luck that brought a row there does not count again.
"""

import itertools
import json
import statistics
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Optional

from paddle_mnist.mnist.arrays import Data
from paddle_mnist.system.files import write_atomically
from reproduction.claims import Claim, Report, Scale, Verdict, Workspace
from reproduction.comparison import QUICK, Row
from reproduction.halving import compare, is_complete, ranking, survivors
from reproduction.texts import Text, fill, paragraphs, table
from reproduction.trainings import Results, Training, digest, train_missing

QUIET = {"final_split": "valid", "eval_every_epochs": 1000}  # the last epoch alone is validated


class RaceTraining(Training):
    """A training that leaves the eval split unscored."""

    def run(
        self, data: Data, output: Path, jobs: int = 1, in_process: bool = False
    ) -> dict[str, Any]:
        """Train, or resume an interrupted training, and return the result."""
        folder, cpu_seconds = self.train(data, output, jobs, in_process, **QUIET)
        result = json.loads((folder / "result.json").read_text("utf-8"))
        kept = ("valid_acc", "valid_loss", "steps", "paddle", "numpy")
        return {**{key: result[key] for key in kept}, "cpu_seconds": cpu_seconds}


class CandidateTraining(RaceTraining):
    """A training with `tools/train_candidate.py`, whose option `candidate` is among its options."""

    tool = "train_candidate.py"

    @property
    def _plain(self) -> RaceTraining:
        """The same training without the candidate's change."""
        options = tuple(one for one in self.options if one[0] != "candidate")
        return RaceTraining(self.recipe, self.seed, options)

    @property
    def fingerprint(self) -> list[float]:
        """That of the plain training: no probe sees what the candidate changes."""
        return self._plain.fingerprint

    @property
    def images(self) -> int:
        return self._plain.images

    def settings(self, data: Data) -> str:
        return digest(dict(self.options)["candidate"], self._plain.settings(data))

    def train(
        self, data: Data, output: Path, jobs: int, in_process: bool, **further: Any
    ) -> tuple[Path, Optional[float]]:
        if dict(self.options)["candidate"] == "distilled":
            further["teachers"] = ",".join(map(str, sorted(_teachers(output).glob("*.pdparams"))))
        return super().train(data, output, jobs, in_process, **further)


def _teachers(output: Path) -> Path:
    return output / "teachers"


@dataclass(frozen=True)
class Round:
    """One round of the race. kept: how many rows go on from it, and BASE beside them."""

    epochs: int
    seeds: Sequence[int]
    kept: int

    def trainings(self, row: Row, scale: Scale) -> list[Training]:
        """Return the trainings of a row, one a seed."""
        longer = replace(row, options={**row.options, "epochs": self.epochs})
        return [longer.training(seed, scale) for seed in self.seeds]


@dataclass(frozen=True)
class Race(Claim):
    """The rounds, and the rows that start in the first of them, by the names the page gives them.

    Its results are in a file of their own, `<id>.json`.
    teacher, teachers: a row, and its trainings that the candidate `distilled` learns from.
    """

    rows: Mapping[str, Row]
    rounds: Sequence[Round]
    teacher: str
    teachers: Round

    @property
    def settings(self) -> dict[str, int]:
        """What the method's text says of the rounds."""
        first, last = self.rounds[0], self.rounds[-1]
        return {
            "first": first.epochs,
            "last": last.epochs,
            "kept": first.kept,
            "first_seeds": len(first.seeds),
            "last_seeds": len(last.seeds),
        }

    def measure_missing(self, workspace: Workspace) -> None:
        """Run the race, or what is left of it, round by round."""
        self._train_teachers(workspace)
        for number, one in enumerate(self.rounds):
            names = self._starters(workspace, number)
            trainings = [
                training
                for name in names
                for training in one.trainings(self.rows[name], workspace.scale)
            ]
            train_missing(
                sorted(trainings, key=lambda training: training.seed),
                self._results(workspace),
                workspace.data,
                workspace.output / self.id,
                workspace.jobs,
                workspace.is_in_process,
            )

    def _train_teachers(self, workspace: Workspace) -> None:
        """Put the teachers' weights where the trainings look for them."""
        if not any(dict(row.options).get("candidate") == "distilled" for row in self.rows.values()):
            return
        output = workspace.output / self.id

        def train(training: RaceTraining) -> None:
            weights = _teachers(output) / f"{training.seed}.pdparams"
            if not weights.exists():
                folder, _ = training.train(
                    workspace.data, output, 2, workspace.is_in_process, **QUIET
                )
                write_atomically(weights, (folder / "mnist.pdparams").read_bytes())

        _teachers(output).mkdir(parents=True, exist_ok=True)
        trainings = self.teachers.trainings(self.rows[self.teacher], workspace.scale)
        for training in trainings:
            training.fingerprint  # noqa: B018 - before the threads: Paddle has one seed for all
        with ThreadPoolExecutor(workspace.jobs) as pool:
            # Signals are handled in the main thread only.
            list((map if workspace.is_in_process else pool.map)(train, trainings))

    def _results(self, workspace: Workspace) -> Results:
        return Results(workspace.folder / f"{self.id}.json")

    def _starters(self, workspace: Workspace, number: int) -> list[str]:
        """Return the rows of a round. The rounds before it must be complete."""
        if number == 0:
            return list(self.rows)
        before = self.report(workspace, {})["rounds"][number - 1]
        return survivors(before, self.rounds[number - 1].kept)

    def report(self, workspace: Workspace, seconds: Mapping[str, float]) -> dict[str, Any]:
        """Return each round's epochs, seeds and rows, up to the first that is not complete.

        done: how many trainings of the round. A row is empty until all of its trainings are.
        """
        results, rounds, names = self._results(workspace), [], list(self.rows)
        for one in self.rounds:
            found = {
                name: [
                    results.get(training, workspace.data)
                    for training in one.trainings(self.rows[name], workspace.scale)
                ]
                for name in names
            }
            rounds.append(
                {
                    "epochs": one.epochs,
                    "seeds": list(one.seeds),
                    "done": sum(map(bool, itertools.chain(*found.values()))),
                    "rows": {name: self._row(row, workspace) for name, row in found.items()},
                }
            )
            if not is_complete(rounds[-1]):
                break
            names = survivors(rounds[-1], one.kept)
        return {"rounds": rounds} if rounds[0]["done"] else {}

    def _row(self, found: Sequence[Report], workspace: Workspace) -> dict[str, Any]:
        if not all(found):
            return {}
        limit = QUICK["eval_limit"] if workspace.scale.quick else None
        images = limit or len(workspace.data["valid"])
        return {
            "errors": [round((1 - result["valid_acc"]) * images) for result in found],
            "losses": [result["valid_loss"] for result in found],
            "seconds": [result["cpu_seconds"] for result in found],
        }

    def is_complete(self, report: Report) -> bool:
        rounds = report.get("rounds", [])
        return len(rounds) == len(self.rounds) and is_complete(rounds[-1])

    def judge(self, report: Report) -> Verdict:
        if self.is_complete(report):
            return super().judge(report)
        return Verdict(self.progress(report), details=[fill(self.id, "pending")])

    def progress(self, report: Report) -> Text:
        rounds = self._begun_rounds(report)
        last = rounds[-1]
        return fill(
            self.id,
            "progress",
            number=len(rounds),
            count=len(self.rounds),
            done=last["done"],
            total=len(last["rows"]) * len(last["seeds"]),
        )

    def _begun_rounds(self, report: Report) -> Sequence[Mapping[str, Any]]:
        """Return the rounds of a report; the first, without results, if it has none."""
        first = self.rounds[0]
        empty = {"epochs": first.epochs, "seeds": first.seeds, "done": 0}
        return report.get("rounds") or [{**empty, "rows": {name: {} for name in self.rows}}]

    def table(self, report: Report) -> Text:
        return paragraphs(*map(self._table, self._begun_rounds(report)))

    def _table(self, one: Mapping[str, Any]) -> Text:
        columns = {
            fill(self.id, "round", epochs=one["epochs"], seeds=len(one["seeds"])): "",
            "errors on valid: mean": ".1f",
            "fewer than affine alone": "",
            "p of the errors": ".2g",
            "valid loss": ".4f",
            "lower than affine alone": "",
            "p of the loss": ".2g",
            "CPU seconds: median": ".0f",
        }
        judged = compare(one) if is_complete(one) else {}
        lines = []
        for name in ranking(one, "errors", "losses"):
            row, title = one["rows"][name], self.rows[name].title
            if not row:
                lines.append((title, "not measured yet"))
                continue
            errors, losses = judged.get(name, ({}, {}))
            lines.append(
                (
                    title,
                    statistics.mean(row["errors"]),
                    fill(self.id, "errors_gap", **errors) if errors else None,
                    errors.get("p"),
                    statistics.mean(row["losses"]),
                    fill(self.id, "loss_gap", **losses) if losses else None,
                    losses.get("p"),
                    _median([seconds for seconds in row["seconds"] if seconds]),
                )
            )
        return table(columns, lines)


def _median(values: Sequence[float]) -> Optional[float]:
    return statistics.median(values) if values else None
