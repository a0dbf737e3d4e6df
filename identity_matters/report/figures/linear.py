"""Figures of Theorem 2.1, eq. (2.3) and the landscape of linear residual nets."""

import itertools
import statistics
from collections.abc import Iterator

import numpy as np
from matplotlib.lines import Line2D

from identity_matters.report import figures as fig
from identity_matters.report.figures import (
    Looks,
    curve,
    curves,
    of_kind,
    panels,
    series,
    split,
)
from identity_matters.runs import Run

# Factorizations (experiments/factorization.py)
_BOUND_STYLES = {
    "bound_iclr2017": ("printed bound, ICLR 2017", ":"),
    "bound_v3": ("printed bound, v3", "--"),
    "bound_polar": ("(π + 3γ)/l", "-."),
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
    """l |||A||| at the largest depth, by every method and bound, for the strongest
    targets.
    """
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
    for axes, own in panels(canvas, points, "variant", _PANELS, legend=4):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:.0f}")
        axes.set(yscale="log", xlabel="dimension d", ylabel="l · |||A|||")
        for bound, (label, line) in _BOUND_STYLES.items():
            rows = [point for point in own if point["curve"] == bound]
            curve(axes, rows, *names, line, color="0.2", linewidth=1.0, label=label)
        # Hollow markers, so that equal norms of other methods show through.
        curves(
            axes, series(own, "curve", _METHODS), *names, "o", markerfacecolor="none"
        )


def gap_points(run: Run) -> Iterator[dict]:
    """The largest excess of |||A||| over a lower bound in (0, 1), over the depths that
    have one.
    """
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
    variants = {
        name: name.replace("_", " ") for name in sorted(split(points, "variant"))
    }
    # Each variant has a marker and a colour; when the markers repeat, the lines are
    # dashed.
    lines = (
        marker + line for line in itertools.cycle(("-", "--")) for marker in "osv^Dx*"
    )
    styles = dict(zip(variants.values(), lines, strict=False))
    for axes, own in panels(
        canvas, points, "method", "{} factorization".format, legend=4
    ):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:.0f}")
        # An optimum up to rounding has excess 0, which a logarithmic axis cannot show.
        axes.set_yscale("symlog", linthresh=0.01)
        axes.set(
            ylim=(0, 100),
            xlabel="dimension d",
            ylabel="excess over the lower bound, percent",
        )
        for style, rows in series(own, "variant", variants):
            curve(
                axes,
                rows,
                "dimension",
                "excess_percent",
                styles[style["label"]],
                **style,
            )


