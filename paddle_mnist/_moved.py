"""Import paths of version 0.1, which version 0.2 still takes, with a warning."""

import importlib
import sys
import types
import warnings
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec

REMOVED_IN = "0.3.0"  # what is deprecated works for one minor version

# The old module, and those in which its names are now.
MOVED = {
    "augment": ("mnist.augment",),
    "average": ("nn.ema",),
    "chunks": ("nn.chunks",),
    "cli": ("commands", "commands._train_options"),
    "config": ("mnist.config", "errors"),
    "dashboard": ("apps.dashboard",),
    "data.arrays": ("mnist.arrays",),
    "data.cache": ("mnist.cache",),
    "data.dataset": ("mnist.dataset", "data.loader", "data.collate"),
    "data.readers": ("mnist.readers", "mnist.json_reader", "mnist.embedded_digits"),
    "data.sources": ("mnist.sources",),
    "demo": ("apps.demo",),
    "device": ("system.devices",),
    "diagnosis": ("monitor.diagnosis",),
    "distributed": ("parallel.world",),
    "drawing_pad": ("apps.drawing_pad",),
    "evaluator": ("training.evaluator",),
    "exchange": ("parallel.gradients",),
    "export": ("mnist.export",),
    "figures": ("mnist.figures", "plots.curves", "plots.classes", "plots.charts", "plots.figure"),
    "files": ("system.files",),
    "fluid": ("legacy.fluid",),
    "heartbeat": ("system.heartbeat",),
    "infer": ("mnist.infer", "mnist.reading", "mnist.sheets"),
    "loopback": ("apps.loopback",),
    "machine": ("system.machine",),
    "model": ("mnist.model",),
    "optim": ("nn.optim",),
    "parameter_server": ("legacy.parameter_server",),
    "pictures": ("mnist.pictures",),
    "predictor": ("mnist.predictor",),
    "pretrained": ("mnist.pretrained",),
    "processes": ("parallel.process_count",),
    "profiling": ("monitor.profiler",),
    "randomness": ("nn.seeding",),
    "report": ("mnist.report", "plots.history"),
    "run": ("mnist.run", "mnist.result"),
    "rundir": (
        "training.run_directory",
        "checkpoint.run_files",
        "training.resume",
        "checkpoint.saved_weights",
    ),
    "sampler": ("data.sampler",),
    "score": ("mnist.evaluate_checkpoint",),
    "signals": ("system.signals",),
    "spawning": ("parallel.spawn",),
    "start": ("mnist.setup", "training.initialize"),
    "supervisor": ("system.supervisor",),
    "trainer": ("training.trainer",),
    "visual": ("metrics.visualdl",),
    "watching": ("monitor.watch", "monitor.hooks", "monitor.print_layers"),
    "writers": ("metrics.console", "metrics.jsonl", "metrics.writers"),
}


# Names of modules that are still there: where each is now, and after a colon what it is called.
MOVED_NAMES = {
    "paddle_mnist.data": {
        "CLASSES": "paddle_mnist.mnist.arrays",
        "Data": "paddle_mnist.mnist.arrays",
        "MODES": "paddle_mnist.mnist.arrays",
        "SIZE": "paddle_mnist.mnist.arrays",
        "Source": "paddle_mnist.mnist.sources",
        "Split": "paddle_mnist.mnist.arrays",
        "find_source": "paddle_mnist.mnist.sources",
        "open_data": "paddle_mnist.mnist.cache",
    },
    "paddle_mnist.checkpoint.contents": {
        "load": "paddle_mnist.checkpoint.weights",
        "load_into": "paddle_mnist.checkpoint.weights",
    },
    "paddle_mnist.checkpoint.policy": {
        "Keep": "paddle_mnist.checkpoint.policy:RetentionPolicy",
        "SaveWhen": "paddle_mnist.checkpoint.policy:SavePolicy",
    },
}

# Names that are others in the new modules, by old module and old name.
RENAMED = {
    "score": {"score_checkpoint": "load_and_evaluate"},
    "watching": {"printed": "print_layers", "print_at": "print_in_batches"},
}


class _MovedModules(MetaPathFinder, Loader):
    """Finds a module at its old path: one that has the names of those that took its place."""

    def find_spec(self, fullname, path=None, target=None):
        package, _, name = fullname.partition(".")
        if package != __package__ or name not in MOVED:
            return None
        return ModuleSpec(fullname, self)

    def exec_module(self, module: types.ModuleType) -> None:
        package, _, name = module.__name__.partition(".")
        places = [f"{package}.{place}" for place in MOVED[name]]
        warnings.warn(
            f"{module.__name__} has moved to {' and '.join(places)}; version {REMOVED_IN} removes "
            "the old path",
            DeprecationWarning,
            stacklevel=2,
        )
        for place in reversed(places):
            names = vars(importlib.import_module(place))
            module.__dict__.update({k: v for k, v in names.items() if not k.startswith("__")})
        for old, new in RENAMED.get(name, {}).items():
            setattr(module, old, getattr(module, new))


def install() -> None:
    """Have Python look for modules at their old paths, after it has looked everywhere else."""
    if not any(isinstance(finder, _MovedModules) for finder in sys.meta_path):
        sys.meta_path.append(_MovedModules())
