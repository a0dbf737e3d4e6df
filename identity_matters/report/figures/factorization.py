"""Figures of Theorem 2.1: factorizations against bounds, and the optimum."""

import itertools
from collections.abc import Iterator

from matplotlib import ticker

from identity_matters.report import figures as fig
from identity_matters.report.figures import curve, of_kind, panels, series, split
from identity_matters.runs import Run

# Factorizations (experiments/factorization.py)
_BOUND_STYLES = {
    "bound_iclr2017": ("printed bound, ICLR 2017", ":"),
    "bound_v3": ("printed bound, v3", "--"),
    "bound_polar": ("(π + 3γ)/ℓ", "-."),
    "lower_bound": ("lower bound", "-"),
}
_METHODS = {
    "svd": "svd (the paper's)",
    "polar": "polar",
    "psd": "positive root",
    "root": "principal root",
    "path": "shortest path",
    "paired": "paired",
}
# Their targets are of another strength than those of 16 and 256 dimensions, so a line
# through both would have kinks.
_NOT_JOINED = (17, 255)
# A smaller excess, in percent, counts as none.
_NO_EXCESS = 0.01
_PANELS = {"random": "random", "ill_conditioned": "ill-conditioned", "normal": "normal"}
_BOUNDS_OF_PATHS = {
    "vector_lower_bound": "vectors one by one (F4)",
    "lower_bound": "and together (F10)",
}
_OF_PATHS = {
    "shortest_normal": "normal R, simple negative eigenvalues",
    "shortest_random": "Gaussian R",
}


def norm_points(run: Run) -> Iterator[dict]:
    """l |||A||| at the largest depth and strength, by every method and bound."""
    strongest = max((record.get("strength", 0) for record in run.records), default=0)
    for record in run.records if run.variant in _PANELS else ():
        if record.get("strength", 0) == strongest and record["rows"]:
            row = max(record["rows"], key=lambda row: row["depth"])
            norms = row["depth_times_norms"] | {
                b: row["depth"] * row[b] for b in _BOUND_STYLES
            }
            same = {"dimension": record["dimension"], "depth_layers": row["depth"]}
            for name, norm in norms.items():
                yield {**same, "curve": name, "depth_times_norm": norm}


@fig.figure("factorization", "norms", norm_points)
def draw_norms(points: fig.Points, canvas: fig.Canvas) -> None:
    names = ("dimension", "depth_times_norm")
    shown = [point for point in points if point["dimension"] not in _NOT_JOINED]
    for axes, in_panel in panels(canvas, shown, "variant", _PANELS, legend=4):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(ticker.LogLocator(base=4, subs=[0.5]))
        axes.xaxis.set_major_formatter("{x:.0f}")
        axes.set_yscale("log")
        axes.set(xlabel="dimension d", ylabel=fig.DEPTH_TIMES_NORM)
        for bound, (label, line) in _BOUND_STYLES.items():
            rows = [point for point in in_panel if point["curve"] == bound]
            curve(axes, rows, *names, line, color="0.2", linewidth=1.0, label=label)
        # Hollow markers, so that equal norms of other methods show through.
        for looks, rows in series(in_panel, "curve", _METHODS):
            curve(axes, rows, *names, "o", **looks, markerfacecolor="none")
        axes.set_xlim(left=1.8)  # so that 2 has its tick


def gap_points(run: Run) -> Iterator[dict]:
    """The largest excess of |||A||| over the lower bounds below 1."""
    largest: dict[tuple[int, str], float] = {}
    for record in run.records:
        for row in record["rows"]:
            if row["lower_bound"] > 0 and not row["lower_bound_is_1"]:
                for method, name in (("polar", "polar"), ("best", row["best_method"])):
                    if (norm := row["norms"].get(name)) is not None:
                        place = record["dimension"], method
                        excess = 100 * (norm / row["lower_bound"] - 1)
                        largest[place] = max(excess, largest.get(place, 0.0))
    for (dimension, method), excess in largest.items():
        yield {"dimension": dimension, "method": method, "excess_percent": excess}


