"""Keep the training as it is between two whole steps, so that a step that fails can be undone."""

import copy
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Optional

import paddle
from paddle import nn
from paddle.optimizer.lr import LRScheduler

from paddle_mnist.errors import listed, summary
from paddle_mnist.hidden_state.extra_state import ExtraState
from paddle_mnist.metrics.running import RunningMetrics
from paddle_mnist.metrics.writers import JsonlWriter
from paddle_mnist.nn.ema import NO_AVERAGE, WeightAverage
from paddle_mnist.nn.layers import KeptBuffers
from paddle_mnist.nn.schedule import scheduler_of
from paddle_mnist.system.arrays import ArrayCopy
from paddle_mnist.train_state import TrainState

# Bytes of weights and optimizers, with their state, that are copied in each step. More would take a
# noticeable share of the step.
MOST_BYTES = 2**20


class LastWholeStep:
    """The training as it was after its last whole step, evaluation or end of an epoch.

    A checkpoint holds the training between two whole steps. If anything raises inside one, `undo`
    puts back what it may have changed, from copies: of buffers, and of weights, optimizers and
    other state as far as they are small (`MOST_BYTES`, `extra_state.MOST_KEPT`). A step on larger
    ones cannot be undone; an evaluation can, unless the net or the step may train something in it.

    history: counts the lines of `metrics.jsonl`.
    """

    def __init__(
        self,
        model: nn.Layer,
        optimizer: paddle.optimizer.Optimizer,
        average: WeightAverage = NO_AVERAGE,
        extra: Optional[ExtraState] = None,
        history: Optional[JsonlWriter] = None,
    ):
        self._model, self._optimizer, self._average = model, optimizer, average
        self._extra, self._history = extra, history
        self._has_begun = self._is_inside = False
        others = extra.optimizers.values() if extra else ()
        self._optimizers = [optimizer, *others]
        self._schedulers = [*filter(None, map(scheduler_of, self._optimizers))]
        self._tensors = _KeptTensors(self._all_tensors)

    def begin(self, state: TrainState, running: RunningMetrics, buffers: KeptBuffers) -> None:
        """Begin to keep what a step may change. Until then, the other methods do nothing."""
        self._state, self._running, self._buffers = state, running, buffers
        self._has_begun = True
        self.reached()

    def reached(self) -> None:
        """Keep the present state; call it once a step, an evaluation or an epoch is whole."""
        if not self._has_begun:
            return
        kept = self._keep_progress(), self._extra.keep() if self._extra else None
        # At once: until then, an error undoes the step that is ending.
        self._is_inside, (self._put_back_progress, self._put_back_extra) = False, kept

    def before_pass(self, trains: bool) -> None:
        """Keep what may change; call it before a step (trains), an evaluation or an epoch's end."""
        if self._has_begun:
            # State of an optimizer is created by its first step with a gradient.
            states = [getattr(optimizer, "_accumulators", {}) for optimizer in self._optimizers]
            count = sum(len(held) for state in states for held in state.values())
            self._has_tensors = self._tensors.keep(count)
            self._needs_tensors = trains or (
                not self._has_tensors and self._may_evaluations_train()
            )
            self._is_inside = True  # last: copies that are made in part are never put back

    def undo(self) -> Optional[str]:
        """Put the last whole step back; return why that is impossible, or None."""
        if not self._has_begun:
            return None
        try:
            return "; ".join(self._undo()) or None
        except Exception as error:  # whatever the caller's objects raise
            return summary(error)

    def _undo(self) -> Iterator[str]:
        """Put the last whole step back; yield what prevents it."""
        self._put_back_progress()
        if self._is_inside:
            if self._has_tensors and not self._tensors.put_back():
                yield "it has created weights, or state of an optimizer"
            if self._needs_tensors and not self._has_tensors:
                size = MOST_BYTES // 2**20
                yield f"weights and optimizers of more than {size} MiB are not copied in each step"
            self._buffers.put_back()  # after the weights, some of which are statistics
        if self._put_back_extra and (missing := self._put_back_extra(self._is_inside)):
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
        return has_frozen or bool(self._extra and self._extra.is_trained_by_steps)

    def _all_tensors(self) -> list[paddle.Tensor]:
        """Return the weights, their average, and what optimizers keep."""
        tensors = [*self._model.state_dict().values()]
        if self._average is not NO_AVERAGE:
            tensors += self._average.weights(self._model).values()
        tensors += _tensors_of(self._optimizer.state_dict())
        for state in self._extra.trained() if self._extra else ():
            tensors += _tensors_of(state)
        return tensors

    def _keep_progress(self) -> Callable[[], None]:
        """Keep the state, the sums of the next log line, and schedules; return what undoes this."""
        state = self._state
        progress = {**vars(state), "running_sums": copy.copy(state.running_sums)}
        progress["running_sums"].totals = dict(state.running_sums.totals)
        pending = self._running.pending
        count = len(pending)
        lines = self._history.lines if self._history else 0
        schedules = [kept for scheduler in self._schedulers for kept in _kept_schedules(scheduler)]

        def put_back() -> None:
            vars(state).update(progress)
            self._running.pending = pending[:count]
            if self._history:
                self._history.leave_out_after(lines)
            for scheduler, values in schedules:
                vars(scheduler).clear()
                vars(scheduler).update(values)

        return put_back


class _KeptTensors:
    """Copies of the values of tensors, renewed in place.

    find: returns the tensors, which takes longer than to copy few.
    """

    def __init__(self, find: Callable[[], list[paddle.Tensor]]):
        self._find, self._count = find, -1
        self._tensors: list[paddle.Tensor] = []
        self._copies: list[ArrayCopy] = []
        self._is_large = False

    def keep(self, count: int) -> bool:
        """Copy the values, if they are not too large; return whether they are copied.

        count: if it is another than the last time, find the tensors again.
        """
        if self._is_large:
            return False
        if count != self._count:
            self._count, tensors = count, self._find()
            distinct = {id(tensor): tensor for tensor in tensors if tensor._is_initialized()}
            size = sum(int(t.size) * int(t.element_size()) for t in distinct.values())
            self._is_large = size > MOST_BYTES
            if self._is_large:
                self._tensors, self._copies = [], []
                return False
            self._tensors, self._copies = tensors, [*map(ArrayCopy, distinct.values())]
        for kept in self._copies:
            kept.renew()
        return True

    def put_back(self) -> bool:
        """Put the values back. Returns False if there are other tensors now, such as new state."""
        for kept in self._copies:
            kept.put_back()
        return self._are(self._find())

    def _are(self, tensors: list[paddle.Tensor]) -> bool:
        is_other = map(operator.is_not, tensors, self._tensors)
        return len(tensors) == len(self._tensors) and not any(is_other)


def _tensors_of(state: Mapping[str, Any]) -> list[paddle.Tensor]:
    """Return the tensors in nested dictionaries."""
    tensors = []
    for value in state.values():
        if isinstance(value, paddle.Tensor):
            tensors.append(value)
        elif isinstance(value, Mapping):
            tensors += _tensors_of(value)
    return tensors


def _kept_schedules(scheduler: LRScheduler) -> Iterator[tuple[LRScheduler, dict[str, Any]]]:
    """Yield a schedule and those inside it, outermost first, with copies of their attributes."""
    values = {
        name: copy.copy(value) if isinstance(value, (list, dict)) else value
        for name, value in vars(scheduler).items()
    }
    yield scheduler, values
    for value in values.values():
        if isinstance(value, LRScheduler) and value is not scheduler:
            yield from _kept_schedules(value)
