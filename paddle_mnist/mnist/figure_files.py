"""The names of the figures that a training on digits draws."""

# Each is drawn as .png and .svg.
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
FIGURE_FILES = tuple(f"{name}.{kind}" for name in FIGURES for kind in ("png", "svg"))
COMPARED_FILES = ("compare.png", "compare.svg")  # several runs in one figure