def shortest_points(run: Run) -> Iterator[dict]:
    """The excess of the best |||A||| over F4 of docs/theory/factorization.md; over F4
    with F10.
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
    for axes, own in panels(canvas, points, "variant", _OF_PATHS, legend=2):
        axes.set_yscale("symlog", linthresh=0.01)
        axes.set(ylim=(0, 100), ylabel="excess of the shortest path, percent")
        axes.set_xlabel("target, by dimension")
        targets = sorted(split(own, "dimension target seed").items())
        places = [
            {**row, "place": at} for at, (_, rows) in enumerate(targets) for row in rows
        ]
        curves(
            axes,
            series(places, "bound", _BOUNDS_OF_PATHS),
            "place",
            "excess_percent",
            "o",
        )
        axes.axhline(2, color="0.2", linewidth=1.0, linestyle="--")


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
    for axes, own in panels(canvas, shown, "largest", title, legend=3):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:.0f}")
        axes.set(xlabel="layers l", ylabel="l · |||A|||")
        for style, rows in series(own, "curve", _OF_OPTIMUM):
            line = "-" if style["label"] == _OF_OPTIMUM["optimal"] else "--"
            curve(axes, rows, "depth_layers", "depth_times_norm", line + "o", **style)


# Eq. (2.3) in its two printed forms and corrected (experiments/gradient_bound.py)
_LABELS = {
    "iclr2017": "printed at ICLR 2017",
    "v3": "printed in v3",
    "corrected": "corrected",
}
_STYLES: Looks = {"iclr2017": ":", "v3": "--", "corrected": "-"}


def distribution_points(run: Run) -> Iterator[dict]:
    """One row for each bin of log10(right/left), over all random points of the run."""
    records = of_kind(run, "random")
    if not records:
        return
    counts = np.sum([record["histogram_counts"] for record in records], axis=0)
    total = sum(record["points"] for record in records)
    first, last = records[0]["histogram_log10"]
    edges = np.linspace(first, last, records[0]["histogram_bins"] + 1).tolist()
    for (low, high), count in zip(itertools.pairwise(edges), counts, strict=True):
        yield {
            "form": records[0]["form"],
            "log10_ratio_from": low,
            "log10_ratio_to": high,
            "log10_ratio": (low + high) / 2,
            "points_percent": 100 * int(count) / total,
            "points": total,
            "failures_percent": run.summary["metrics"]["failures_percent"],
        }


@fig.figure("gradient_bound", "distribution", distribution_points)
def draw_distribution(points: fig.Points, canvas: fig.Canvas) -> None:
    axes = canvas.subplots()
    for style, rows in series(points, "form", _LABELS):
        share = statistics.fmean(row["failures_percent"] for row in rows)
        style["label"] += f": fails at {share:.3g} %"
        curve(
            axes,
            rows,
            "log10_ratio",
            "points_percent",
            "-",
            drawstyle="steps-mid",
            **style,
        )
    axes.axvline(0.0, color="black", linestyle="--", linewidth=1)
    axes.set(yscale="log", ylabel="percent of random points per bin")
    ratio = "log10(right-hand side / squared gradient)"
    axes.set_xlabel(f"{ratio}; right of the line the form is false")
    axes.legend(loc="upper left")


def tight_family_points(run: Run) -> Iterator[dict]:
    """right/left at A_i = -tau I, Sigma = s I for each depth, tau, s and width."""
    for record in of_kind(run, "tight"):
        yield from ({"form": record["form"], **row} for row in record["rows"])


@fig.figure("gradient_bound", "tight_family", tight_family_points)
def draw_tight_family(points: fig.Points, canvas: fig.Canvas) -> None:
    by_width = split(points, "width")
    depths = {depth: f"l = {depth}" for depth in sorted(split(points, "depth"))}
    shown = sorted(by_width[min(by_width)], key=lambda point: point["scale"])
    for axes, own in panels(canvas, shown, "scale", "Σ = {:g} I".format):
        axes.set(yscale="log", xlabel="τ", ylabel="right-hand side / squared gradient")
        # Beyond six decades there is nothing new: the ICLR form goes on as
        # (1-tau)^{-(l-1)}.
        axes.set_ylim(0.1, 1e6)
        for style, some in series(own, "depth", depths):
            for form, rows in split(some, "form").items():
                curve(axes, rows, "tau", "ratio", _STYLES[form], color=style["color"])
    handles = [Line2D([], [], **style) for style, _ in series(shown, "depth", depths)]
    handles += [
        Line2D([], [], color="black", ls=_STYLES[f], label=_LABELS[f]) for f in _LABELS
    ]
    canvas.legend(handles=handles, loc="outside lower center", ncols=4)


# The wall at |||A||| = 1, the origin, and det R < 0 (experiments/landscape.py)


def wall_points(run: Run) -> Iterator[dict]:
    """One row for each critical point reached: |||A||| and its relative excess risk."""
    names = "width depth started_at_norm=started_at_norms norm=norms relative_excess"
    tests = "gradient_norms gradient_tolerance"
    for row in fig.rows(of_kind(run, "critical_points"), f"{names} {tests}"):
        if row.pop("gradient_norms") <= row.pop("gradient_tolerance"):
            row["norm"] = float(f"{row['norm']:.6g}")
            row["relative_excess"] = float(f"{row['relative_excess']:.3g}")
            yield row


@fig.figure("landscape", "wall", wall_points)
def draw_wall(points: fig.Points, canvas: fig.Canvas) -> None:
    axes = canvas.subplots()
    starts = {False: "start inside the ball", True: "start outside, and A_i = −I"}
    points = [{**point, "outside": point["started_at_norm"] >= 1} for point in points]
    for style, rows in series(points, "outside", starts):
        fig.scatter(axes, rows, "norm", "relative_excess", floor=1e-24, **style)
    axes.axvline(1.0, color="black", linestyle="--", linewidth=1)
    axes.set(yscale="log", xlim=(0, 3), xlabel="|||A||| of the critical point")
    axes.set_ylabel("excess risk / risk of the map 0")
    axes.legend(loc="center right")


def origin_points(run: Run) -> list[dict]:
    """One row per Hessian eigenvalue at zero weights, for the R farthest from I and
    least width.
    """
    by_width = split(of_kind(run, "hessian_at_origin"), "width")
    farthest: list[dict] = []
    for record in by_width[min(by_width)] if by_width else ():
        size = max(net["target_size"] for net in record["nets"])
        farthest += [
            record | net for net in record["nets"] if net["target_size"] == size
        ]
    names = (
        "net width depth target_size gradient_norm"
        " hessian_eigenvalue=hessian_eigenvalues"
    )
    return fig.rows(farthest, names)


@fig.figure("landscape", "origin", origin_points)
def draw_origin(points: fig.Points, canvas: fig.Canvas) -> None:
    spectrum, gradient = canvas.subplots(1, 2)
    nets = {"residual": "residual net", "standard": "standard net"}
    marks = (("o", 0.12), ("x", -0.12))
    for (style, rows), (marker, offset) in zip(
        series(points, "net", nets), marks, strict=True
    ):
        rows = [{**row, "place": row["depth"] + offset} for row in rows]
        fig.scatter(
            spectrum, rows, "place", "hessian_eigenvalue", marker, **style, alpha=1.0
        )
        curve(gradient, rows, "place", "gradient_norm", marker, **style)
    spectrum.set(xlabel="depth l", ylabel="eigenvalues of the Hessian at zero weights")
    gradient.set(xlabel="depth l", ylabel="norm of the gradient at zero weights")
    spectrum.legend()
    gradient.legend()


def negative_determinant_points(run: Run) -> Iterator[dict]:
    """One row for each ball: the least ||grad f||_F in it, its floor; first R and Sigma
    only.
    """
    for record in of_kind(run, "negative_determinant"):
        least, floors = record["least_gradient_norms"][0], record["floors"][0]
        for tau, norm, floor in zip(record["taus"], least, floors, strict=True):
            same = fig.pick(record, "width depth")
            yield {
                **same,
                "tau": tau,
                "room": 1 - tau,
                "least_gradient_norm": norm,
                "floor": floor,
            }


@fig.figure("landscape", "negative_determinant", negative_determinant_points)
def draw_negative_determinant(points: fig.Points, canvas: fig.Canvas) -> None:
    points = sorted(points, key=lambda point: (point["width"], point["depth"]))
    for axes, own in panels(canvas, points, "width", "d = {}".format):
        axes.set(xscale="log", xlabel="1 − τ")
        axes.set(yscale="log", ylabel="least norm of the gradient in B_τ")
        for style, rows in series(own, "depth", "l = {}, found".format):
            curve(axes, rows, "room", "least_gradient_norm", "o", **style)
            curve(axes, rows, "room", "floor", "--", **style | {"label": "its floor"})
        axes.invert_xaxis()
    canvas.axes[0].legend(fontsize=7)
