"""The names of the figures that a training on digits draws."""

FIGURES = (  # that a run draws, each as .png and .svg
    *("curves", "learning_rate", "confusion_matrix", "per_class", "kernels", "feature_maps"),
    *("mistakes", "health"),
)
FIGURE_FILES = tuple(f"{name}.{kind}" for name in FIGURES for kind in ("png", "svg"))
COMPARED_FILES = ("compare.png", "compare.svg")  # several runs, one over another