@fig.figure("factorization", "gap", gap_points)
def draw_gaps(points: fig.Points, canvas: fig.Canvas) -> None:
    worst = {
        variant: max(point["excess_percent"] for point in of_variant)
        for variant, of_variant in sorted(split(points, "variant").items())
    }
    names = {variant: variant.replace("_", " ") for variant in worst}
    drawn = {name: names[name] for name in worst if worst[name] >= _NO_EXCESS}
    optimal = [names[name] for name in worst if name not in drawn]
    for axes, in_panel in panels(
        canvas, points, "method", "{} factorization".format, legend=3
    ):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:.0f}")
        axes.set_yscale("log")
        axes.set(ylim=(0.7 * _NO_EXCESS, 100), xlabel="dimension d")
        axes.set_ylabel("excess over the lower bound, percent")
        for looks, rows in series(in_panel, "variant", drawn):
            columns = ("dimension", "excess_percent")
            joined = [row for row in rows if row["dimension"] not in _NOT_JOINED]
            alone = [row for row in rows if row["dimension"] in _NOT_JOINED]
            curve(axes, joined, *columns, "o-", floor=_NO_EXCESS, **looks)
            unnamed = looks | {"label": None, "markerfacecolor": "none"}
            curve(axes, alone, *columns, "o", floor=_NO_EXCESS, **unnamed)
    axes.text(
        x=0.03,
        y=0.97,
        s="\n".join(["at the bound, and not drawn,", "in both panels:", *optimal]),
        transform=axes.transAxes,
        va="top",
        fontsize=8,
    )


def shortest_points(run: Run) -> Iterator[dict]:
    """The excess of the best |||A||| over F4 of docs/theory/factorization.md.

    It is also given over F4 with F10.
    """
    for target, record in enumerate(run.records if run.variant in _OF_PATHS else ()):
        for row, bound in itertools.product(record["rows"], _BOUNDS_OF_PATHS):
            yield {
                "dimension": record["dimension"],
                "target": target,
                "bound": bound,
                "excess_percent": (
                    100 * (row["norms"][row["best_method"]] / row[bound] - 1)
                ),
            }


@fig.figure("factorization", "shortest", shortest_points)
def draw_shortest(points: fig.Points, canvas: fig.Canvas) -> None:
    for axes, in_panel in panels(canvas, points, "variant", _OF_PATHS, legend=2):
        axes.set_yscale("symlog", linthresh=_NO_EXCESS)
        axes.set(ylim=(0, 100), ylabel="excess of the shortest path, percent")
        axes.set_xlabel("dimension d, targets side by side")
        placed = list(_side_by_side(in_panel))
        for looks, rows in series(placed, "bound", _BOUNDS_OF_PATHS):
            fig.scatter(axes, rows, "place", "excess_percent", **looks, clip_on=False)
        axes.axhline(2, color="0.2", linewidth=1.0, linestyle="--")


def _side_by_side(points: fig.Points) -> Iterator[dict]:
    """The points with a "place" within 0.35 of their dimension for each target."""
    for dimension, same in split(points, "dimension").items():
        targets = list(split(same, "target seed").values())
        for number, rows in enumerate(targets):
            offset = 0.7 * (number + 0.5) / len(targets) - 0.35
            for row in rows:
                yield {**row, "place": dimension + offset}


# The optimum at every depth (experiments/optimum.py)
_OF_OPTIMUM = {
    "polar": "polar layers",
    "optimal": "optimum, attained",
    "vectors": "bound by single vectors",
}


def optimum_points(run: Run) -> Iterator[dict]:
    """l |||A||| over l for each target of the run's curves."""
    for record in of_kind(run, "curve"):
        for row in record["rows"]:
            for name in _OF_OPTIMUM:
                yield {
                    "largest": -record["diagonal"][0],
                    "least": -record["diagonal"][1],
                    "depth_layers": row["depth"],
                    "curve": name,
                    "norm": row[name],
                    "depth_times_norm": row["depth"] * row[name],
                }


@fig.figure("optimum", "curve", optimum_points)
def draw_optimum(points: fig.Points, canvas: fig.Canvas) -> None:
    shown = [point for point in points if point["norm"] < 1]
    title = "R = −diag({0:g}, 1/{0:g})".format
    for axes, in_panel in panels(canvas, shown, "largest", title, legend=3):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:.0f}")
        axes.set(xlabel="layers ℓ", ylabel=fig.DEPTH_TIMES_NORM)
        for looks, rows in series(in_panel, "curve", _OF_OPTIMUM):
            line = "o-" if looks["label"] == _OF_OPTIMUM["optimal"] else "o--"
            curve(axes, rows, "depth_layers", "depth_times_norm", line, **looks)
