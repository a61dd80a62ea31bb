"""Bundled callbacks; `Console`, `VisualDL` and `Figures` are defaults.

Modules that import paddle are only imported where they are used: `--help` lists the options of
these classes without paddle.
"""

import logging
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Optional

from paddle_mnist.errors import ConfigError, nearest_name
from paddle_mnist.interfaces import View
from paddle_mnist.metrics.writers import divided_at
from paddle_mnist.options import Count, CountOrZero, NotNegative, Options, option, split_names
from paddle_mnist.plots.figure import FIGURES, AnyFigure, files_of
from paddle_mnist.system.devices import require_zlib
from paddle_mnist.train_state import TrainState
from paddle_mnist.training.callbacks import Callback, FitResult, Training, is_rehearsal

if TYPE_CHECKING:
    from tqdm import tqdm

    from paddle_mnist.metrics.console import LogWriter
    from paddle_mnist.metrics.records import ResumePoint
    from paddle_mnist.metrics.visualdl import VisualDLWriter
    from paddle_mnist.monitor.profiler import Profiler, StepProfiler
    from paddle_mnist.monitor.watch import LayerWatch

HISTOGRAMS = 10  # of each parameter, at least, in a run of known length


@dataclass(eq=False)
class EarlyStopping(Callback, Options):
    """Stops training when `monitor` no longer improves; the result is then the best checkpoint.

    patience: the number of evaluations without a better value; None: never stop.
    min_delta: a value is better only if it beats the last better one by more than this.
    """

    heading = "training"

    def __new__(cls, *args: Any, **kwargs: Any) -> "EarlyStopping":
        self: EarlyStopping = super().__new__(cls, *args, **kwargs)
        vars(self)["is_chosen"] = bool(args or kwargs)  # None is a choice, too
        return self

    patience: Optional[Count] = option(
        None,
        "stop after N evaluations without improvement, with the best weights",
        flat="early_stop_patience",
        must_match=True,
    )
    min_delta: NotNegative = option(
        0.0,
        "the least improvement that early_stop_patience counts",
        flat="early_stop_min_delta",
        must_match=True,
    )

    def check(self) -> None:
        if self.min_delta and self.patience is None:
            raise ConfigError(
                f"EarlyStopping: min_delta is {self.min_delta} without patience; expected both"
            )

    def check_training(self, training: Training) -> None:
        if type(self) is EarlyStopping and not vars(self)["is_chosen"]:
            raise ConfigError(
                "EarlyStopping() has no patience, so it never stops; pass a number of evaluations, "
                "as in EarlyStopping(patience=5)"
            )

    @property
    def ends_with_best(self) -> bool:  # type: ignore[override]  # the base class has a plain attribute
        """Return whether it is on."""
        return self.patience is not None

    def should_stop(self, view: View) -> bool:
        if self.patience is None:
            return False
        return view.state.evaluations_without_improvement(self.min_delta) >= self.patience


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
    _is_untrained: bool = field(default=True, init=False, repr=False)

    def before_first_step(self, training: Training) -> None:
        from paddle_mnist.monitor.watch import watch

        if self.every and training.world.is_main_process:
            self._watch = watch(training.model, every=self.every)
            self._is_untrained = training.arguments.start is None

    def on_epoch_start(self, view: View) -> None:
        if self._watch:
            self._watch.on_epoch_start(view)

    def after_step(self, view: View) -> Optional[Mapping[str, float]]:
        if self._watch and view.step == 1 and self._is_untrained and view.loss is not None:
            self._watch.diagnosis.first_loss = view.loss
        return self._watch.after_step(view) if self._watch else None

    def write(self, state: TrainState, values: Mapping[str, float]) -> None:
        if self._watch:
            self._watch.diagnosis.check_losses(state.step, values)

    def after_last_step(self, training: Training) -> None:
        if self._watch:
            self._watch.diagnosis.check_end(training.state.step)

    def close(self) -> None:
        if self._watch:
            self._watch.remove()
        self._watch = None


@dataclass(eq=False)
class Profile(Callback, Options):
    """Measures where the time of some steps goes: a table, and a trace of every operator.

    steps: how many to measure, and then to trace. See docs/en/looking-inside.md.
    """

    heading = "looking inside"

    steps: CountOrZero = option(
        20,
        "number of steps to profile; without a value: 20; 0: off",
        flat="profile",
        bare="20",
    )
    _profiler: "Optional[StepProfiler]" = field(default=None, init=False, repr=False)

    def before_first_step(self, training: Training) -> None:
        from paddle_mnist.monitor.profiler import StepProfiler

        if self.steps and training.world.is_main_process:
            self._profiler = StepProfiler(training.run.profile, self.steps)

    def profiler(self) -> "Optional[Profiler]":
        return self._profiler

    def after_last_step(self, training: Training) -> None:
        self.close()

    def close(self) -> None:
        profiler, self._profiler = self._profiler, None
        if profiler:
            profiler.close()


