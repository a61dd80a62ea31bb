"""The callbacks that look into a net while it trains: `Watch` and `Profile`.

Modules that import paddle are imported where they are used: the options of these classes are those
of command lines, whose `--help` does without it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Optional

from paddle_mnist.interfaces import View
from paddle_mnist.options import CountOrZero, Options, option
from paddle_mnist.training.callbacks import Callback, Training

if TYPE_CHECKING:
    from paddle_mnist.monitor.profiler import Profile as StepProfile
    from paddle_mnist.monitor.profiler import Profiler
    from paddle_mnist.monitor.watch import LayerWatch


@dataclass(eq=False)
class Watch(Callback, Options):
    """Records statistics of layers, parameters and gradients, and reports problems.

    every: steps between records; 0: off. See `paddle_mnist.watch`.
    """

    heading = "looking inside"

    every: CountOrZero = option(
        100, "steps between records of layers and gradients; 0: off", flat="watch"
    )
    _watch: "Optional[LayerWatch]" = field(default=None, init=False, repr=False)

    def before_first_step(self, training: Training) -> None:
        from paddle_mnist.monitor.watch import watch

        if self.every and training.world.is_main_process:
            self._watch = watch(
                training.model,
                every=self.every,
                train_only=True,
            )

    def on_epoch_start(self, view: View) -> None:
        if self._watch:
            self._watch.on_epoch_start(view)

    def after_step(self, view: View) -> Optional[Mapping[str, float]]:
        return self._watch.after_step(view) if self._watch else None

    def close(self) -> None:
        if self._watch:
            self._watch.remove()
        self._watch = None


@dataclass(eq=False)
class Profile(Callback, Options):
    """Measures where the time of some steps goes: a table, and a trace of every operator.

    steps: how many to measure; as many again are traced. See docs/en/looking-inside.md.
    """

    heading = "looking inside"

    steps: CountOrZero = option(
        20,
        "number of steps to profile; without a value: 20; 0: off",
        flat="profile",
        bare="20",
    )
    _profile: "Optional[StepProfile]" = field(default=None, init=False, repr=False)

    def before_first_step(self, training: Training) -> None:
        from paddle_mnist.monitor.profiler import Profile as StepProfile

        if self.steps and training.world.is_main_process:
            self._profile = StepProfile(training.run.profile, self.steps)

    def profiler(self) -> "Optional[Profiler]":
        return self._profile

    def after_last_step(self, training: Training) -> None:
        profile, self._profile = self._profile, None
        if profile:
            profile.close()

    def close(self) -> None:
        if self._profile:
            self._profile.close()
        self._profile = None
