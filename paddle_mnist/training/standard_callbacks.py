"""The callbacks that come with `fit`. Modules that import paddle are imported where they are used:
the options of these classes are those of command lines, whose `--help` does without it.
"""

import difflib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Optional, Union

from paddle_mnist.errors import ConfigError
from paddle_mnist.interfaces import View
from paddle_mnist.options import Count, CountOrZero, Options, flat_options, option, split_names
from paddle_mnist.progress import TrainState
from paddle_mnist.system.program import in_command
from paddle_mnist.training.callbacks import Callback, FitResult, Training
from paddle_mnist.training.rehearsing import is_rehearsal

if TYPE_CHECKING:
    from paddle_mnist.metrics.console import BarWriter, LogWriter
    from paddle_mnist.metrics.visualdl import VisualDLWriter
    from paddle_mnist.monitor.hooks import ForwardPasses
    from paddle_mnist.monitor.profiler import Profile as StepProfile
    from paddle_mnist.monitor.profiler import Profiler
    from paddle_mnist.monitor.watch import LayerWatch
    from paddle_mnist.training.job import TrainingJob

log = logging.getLogger("paddle_mnist")

# The pages of the dashboard, and those that `visualdl=True` stands for.
USUAL_PAGES = ("scalars", "histograms", "images", "figures", "text", "hparams")
PAGES = (*USUAL_PAGES, "curves", "embeddings", "graph")
TUTORIAL_BATCHES = {"shapes": 0, "contents": 401}  # in which the tutorial prints


