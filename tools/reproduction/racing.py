"""A race of recipes: rows of options, several seeds each, on the valid split alone.

Successive halving (Jamieson & Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter
Optimization", 2016): every row runs a first round of short trainings, and the best go on to the
next, longer one. In a round all rows have the same seeds, and are compared seed by seed. No round
has the seeds of another, so that the luck that brought a row there does not count again.
"""

import itertools
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Optional

from paddle_mnist.mnist.arrays import Data
from paddle_mnist.system.files import write_atomically
from reproduction.claims import Claim, Report, Verdict
from reproduction.comparison import QUICK, Row
from reproduction.halving import compare, is_complete, ranking, survivors
from reproduction.texts import Text, fill, paragraphs, table
from reproduction.trainings import Training, digest, for_each, train_missing
from reproduction.workspace import Scale, Workspace

QUIET = {"final_split": "valid", "eval_every_epochs": 1000}  # the last epoch alone is validated


class RaceTraining(Training):
    """A training that leaves the eval split unscored."""

    def run(self, workspace: Workspace) -> dict[str, Any]:
        """Train, or resume an interrupted training, and return the result."""
        folder, cpu_seconds = self.train(workspace, **QUIET)
        result = json.loads((folder / "result.json").read_text("utf-8"))
        kept = ("valid_acc", "valid_loss", "steps", "paddle", "numpy")
        return {**{key: result[key] for key in kept}, "cpu_seconds": cpu_seconds}


class CandidateTraining(RaceTraining):
    """A training with `tools/train_candidate.py`, whose option `candidate` is among its options."""

    tool = "train_candidate.py"

    @property
    def _plain(self) -> RaceTraining:
        """The same training without the candidate's change."""
        options = tuple((name, value) for name, value in self.options if name != "candidate")
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

    def train(self, workspace: Workspace, **further: Any) -> tuple[Path, Optional[float]]:
        if dict(self.options)["candidate"] == "distilled":
            teachers = sorted(_teachers(workspace.output).glob("*.pdparams"))
            further["teachers"] = ",".join(map(str, teachers))
        return super().train(workspace, **further)


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

    def _own(self, workspace: Workspace) -> Workspace:
        """Return a workspace whose trainings and results are those of the race alone."""
        output = workspace.output / self.id
        return replace(workspace, output=output, results_file=f"{self.id}.json")

    def measure_missing(self, workspace: Workspace) -> None:
        """Run the race, or what is left of it, round by round."""
        own = self._own(workspace)
        self._train_teachers(own)
        for round_, names in self._rounds(own):
            trainings = [
                training
                for name in names
                for training in round_.trainings(self.rows[name], own.scale)
            ]
            train_missing(sorted(trainings, key=lambda training: training.seed), own)

    def _train_teachers(self, own: Workspace) -> None:
        """Put the teachers' weights where the trainings look for them."""
        if not any(dict(row.options).get("candidate") == "distilled" for row in self.rows.values()):
            return
        teachers = _teachers(own.output)
        teachers.mkdir(parents=True, exist_ok=True)

        def train(training: RaceTraining) -> None:
            weights = teachers / f"{training.seed}.pdparams"
            if not weights.exists():
                folder, _ = training.train(own, threads=1, **QUIET)
                write_atomically(weights, (folder / "mnist.pdparams").read_bytes())

        trainings = self.teachers.trainings(self.rows[self.teacher], own.scale)
        for _ in for_each(train, trainings, own):
            pass

    def _rounds(self, own: Workspace) -> Iterator[tuple[Round, list[str]]]:
        """Give each round with the names of its rows, up to the first that is not complete.

        Whether one is, is asked when it has been given: it may be trained meanwhile.
        """
        names = list(self.rows)
        for round_ in self.rounds:
            yield round_, names
            report = self._report(round_, names, own)
            if not is_complete(report):
                break
            names = survivors(report, round_.kept)

    def report(self, workspace: Workspace, seconds: Mapping[str, float]) -> dict[str, Any]:
        """Return each round's epochs, seeds and rows, up to the first that is not complete.

        done: how many trainings of the round. A row is empty until all of its trainings are.
        """
        own = self._own(workspace)
        rounds = [self._report(round_, names, own) for round_, names in self._rounds(own)]
        return {"rounds": rounds} if rounds[0]["done"] else {}

    def _report(self, round_: Round, names: Sequence[str], own: Workspace) -> dict[str, Any]:
        results = {
            name: [
                own.results.get(training, own.data)
                for training in round_.trainings(self.rows[name], own.scale)
            ]
            for name in names
        }
        return {
            "epochs": round_.epochs,
            "seeds": list(round_.seeds),
            "done": sum(map(bool, itertools.chain(*results.values()))),
            "rows": {name: self._row(row, own) for name, row in results.items()},
        }

    def _row(self, results: Sequence[Report], workspace: Workspace) -> dict[str, Any]:
        if not all(results):
            return {}
        limit = QUICK["eval_limit"] if workspace.scale.quick else None
        images = limit or len(workspace.data["valid"])
        return {
            "errors": [round((1 - result["valid_acc"]) * images) for result in results],
            "losses": [result["valid_loss"] for result in results],
            "seconds": [result["cpu_seconds"] for result in results],
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
            seconds = [measured for measured in row["seconds"] if measured]
            lines.append(
                (
                    title,
                    statistics.mean(row["errors"]),
                    fill(self.id, "errors_gap", **errors) if errors else None,
                    errors.get("p"),
                    statistics.mean(row["losses"]),
                    fill(self.id, "loss_gap", **losses) if losses else None,
                    losses.get("p"),
                    statistics.median(seconds) if seconds else None,
                )
            )
        return table(columns, lines)
