"""The names of the figures that a training on digits draws."""

from paddle_mnist.plots.figure_files import files_of

FIGURES = (
    "curves",
    "learning_rate",
    "confusion_matrix",
    "per_class",
    "kernels",
    "feature_maps",
    "mistakes",
    "health",
)
FIGURE_FILES = files_of(FIGURES)
