"""Keep the state of training between two whole steps, so that a failing step can be undone."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any, Optional

import paddle
from paddle import nn
from paddle.optimizer.lr import LRScheduler

from paddle_mnist.errors import listed, summary
from paddle_mnist.hidden_state.extra_state import ExtraState
from paddle_mnist.hidden_state.step_copies import keep, may_train, trained
from paddle_mnist.metrics.running import RunningMetrics
from paddle_mnist.metrics.writers import JsonlWriter
from paddle_mnist.nn.ema import NO_AVERAGE, WeightAverage
from paddle_mnist.nn.layers import KeptBuffers
from paddle_mnist.nn.schedule import scheduler_of
from paddle_mnist.system.arrays import ArrayCopies
from paddle_mnist.train_state import RunningSums, TrainState

# The most bytes of weights and optimizer state to copy in each step. Copying more would take a
# noticeable share of the step.
MOST_UNDO_BYTES = 2**20


class LastWholeStep:
    """The state of training after the last whole step, evaluation or end of an epoch.

    A checkpoint holds the state between two whole steps. If a step raises, `undo` restores what it
    may have changed from copies: of buffers, and of weights, optimizers and other state if they are
    small (`MOST_UNDO_BYTES`, `step_copies.MOST_KEPT`). A step with larger ones cannot be undone; an
    evaluation can, unless the net or the step may train during it.

    buffers: those of the model, which `before_pass` does not copy. history: counts the lines of
    `metrics.jsonl`.
    """

    def __init__(
        self,
        model: nn.Layer,
        optimizer: paddle.optimizer.Optimizer,
        average: WeightAverage,
        extra: Optional[ExtraState],
        state: TrainState,
        running: RunningMetrics,
        buffers: KeptBuffers,
        history: Optional[JsonlWriter] = None,
    ):
        self._model, self._optimizer, self._average = model, optimizer, average
        self._extra, self._state, self._running = extra, state, running
        self._buffers, self._history = buffers, history
        self._optimizers = [optimizer, *(extra.optimizers.values() if extra else ())]
        self._schedulers = [*filter(None, map(scheduler_of, self._optimizers))]
        self._num_accumulators = -1  # before `_find_tensors`
        self._tensors: list[paddle.Tensor] = []
        self._copies: Optional[ArrayCopies] = None  # of the tensors, unless they are large
        self.mark_whole()

    def mark_whole(self) -> None:
        """Keep the current state; call this at the end of a step, an evaluation or an epoch."""
        sums, pending, scheduled = self._state.running_sums, self._running.pending, []
        for scheduler in self._schedulers:
            scheduled += _with_attributes(scheduler)
        kept = (
            {
                **vars(self._state),
                "running_sums": RunningSums(sums.samples, sums.lr, dict(sums.totals)),
            },
            (pending, len(pending)),  # a list that only grows, until another replaces it
            self._history.lines if self._history else 0,
            scheduled,
            keep(self._extra) if self._extra else None,
        )
        # In one statement: until then, an error undoes the step that is ending.
        self._is_inside, self._kept = False, kept

    def before_pass(self, trains: bool) -> None:
        """Keep what may change; call this before a step (trains), an evaluation or an epoch end."""
        # An optimizer creates its state in its first step with a gradient.
        count = 0
        for optimizer in self._optimizers:
            for accumulators in getattr(optimizer, "_accumulators", {}).values():
                count += len(accumulators)
        if count != self._num_accumulators:
            self._num_accumulators = count
            self._find_tensors()
        if self._copies:
            self._copies.renew()
        self._needs_tensors = trains or (not self._copies and self._may_evaluations_train())
        self._is_inside = True  # last: incomplete copies are never restored

    def undo(self) -> Optional[str]:
        """Restore the last whole step; return why that is impossible, or None."""
        try:
            return "; ".join(self._undo()) or None
        except Exception as error:  # whatever the caller's objects raise
            return summary(error)

    def _undo(self) -> Iterator[str]:
        """Restore the last whole step; yield the reasons if that is impossible."""
        progress, (pending, count), num_lines, scheduled, restore_extra = self._kept
        vars(self._state).update(progress)
        self._running.pending = pending[:count]
        if self._history:
            self._history.leave_out_after(num_lines)
        for scheduler, attributes in scheduled:
            vars(scheduler).clear()
            vars(scheduler).update(attributes)
        if self._is_inside:
            if self._copies:
                self._copies.restore()
                tensors = self._all_tensors()
                if [*map(id, tensors)] != [*map(id, self._tensors)]:
                    yield "it has created weights, or state of an optimizer"
            elif self._needs_tensors:
                size = MOST_UNDO_BYTES // 2**20
                yield f"weights and optimizers of more than {size} MiB are not copied in each step"
            self._buffers.restore()  # after the weights, some of which are statistics
        if restore_extra and (missing := restore_extra(self._is_inside)):
            yield f"there is no copy of {listed(missing)} from before it"

    def _may_evaluations_train(self) -> bool:
        """Return whether an evaluation may change weights or optimizers.

        Frozen parameters may be a moving average, for example, which the net updates itself.
        """
        statistics = set(map(id, self._buffers.statistics))
        has_frozen = any(
            parameter.stop_gradient and id(parameter) not in statistics
            for parameter in self._model.parameters()
        )
        return has_frozen or bool(self._extra and may_train(self._extra))

    def _find_tensors(self) -> None:
        """Find the tensors to copy, which takes longer than copying a few."""
        self._tensors = self._all_tensors()
        statistics = set(map(id, self._buffers.statistics))  # which are copied with the buffers
        distinct = {
            id(tensor): tensor
            for tensor in self._tensors
            if tensor._is_initialized() and id(tensor) not in statistics
        }
        size = sum(int(t.size) * int(t.element_size()) for t in distinct.values())
        self._copies = ArrayCopies(distinct.values()) if size <= MOST_UNDO_BYTES else None

    def _all_tensors(self) -> list[paddle.Tensor]:
        """Return the weights, their average, and the state of optimizers."""
        tensors = [*self._model.state_dict().values()]
        if self._average is not NO_AVERAGE:
            tensors += self._average.weights(self._model).values()
        tensors += _tensors_of(self._optimizer.state_dict())
        for state in trained(self._extra) if self._extra else ():
            tensors += _tensors_of(state)
        return tensors


def _tensors_of(state: Mapping[str, Any]) -> list[paddle.Tensor]:
    """Return the tensors in nested dictionaries."""
    tensors = []
    for value in state.values():
        if isinstance(value, paddle.Tensor):
            tensors.append(value)
        elif isinstance(value, Mapping):
            tensors += _tensors_of(value)
    return tensors


def _with_attributes(scheduler: LRScheduler) -> list[tuple[LRScheduler, dict[str, Any]]]:
    """Return a schedule and those inside it, outermost first, with copies of their attributes."""
    attributes = {
        name: copy.copy(value) if isinstance(value, (list, dict)) else value
        for name, value in vars(scheduler).items()
    }
    copies = [(scheduler, attributes)]
    for value in attributes.values():
        if isinstance(value, LRScheduler) and value is not scheduler:
            copies += _with_attributes(value)
    return copies
