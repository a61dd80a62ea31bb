"""Rehearse the resume of a training before it starts, to find state that a checkpoint would lose.

Two steps are trained, a batch of each split is evaluated, and the callbacks are called. Then the
code that a resume uses restores the beginning, and the values that it does not restore are
examined.
"""

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
import paddle
from paddle import nn

from paddle_mnist.checkpoint.further_state import DATA_ROOTS
from paddle_mnist.checkpoint.optimizer_state import optimizer_parameters
from paddle_mnist.checkpoint.places import (
    find,
    put,
    replace_items,
    replaceable,
    unit,
    with_own_items,
)
from paddle_mnist.checkpoint.plain_data import copied, digest_of
from paddle_mnist.checkpoint.reachable import Path, assign, describe, identity
from paddle_mnist.checkpoint.snapshot import Change
from paddle_mnist.data.external import can_be_repeated
from paddle_mnist.data.seeding import generators_restored
from paddle_mnist.errors import ConfigError, StoppedError, listed
from paddle_mnist.system.program import in_command
from paddle_mnist.training.beginning import Beginning, data_restored
from paddle_mnist.training.job import TrainingJob
from paddle_mnist.training.rehearsing import rehearsing
from paddle_mnist.training.sample_check import check_samples
from paddle_mnist.training.trial_steps import STEPS, Outcome, TrialSteps

log = logging.getLogger("paddle_mnist")

MOST_ATTEMPTS = 32  # to leave out candidates
REMEDY = (
    'give fit state={"name": object}, with an object that holds it and has state_dict and '
    "set_state_dict"
)
CLEAR = "call clear_grad() before the backward pass that adds to it"


def rehearse(job: TrainingJob) -> None:
    """Find the state that checkpoints would lose, and have them save it or refuse it.

    Afterwards, everything is as before: the weights, the attributes of callbacks, the generators
    of random numbers. All processes rehearse together. Data that can be read only once are not
    rehearsed.

    Raises ConfigError for state that cannot be saved, for samples that differ when they are read
    again, and for state that differs between processes.
    """
    loader, data = job.parts.loader, job.parts.further.data
    if not can_be_repeated(loader):
        log.info("the data can be read only once, so the resume is not rehearsed")
        return
    if not in_command():  # whose steps are quick, and have no prints of the user's
        log.info(
            "rehearsing a resume before the first step (is_rehearsal() is True): %d steps, and "
            "more if they change what is neither weights nor optimizer",
            2 * STEPS + 1,
        )
    with rehearsing(), generators_restored(), data_restored(data):
        is_repeatable = check_samples(loader, data, "the first batch")
        for split, valid in job.evaluator.datasets.items():
            is_repeatable &= check_samples(valid, data, f"the first batch of {split}")
        if is_repeatable:
            _Rehearsal(job).run()


@dataclass(eq=False)
class _Candidate:
    """A value that the steps have changed and the restored checkpoint has not brought back.

    value: what it was after the steps; a copy if it is plain data, which can be saved.
    parameter: the parameter whose gradient it is, if it is one.
    """

    change: Change
    path: Path
    value: Any
    is_plain: bool
    parameter: Optional[paddle.Tensor] = None

    @property
    def is_counter(self) -> bool:
        root = self.path[0][1]
        is_number = isinstance(self.value, (int, float, np.number)) and root not in DATA_ROOTS
        return self.is_plain and (is_number or root == "callbacks")

    @property
    def digest(self) -> str:
        return digest_of(self.value if self.is_plain else None)


@dataclass(eq=False)
class _Finding:
    """A candidate of any process, which all of them know.

    own: the candidate in this process, if it is one here. name: its path. is_plain: whether it is
    plain data wherever it is a candidate. is_same: whether it is the same in all processes.
    """

    name: str
    own: Optional[_Candidate]
    is_plain: bool
    is_same: bool

    def __str__(self) -> str:
        return describe(self.own.path) if self.own else self.name