@dataclass(eq=False)
class EarlyStopping(Callback, Options):
    """Ends the training when `monitor` no longer improves; the result is then the best checkpoint.

    patience: the number of evaluations without a better value; None: never stop.
    """

    heading = "training"

    patience: Optional[Count] = option(
        None,
        "stop after N evaluations without improvement, with the best weights",
        flat="early_stop_patience",
        must_match=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.ends_with_best = self.patience is not None

    def should_stop(self, view: View) -> bool:
        return self.patience is not None and view.state.evaluations_since_best >= self.patience


@dataclass(eq=False)
class Watch(Callback, Options):
    """Records statistics of layers, parameters and gradients, and reports problems.

    every: steps between records; 0: off. See `paddle_mnist.watch`.
    """

    heading = "looking inside"

    every: CountOrZero = option(
        100, "steps between records of layers and gradients; 0: off", flat="watch"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._watch: Optional[LayerWatch] = None

    def before_first_step(self, training: Training) -> None:
        from paddle_mnist.monitor.watch import watch

        if self.every and training.world.is_main_process:
            self._watch = watch(
                training.model, every=self.every, train_only=True, **_place(training)
            )

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

    def __post_init__(self) -> None:
        super().__post_init__()
        self._profile: Optional[StepProfile] = None

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


def _parse_batches(value: Any) -> Any:
    """Read numbers of batches, by comma; true means the tutorial's batch, false none."""
    if str(value).lower() in ("true", "false"):
        return True if str(value).lower() == "true" else ()
    if isinstance(value, int):
        return [value]
    names = split_names(value)
    return [int(name) if str(name).isdecimal() else name for name in names]


Batches = Union[tuple[CountOrZero, ...], Literal[True]]


@dataclass(eq=False)
class PrintLayers(Callback, Options):
    """Prints shapes and contents of the layers in some batches, in the format of the tutorial.

    shapes, contents: the numbers of these batches, counted from 0 over the whole training; True:
        the batch in which the tutorial prints, 0 and 401, or the last of a shorter training.
    """

    heading = "looking inside"

    shapes: Batches = option(
        (),
        "numbers of batches whose shapes to print; without a value: 0",
        flat="check_shape",
        bare="true",
        parse=_parse_batches,
    )
    contents: Batches = option(
        (),
        "numbers of batches whose contents to print; without a value: 401, or the last",
        flat="check_content",
        bare="true",
        parse=_parse_batches,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._passes: Optional[ForwardPasses] = None

    def check_job(self, job: "TrainingJob") -> None:
        for name in TUTORIAL_BATCHES:
            self._batches(name, job.steps)

    def before_first_step(self, training: Training) -> None:
        from paddle_mnist.monitor.print_layers import print_in_batches

        if not training.world.is_main_process or not (self.shapes or self.contents):
            return
        shapes, contents = (
            self._batches(name, training.job.steps, is_logged=True) for name in TUTORIAL_BATCHES
        )
        self._passes = print_in_batches(
            training.model, shapes, contents, print_fn=log.info, **_place(training)
        )

    def _batches(self, name: str, total: Optional[int], is_logged: bool = False) -> Sequence[int]:
        """Return the batches in which to print. Raises ConfigError for a number that is too large.

        total: the number of batches in the training; None if it is unknown.
        """
        numbers, usual = getattr(self, name), TUTORIAL_BATCHES[name]
        flat = {one.field.name: flat for flat, one in flat_options([type(self)]).items()}[name]
        label = flat if in_command() else f"PrintLayers: {name}"
        if total is None:
            return (usual,) if numbers is True else numbers
        last = total - 1
        if numbers is True:
            if usual > last and is_logged:
                log.info(
                    "%s: no batch %d in %d batches; printing in the last, %d",
                    label,
                    usual,
                    total,
                    last,
                )
            return (min(usual, last),)
        for number in numbers:
            if number > last:
                raise ConfigError(
                    f"{label} names batch {number}, but this training has {total}, counted from 0; "
                    f"expected one of them, such as {last}"
                )
        return numbers

    def close(self) -> None:
        if self._passes:
            self._passes.remove()
        self._passes = None


def _place(training: Training) -> dict[str, int]:
    """Return what hooks need to count steps: those done before, and the passes of each."""
    step = training.state.step if training.state else 0
    return {"start": step, "passes_per_step": training.job.parts.loader.passes_per_step}


@dataclass(eq=False)
class Console(Callback, Options):
    """Writes log lines, and on a terminal a progress bar.

    every: steps between log lines, over which metrics are accumulated.
    """

    heading = "run"

    every: Count = option(100, "steps between log lines", flat="log_every")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._lines: Optional[LogWriter] = None
        self._bar: Optional[BarWriter] = None

    def before_first_step(self, training: Training) -> None:
        from paddle_mnist.metrics.console import BarWriter, LogWriter

        job = training.job
        if training.world.is_main_process:
            self._lines = LogWriter(job.arguments.epochs, job.steps)
            self._bar = BarWriter(job.steps)
            self._bar.advance(training.state.step if training.state else 0)

    def after_step(self, view: View) -> None:
        if self._bar:
            self._bar.advance(view.step)

    def write(self, state: TrainState, values: Mapping[str, float]) -> None:
        if self._lines and self._bar:
            self._lines.write(state, values)
            self._bar.write(state, values)

    def after_last_step(self, training: Training) -> None:
        self.close()

    def close(self) -> None:
        if self._bar:
            self._bar.close()
        self._lines = self._bar = None


def _parse_pages(value: Any) -> Any:
    """Read names of pages, by comma; true means the usual ones, false none."""
    shorthands = {"true": USUAL_PAGES, "false": (), "off": (), "all": PAGES}
    if str(value).lower() in shorthands:
        return shorthands[str(value).lower()]
    names = split_names(value)
    for name in names:
        if name not in PAGES:
            near = difflib.get_close_matches(str(name), PAGES, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"expected true, false, all, or some of {', '.join(PAGES)}{hint}")
    return [name for name in PAGES if name in names]


@dataclass(eq=False)
class VisualDL(Callback, Options):
    """Writes the pages of VisualDL's dashboard; other callbacks add to them (`Training.board`).

    pages: which to write: scalars, histograms, images, figures, text, hparams, curves, embeddings,
        graph; or True (the first six), "all", or False.
    """

    heading = "looking inside"

    pages: tuple[str, ...] = option(
        ("scalars", "text", "hparams"),
        "comma-separated VisualDL pages; or true (the usual ones), all, false",
        flat="visualdl",
        bare="true",
        parse=_parse_pages,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._board: Optional[VisualDLWriter] = None

    def board(self, training: Training) -> "VisualDLWriter":
        """Return the writer of the pages; of other processes than the main one, it writes none."""
        from paddle_mnist.metrics.visualdl import HISTOGRAMS, VisualDLWriter

        if self._board is None:
            job, run = training.job, training.run
            pages = self.pages if training.world.is_main_process else ()
            watch = job.callback(Watch)
            every = (watch and watch.every) or job.console.every
            if job.steps:  # one histogram is no picture of a training
                every = min(every, max(1, job.steps // HISTOGRAMS))
            self._board = VisualDLWriter(
                run.new_visualdl_folder() if pages else run.visualdl,
                pages,
                every,
                ("train", *job.evaluator.datasets),
                training.state.step if training.state else 0,
            )
        return self._board

    def check_job(self, job: "TrainingJob") -> None:
        from paddle_mnist.metrics.visualdl import require_pages

        require_pages(self.pages)

    def before_training(self, training: Training) -> None:
        from paddle_mnist.metrics.visualdl import ABOUT
        from paddle_mnist.training.initialize import environment
        from paddle_mnist.training.results import describe_training

        board = self.board(training)
        board.text("configuration", training.job.config)
        board.text("environment", environment(training.job.device))
        board.text(ABOUT, describe_training(training))

    def after_step(self, view: View) -> None:
        if self._board and not is_rehearsal():
            self._board.after_step(view)

    def write(self, state: TrainState, values: Mapping[str, float]) -> None:
        if self._board:
            self._board.write(state, values)

    def after_training(self, training: Training, result: FitResult) -> None:
        from paddle_mnist.metrics.visualdl import ABOUT
        from paddle_mnist.training.results import describe_result

        board = self.board(training)
        board.text(ABOUT, describe_result(training, result), result.steps)
        scores = {tag.replace("/", "_"): value for tag, value in result.metrics.items()}
        board.hparams(training.job.request.config, scores, result.steps)

    def close(self) -> None:
        board, self._board = self._board, None
        if board:
            board.close()


@dataclass(eq=False)
class Figures(Callback, Options):
    """Draws the curves of the metrics at the end of the run.

    draw: whether to draw them.
    """

    heading = "looking inside"

    draw: bool = option(True, "draw figures at the end of the run", flat="figures")

    def after_training(self, training: Training, result: FitResult) -> None:
        from paddle_mnist.plots.figure import save_figures
        from paddle_mnist.plots.history import read_history
        from paddle_mnist.training.run_figures import draw_history

        if self.draw and training.world.is_main_process:
            drawn = draw_history(read_history(training.run.metrics))
            save_figures(drawn, training.run.figures)
            training.board.figures(drawn, result.steps)

    def already_finished(self, training: Training, result: FitResult) -> None:
        """Draw what is missing: the disk was full, say."""
        from paddle_mnist.plots.figure import save_figures
        from paddle_mnist.plots.figure_files import files_of
        from paddle_mnist.plots.history import read_history
        from paddle_mnist.training.run_figures import draw_history

        if not (self.draw and training.world.is_main_process):
            return
        drawn = draw_history(read_history(training.run.metrics))
        missing = [
            name for name in files_of(list(drawn)) if not (training.run.figures / name).exists()
        ]
        if missing:
            save_figures(drawn, training.run.figures, missing)


DEFAULTS: tuple[type[Callback], ...] = (Console, VisualDL, Figures)


def with_defaults(callbacks: Sequence[Callback]) -> list[Callback]:
    """Return callbacks, and after them those of `DEFAULTS` of which none is among them."""
    missing = [
        kind for kind in DEFAULTS if not any(isinstance(callback, kind) for callback in callbacks)
    ]
    return [*callbacks, *(kind() for kind in missing)]
