"""The names of the figures that a training on digits draws."""

from paddle_mnist.plots.figure_files import files_of

DIGIT_FIGURES = (
    "curves",
    "learning_rate",
    "confusion_matrix",
    "per_class",
    "kernels",
    "feature_maps",
    "mistakes",
    "health",
)
DIGIT_FIGURE_FILES = files_of(DIGIT_FIGURES)