class _Rehearsal:
    """The rehearsal of a job on its first batches."""

    def __init__(self, job: TrainingJob):
        self.job, self.further, self.world = job, job.parts.further, job.world
        self.trial = TrialSteps(job)
        self.roots = self.further.roots
        self.beginning = Beginning(job.parts.model, self.further, job.parts.average)

    def run(self) -> None:
        """Rehearse, and choose the values to save. Raises ConfigError."""
        if self.beginning.skipped:
            log.info(
                "too large to be examined: %s; if a step fails because the rehearsal does not "
                "restore it, make it smaller, or %s",
                listed(self.beginning.skipped),
                REMEDY,
            )
        with self.beginning.kept():
            first = self.trial.outcome()
            candidates = self._lost()
            # Two steps may leave a value as they found it, such as a switch, and so may the end of
            # an epoch, such as the state of a recurrent net; one step does not.
            self.trial.train(steps=1)
            candidates = {**self._lost(), **candidates}
            again = self.trial.outcome()
            self.beginning.put_back()
            findings = self._agreed(candidates)
            is_repeatable = self._check_repeated(first, again)
            needed = [finding for finding in findings if finding.is_plain]
            if is_repeatable and findings:
                needed = self._needed(findings, first.shared_names(again))
        self._refuse_what_cannot_be_saved(needed)
        own = [finding.own for finding in needed if finding.own]
        self.further.values = [candidate.path for candidate in own]
        self.further.left = {one.name for one in findings if one not in needed}
        self._log(findings, needed)

    def _lost(self) -> dict[str, _Candidate]:
        """Restore everything, and return the values that a checkpoint would not have restored.

        Raises ConfigError if what a checkpoint holds differs between processes.
        """
        if self.world.size > 1:
            self._require_same_everywhere(self.further.digests())
        self.beginning.restore_saved()
        candidates = self._candidates()
        self.beginning.put_back()
        return candidates

    def _candidates(self) -> dict[str, _Candidate]:
        """Return the values that the restored checkpoint has not brought back, by name."""
        found: dict[str, tuple[Change, Path, bool]] = {}
        for change in self.beginning.changes():
            if not self.further.found.is_saved(change.path):
                where = unit(self.roots, change.path, self.further.known)
                path = where or replaceable(self.roots, change.path)
                found[identity(path)] = change, path, where is not None
                self.trial.reads_again |= path[0][1] in DATA_ROOTS
        # Copied together, so that an array in two places is one array in both again.
        plain = [name for name, (_, _, is_plain) in found.items() if is_plain]
        copies = dict(zip(plain, copied([find(self.roots, found[name][1]) for name in plain])))
        candidates = {
            name: _Candidate(
                change,
                path,
                copies[name] if is_plain else with_own_items(find(self.roots, path)),
                is_plain,
            )
            for name, (change, path, is_plain) in found.items()
        }
        for name, parameter in self._others_parameters():
            gradient = parameter.grad
            if gradient is not None and not gradient.is_selected_rows() and gradient.any():
                path = (("root", f"the gradient of {name}"),)
                change = Change(path, "nothing", "a gradient that is not 0")
                candidates[identity(path)] = _Candidate(
                    change, path, gradient.detach().clone(), False, parameter
                )
        return candidates

    def _others_parameters(self) -> Iterator[tuple[str, paddle.Tensor]]:
        """Yield the names and parameters whose gradients the trainer does not clear."""
        cleared = {id(parameter) for parameter in optimizer_parameters(self.job.parts.optimizer)}
        named = {**self.further.parameters, **self.further.found.tensors()}
        for part_name, part in self.beginning.parts.items():
            if isinstance(part, nn.Layer):
                named.update((f"{part_name}.{name}", p) for name, p in part.named_parameters())
        return ((name, p) for name, p in named.items() if id(p) not in cleared)

    def _agreed(self, candidates: Mapping[str, _Candidate]) -> list[_Finding]:
        """Return the candidates of all processes, in the same order in each."""
        told = {name: (one.is_plain, one.digest) for name, one in candidates.items()}
        everywhere = self.world.all_gather_objects((told, self.trial.reads_again))
        self.trial.reads_again = any(reads_again for _, reads_again in everywhere)
        findings = []
        for name in sorted({name for found, _ in everywhere for name in found}):
            seen = [found[name] for found, _ in everywhere if name in found]
            is_same = len(seen) == len(everywhere) and len({digest for _, digest in seen}) == 1
            is_plain = all(is_plain for is_plain, _ in seen)
            findings.append(_Finding(name, candidates.get(name), is_plain, is_same))
        return findings

    def _check_repeated(self, first: Outcome, again: Outcome) -> bool:
        """Return whether the same steps from the same state gave the same result.

        Raises ConfigError if they did not, except on a GPU, where sums may be computed in any
        order.
        """
        if not any(self.world.all_gather_objects(first.digest != again.digest)):
            return True
        if self.job.device.startswith("gpu"):
            log.info(
                "repeating the first steps gave different bits on this device, so a resumed run "
                "will not end with the same bits; deterministic=True selects algorithms that do"
            )
            return False
        hidden = [f"the position of {name}" for name in self.beginning.iterators()]
        hidden += [f"{name}, too large to be examined" for name in self.beginning.skipped]
        known = f", such as {listed(hidden)}" if hidden else ""
        raise ConfigError(
            "repeating the first steps from the same state gave another result, so they depend on "
            f"state that fit cannot see{known}; expected steps that depend only on the batch and "
            "on values that objects hold; take data from train and random numbers from random, "
            f"numpy.random or paddle, or {REMEDY}"
        )

    def _needed(self, findings: Sequence[_Finding], names: Collection[str]) -> list[_Finding]:
        """Return the findings to save.

        They are sufficient: if only these are as the steps have left them, as after a resume, the
        outcome of the next steps is the same as with all findings. Counters that do not matter now
        are among them, because every hundredth step, for example, may read them, and so are the
        values of callbacks, which may use them only at the end.

        names: the entries of an outcome's `reported` to compare.
        """
        self.trial.read(2 * STEPS)
        counters = [one for one in findings if one.is_same and one.own and one.own.is_counter]
        watched = {one.name: one.own.path for one in counters if one.own}
        needed: list[_Finding] = []
        while True:
            self.further.values = [one.own.path for one in needed if one.own and one.is_plain]
            unbroken, again = (self._outcome_with(findings, watched) for _ in range(2))
            if not self._check_repeated(unbroken, again):
                return [one for one in findings if one.is_plain]
            more = self._chosen(findings, needed, unbroken, names)
            needed += more
            if not more:
                break
        counters = [one for one in counters if one not in needed]
        same = unbroken.shared_names(again)  # not those that are times
        counters = [one for one in counters if f"value of {one.name}" in same]
        if counters and self._is_enough([*needed, *counters], unbroken, names):
            needed += counters
        return needed

    def _chosen(
        self,
        findings: Sequence[_Finding],
        needed: Sequence[_Finding],
        unbroken: Outcome,
        names: Collection[str],
    ) -> list[_Finding]:
        """Return findings without which those needed are not sufficient, as few as can be found.

        In one process this is the algorithm of A. Zeller and R. Hildebrandt, "Simplifying and
        Isolating Failure-Inducing Input", 2002; after too many attempts, it keeps what remains.
        """
        if self._is_enough(needed, unbroken, names):
            return []
        rest = [one for one in findings if one not in needed]
        # First leave out values that cannot be saved.
        rest.sort(key=lambda one: (one.is_plain and one.is_same, one.is_plain))
        if self.world.size > 1:
            # A step that fails on some of them only would leave the other processes waiting.
            shared = [one for one in rest if one.is_plain and one.is_same]
            return shared if self._is_enough([*needed, *shared], unbroken, names) else rest
        attempts, size = 0, max(1, len(rest) // 2)
        while size:
            start = 0
            while start < len(rest) and attempts < MOST_ATTEMPTS:
                attempts += 1
                fewer = rest[:start] + rest[start + size :]
                if self._is_enough([*needed, *fewer], unbroken, names):
                    rest = fewer
                else:
                    start += size
            size //= 2
        return rest

    def _is_enough(
        self, findings: Sequence[_Finding], unbroken: Outcome, names: Collection[str]
    ) -> bool:
        """Return whether these findings alone give the outcome of an unbroken training."""
        try:
            is_other = self._outcome_with(findings).differs_from(unbroken, names)
        except StoppedError:
            raise
        except Exception:  # a step may fail if only some of the values that belong together are set
            if self.world.size > 1:
                raise
            is_other = True
        return not any(self.world.all_gather_objects(is_other))

    def _outcome_with(
        self, findings: Sequence[_Finding], watched: Mapping[str, Path] = {}
    ) -> Outcome:
        """Train with some values as the steps have left them, and restore everything."""
        with self.beginning.kept():
            self._apply([finding.own for finding in findings if finding.own])
            return self.trial.outcome(watched)

    def _apply(self, candidates: Sequence[_Candidate]) -> None:
        """Set values to what they were after the steps."""
        plain = [one for one in candidates if one.is_plain]
        for one, value in zip(plain, copied([one.value for one in plain])):
            put(self.roots, one.path, value)
        for one in candidates:
            if one.parameter is not None:
                one.parameter.grad = one.value.clone()
            elif not one.is_plain and not replace_items(find(self.roots, one.path), one.value):
                assign(find(self.roots, one.path[:-1]), one.path[-1], with_own_items(one.value))

    def _refuse_what_cannot_be_saved(self, needed: Sequence[_Finding]) -> None:
        for finding in needed:
            if not finding.is_plain:
                change = finding.own.change if finding.own else Change((), "", "another value")
                name = describe(change.path) if change.path else finding.name
                is_gradient = finding.own is not None and finding.own.parameter is not None
                raise ConfigError(
                    f"a step changes {name} from {change.before} to {change.now}, and later steps "
                    "depend on it, but a checkpoint cannot hold it; "
                    f"{CLEAR if is_gradient else REMEDY}"
                )
        self._refuse_differences([str(finding) for finding in needed if not finding.is_same])

    def _require_same_everywhere(self, digests: Mapping[str, str]) -> None:
        """Raise ConfigError for state that differs between processes: only one of them saves it."""
        everywhere = self.world.all_gather_objects(dict(digests))
        names = sorted({name for found in everywhere for name in found})
        self._refuse_differences(
            [name for name in names if len({found.get(name) for found in everywhere}) > 1]
        )

    def _refuse_differences(self, names: Sequence[str]) -> None:
        if names:
            raise ConfigError(
                f"{listed(names)}: after two steps, the values differ between the processes, "
                "because each has seen other samples and only the model's gradients are added up; "
                "expected state that does not depend on the samples, or one process"
            )

    def _log(self, findings: Sequence[_Finding], needed: Sequence[_Finding]) -> None:
        """Log the values that are saved, and those that are not."""
        saved = [str(one) for one in needed]
        # Gradients that do not matter are what most steps leave.
        rest = [one.own for one in findings if one.own and one not in needed]
        others = [describe(one.path) for one in rest if one.parameter is None]
        if saved:
            log.info("saved with checkpoints, since steps change it: %s", listed(saved))
            if self.job.parts.loader.passes_per_step * self.world.size > 1:
                log.warning(
                    "each pass may change %s, and the result may depend on the number of shards "
                    "and processes",
                    listed(saved),
                )
        if others:
            log.info("not saved, since the first steps do not depend on it: %s", listed(others))
