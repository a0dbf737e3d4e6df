"""The figures of the report: the points they take from runs, and how these are drawn.

The files with the figures are named after what they show. To add a figure, write one
function that takes points from a run and one that draws the points of all runs, and
declare both with `registry.figure`; a new file is also imported here. Drawing sees
nothing but the points, which are also saved as CSV; the same points give the same
bytes.

* style.py: colours, marks, fonts, and the dark mode;
* drawing.py: series, panels, curves, the legend below;
* registry.py: what a figure is, and the list of all;
* saving.py: the files, and what happens if a run's records are malformed.
"""

# Importing these files declares their figures, in the order of FIGURES.
from identity_matters.report.figures import (
    ablations,
    cifar,
    comparisons,
    deep_mlp,
    descent,
    factorization,
    gradient_bound,
    landscape,
    memorize,
    memorize_at_scale,
    relu,
    sampled,
)
from identity_matters.report.figures.registry import FIGURES, Figure
from identity_matters.report.figures.saving import save, write_csv

__all__ = [
    "FIGURES",
    "Figure",
    "ablations",
    "cifar",
    "comparisons",
    "deep_mlp",
    "descent",
    "factorization",
    "gradient_bound",
    "landscape",
    "memorize",
    "memorize_at_scale",
    "relu",
    "sampled",
    "save",
    "write_csv",
]