log = logging.getLogger("paddle_mnist")

# The pages of the dashboard, and those that True stands for.
PAGES_OF_TRUE = ("scalars", "histograms", "images", "figures", "text", "hparams")
PAGES = (*PAGES_OF_TRUE, "curves", "embeddings", "graph")
PAGES_OF_OTHERS = ("images", "curves", "embeddings", "graph")  # which callbacks write


@dataclass(eq=False)
class Console(Callback, Options):
    """Writes log lines, and on a terminal a progress bar; in a notebook, one line per epoch.

    every: steps between log lines, over which metrics are accumulated.
    """

    heading = "run"

    every: Count = option(100, "steps between log lines", flat="log_every")
    _lines: "Optional[LogWriter]" = field(default=None, init=False, repr=False)
    _bar: "Optional[tqdm[Any]]" = field(default=None, init=False, repr=False)
    _is_notebook: bool = field(default=False, init=False, repr=False)

    @property
    def log_every(self) -> int:  # type: ignore[override]  # the base class has a plain attribute
        return self.every

    def before_first_step(self, training: Training) -> None:
        from paddle_mnist.metrics.console import LogWriter, is_notebook, progress_bar

        if training.world.is_main_process:
            self._is_notebook = is_notebook()
            self._lines = LogWriter(training.arguments.epochs, training.steps)
            self._bar = progress_bar(training.state.step, training.steps)

    def after_step(self, view: View) -> None:
        if self._bar is not None:
            self._bar.update(view.step - self._bar.n)

    def after_epoch(self, view: View) -> None:
        if self._lines and self._is_notebook:
            self._lines.write_epoch(view.state, view.metrics)

    def write(self, state: TrainState, values: Mapping[str, float]) -> None:
        if self._lines and self._bar is not None:
            if not self._is_notebook:
                self._lines.write(state, values)
            if "train/loss" in values:
                self._bar.set_postfix(loss=f"{values['train/loss']:.4f}", refresh=False)

    def after_last_step(self, training: Training) -> None:
        self.close()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
        self._lines = self._bar = None


def _parse_pages(value: Any) -> Any:
    """Parse comma-separated names of pages; true means the usual ones, false none."""
    shorthands = {"true": PAGES_OF_TRUE, "false": (), "off": (), "all": PAGES}
    if str(value).lower() in shorthands:
        return shorthands[str(value).lower()]
    names = split_names(value)
    for name in names:
        if name not in PAGES:
            near = nearest_name(str(name), PAGES)
            hint = f"; did you mean {near!r}?" if near else ""
            raise ValueError(f"expected true, false, all, or some of {', '.join(PAGES)}{hint}")
    return [name for name in PAGES if name in names]


def _former_records(training: Training) -> "tuple[Path, Optional[ResumePoint]]":
    """Return where the records of a run are, and up to which point it resumes, if it does."""
    from paddle_mnist.metrics.records import ResumePoint

    run = training.run
    # In `run_opened`, `fit` has not decided yet; it resumes from the newest checkpoint.
    checkpoint = training.resumed_from or next(reversed(run.checkpoints.all()), None)
    if not checkpoint or checkpoint.is_pair:  # whose run is unknown
        return run.visualdl, None
    former, step = run.of(checkpoint), checkpoint.step
    lines = checkpoint.manifest["metrics_lines"]
    kept, later = divided_at(checkpoint.state, lines, former.metrics)
    repeated = {row["tag"] for _, row in later if row["step"] == step}
    saved_at = checkpoint.manifest["saved_at"]
    return former.visualdl, ResumePoint(step, saved_at, [row for _, row in kept], repeated)


@dataclass(eq=False)
class VisualDL(Callback, Options):
    """Writes the pages of VisualDL's dashboard; other callbacks add to them (`VisualDL.board`).

    pages: which to write, by default scalars, text and hparams: some of scalars, histograms,
        images, figures, text, hparams, curves, embeddings and graph; or True (the first six),
        "all", or False.
    """

    heading = "looking inside"

    pages: tuple[str, ...] = option(
        ("scalars", "text", "hparams"),
        "comma-separated VisualDL pages; or true (the usual ones), all, false",
        flat="visualdl",
        bare="true",
        parse=_parse_pages,
    )
    _board: "Optional[VisualDLWriter]" = field(default=None, init=False, repr=False)

    @staticmethod
    def board(training: Training) -> "VisualDLWriter":
        """Return the writer of the run's pages; only the main process writes any."""
        return (training.callback(VisualDL) or VisualDL(()))._opened(training)

    def _opened(self, training: Training) -> "VisualDLWriter":
        from paddle_mnist.metrics.visualdl import VisualDLWriter

        if self._board is None:
            run = training.run
            pages = self.pages if training.world.is_main_process else ()
            watch = training.callback(Watch)
            every = (watch and watch.every) or training.log_every
            if training.steps:  # a short run gets about HISTOGRAMS, too
                every = min(every, max(1, training.steps // HISTOGRAMS))
            splits = ("train", *training.evaluator.datasets)
            self._board = VisualDLWriter(run.visualdl / "001", pages, every, splits)
            if pages:
                self._board.continue_from(*_former_records(training))
        return self._board

    def check_training(self, training: Training) -> None:
        other = [page for page in PAGES_OF_OTHERS if page in self.pages]
        is_chosen = other and self.pages not in (PAGES_OF_TRUE, PAGES)
        if is_chosen and all(type(callback) in BUNDLED for callback in training.callbacks):
            raise ConfigError(
                f"VisualDL: pages has {', '.join(other)}, which fit does not write, and no "
                "callback does; leave them out, or pass a callback that uses VisualDL.board"
            )
        if not {"images", "figures"}.isdisjoint(self.pages):
            require_zlib("images and figures on the dashboard")

    def before_training(self, training: Training) -> None:
        from paddle_mnist.metrics.visualdl import ABOUT_RUN
        from paddle_mnist.system.environment import describe_environment
        from paddle_mnist.training.results import describe_training

        board = self._opened(training)
        board.text("configuration", training.config)
        board.text("environment", describe_environment(training.device))
        board.text(ABOUT_RUN, describe_training(training))

    def after_step(self, view: View) -> None:
        if self._board and not is_rehearsal():  # it runs when the board is already open
            self._board.after_step(view)

    def write(self, state: TrainState, values: Mapping[str, float]) -> None:
        if self._board:
            self._board.write(state, values)

    def after_training(self, training: Training, result: FitResult) -> None:
        from paddle_mnist.metrics.visualdl import ABOUT_RUN
        from paddle_mnist.training.results import describe_result

        self._log_command(training)
        board = self._opened(training)
        board.text(ABOUT_RUN, describe_result(training, result), result.steps)
        scores = {tag.replace("/", "_"): value for tag, value in result.metrics.items()}
        board.hparams(training.hyperparameters, scores, result.steps)

    def already_finished(self, training: Training, result: FitResult) -> None:
        self._log_command(training)

    def _log_command(self, training: Training) -> None:
        """Log how to open the dashboard."""
        if self.pages:
            log.info(
                "dashboard: %s", shlex.join(["paddle-mnist", "dashboard", str(training.run.path)])
            )

    def close(self) -> None:
        board, self._board = self._board, None
        if board:
            board.close()


@dataclass(eq=False)
class Figures(Callback, Options):
    """Draws the curves of the metrics at the end of the run; a subclass draws more.

    draw: whether to draw them. names: (attribute) of the figures that a run may have.
    """

    heading = "looking inside"
    names: ClassVar[Sequence[str]] = FIGURES

    draw: bool = option(True, "draw figures at the end of the run", flat="figures")

    def draw_figures(self, training: Training) -> Mapping[str, AnyFigure]:
        """Return the figures of a finished run by name, or functions that draw them."""
        from paddle_mnist.plots.curves import figures_of
        from paddle_mnist.plots.history import read_history

        return figures_of(read_history(training.run.metrics))

    def after_training(self, training: Training, result: FitResult) -> None:
        """Draw the figures, and show them on the dashboard. Raises OutputError."""
        from paddle_mnist.plots.drawing_process import save_figures

        if self.draw and training.world.is_main_process:
            pixels = save_figures(self.draw_figures(training), training.run.figures)
            VisualDL.board(training).figures(pixels, result.steps)

    def already_finished(self, training: Training, result: FitResult) -> None:
        """Draw missing figures, for example because the disk was full."""
        from paddle_mnist.plots.curves import was_watched
        from paddle_mnist.plots.figure import save_figures
        from paddle_mnist.plots.history import read_history

        if not self.draw or not training.world.is_main_process:
            return
        run = training.run
        watched = was_watched(read_history(run.metrics))
        names = [name for name in self.names if name != "health" or watched]
        missing = [name for name in files_of(names) if not (run.figures / name).exists()]
        if missing:
            log.info("drawing what is missing in %s: %s", run.figures, ", ".join(missing))
            save_figures(self.draw_figures(training), run.figures, missing)


# All callbacks of this module, and those that every run has by default.
BUNDLED = (EarlyStopping, Watch, Profile, Console, VisualDL, Figures)
DEFAULTS: tuple[type[Callback], ...] = (Console, VisualDL, Figures)


def with_defaults(callbacks: Sequence[Callback]) -> list[Callback]:
    """Append the callbacks of `DEFAULTS` whose class is missing."""
    missing = [
        kind for kind in DEFAULTS if not any(isinstance(callback, kind) for callback in callbacks)
    ]
    return [*callbacks, *(kind() for kind in missing)]
