"""Figures of experiments/nonlinear_conjecture.py: bad critical points, gradient ratios, noise."""

from matplotlib.figure import Figure as Canvas

from identity_matters.records import Run
from identity_matters.report.figure import COLOURS, Figure
from identity_matters.report.hover import at_least

# Shares of rounding size, 0 included, are drawn at this height of a logarithmic axis.
_DRAWN_ZERO = 1e-20
_LARGEST_DRAWN_NORM = 2.0
_DRAWN_KINDS = ("optimal", "no negative curvature", "saddle", "all dead", "zero unit", "outside")


def _records(runs, variant: str) -> list[dict]:
    return [
        record for run in runs if run.variant == variant and run.seed == 0 for record in run.records
    ]


def limit_points(runs: list[Run]) -> list[dict]:
    """One row for each critical point that the searches reached, those at kinks left out."""
    rows = []
    for record in _records(runs, "search"):
        if record["measured"] != "search":
            continue
        columns = (record[name] for name in ("kinds", "descends", "max_norm", "risk_share"))
        for kind, descends, norm, share in zip(*columns, strict=True):
            name = record["kind_names"][kind]
            if name in _DRAWN_KINDS:
                rows.append(
                    {
                        "depth": record["depth"],
                        "width": record["width"],
                        "maps": record["lifted_width"] > record["width_in"],
                        "bias": record["bias"],
                        "pairs": record["pairs"],
                        "descends": descends,
                        "kind": name,
                        "norm": norm,
                        "risk_share": share,
                    }
                )
    return rows


def draw_limits(points: list[dict], figure: Canvas) -> None:
    axes = figure.subplots()
    for colour, kind in zip(COLOURS, _DRAWN_KINDS, strict=False):
        rows = [point for point in points if point["kind"] == kind]
        axes.plot(
            [row["norm"] for row in rows],
            [at_least(row["risk_share"], _DRAWN_ZERO) for row in rows],
            "o",
            color=colour,
            alpha=0.5,
            markeredgewidth=0,
            label=f"{kind} ({len(rows)})",
        )
    axes.axvline(1.0, color="black", linestyle="--", linewidth=1)
    axes.set_yscale("log")
    axes.set_xlim(0, _LARGEST_DRAWN_NORM)
    axes.set_xlabel("|||θ||| of the critical point")
    axes.set_ylabel("f / f(0); the teacher has 0")
    axes.legend(loc="center right", fontsize=8)


def ratio_points(runs: list[Run]) -> list[dict]:
    """One row for each net and norm: least, median and searched ‖∇f‖² / f."""
    return [
        {
            "depth": record["depth"],
            "width": record["width"],
            "examples": 2 * record["pairs"],
            "bias": record["bias"],
            "norm": norm,
            "median_ratio": median,
            "least_ratio": least,
            "searched_ratio": searched,
        }
        for record in _records(runs, "gradient_ratio")
        for norm, median, least, searched in zip(
            *(record[n] for n in ("norms", "median_ratio", "least_ratio", "searched_ratio")),
            strict=True,
        )
    ]


def draw_ratio(points: list[dict], figure: Canvas) -> None:
    axes = figure.subplots()
    nets = dict.fromkeys((p["depth"], p["width"], p["bias"]) for p in points)
    for colour, (depth, width, bias) in zip(COLOURS, nets, strict=False):
        rows = [p for p in points if (p["depth"], p["width"], p["bias"]) == (depth, width, bias)]
        norms = [row["norm"] for row in rows]
        label = f"l = {depth}, k = {width}, {'biases' if bias else 'no biases'}"
        for style, name in (("-", "median_ratio"), (":", "least_ratio"), ("x", "searched_ratio")):
            heights = [at_least(row[name], _DRAWN_ZERO) for row in rows]
            shown = label if name == "median_ratio" else None
            axes.plot(norms, heights, style, color=colour, label=shown)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("norm of every U_j, V_j and s_j")
    axes.set_ylabel("‖∇f‖² / f")
    axes.legend(fontsize=8)


def noise_points(runs: list[Run]) -> list[dict]:
    """One row for each net and deviation of the start: how often the optimum was reached."""
    return [
        {
            "depth": record["depth"],
            "width": record["width"],
            "bias": record["bias"],
            "deviation": scale,
            "success_share": success,
            "stuck_share": stuck,
            "median_updates_to_half": updates,
        }
        for record in _records(runs, "noise")
        for scale, success, stuck, updates in zip(
            *(
                record[name]
                for name in ("scales", "success_share", "stuck_share", "median_updates_to_half")
            ),
            strict=True,
        )
    ]


def draw_noise(points: list[dict], figure: Canvas) -> None:
    by_width, by_scale = figure.subplots(1, 2)
    nets = dict.fromkeys((p["depth"], p["bias"]) for p in points)
    for colour, (depth, bias) in zip(COLOURS, nets, strict=False):
        own = [p for p in points if (p["depth"], p["bias"]) == (depth, bias)]
        label = f"l = {depth}, {'biases' if bias else 'no biases'}"
        noisy = [p for p in own if p["deviation"] > 0]
        widths = sorted({p["width"] for p in noisy})
        shares = [[p["success_share"] for p in noisy if p["width"] == width] for width in widths]
        by_width.plot(widths, [sum(s) / len(s) for s in shares], "o-", color=colour, label=label)
        widest = [
            p
            for p in noisy
            if p["width"] == max(widths) and p["median_updates_to_half"] is not None
        ]
        by_scale.plot(
            [p["deviation"] for p in widest],
            [p["median_updates_to_half"] for p in widest],
            "o-",
            color=colour,
        )
    by_width.set_xscale("log", base=2)
    by_width.set_ylim(0, 1.05)
    by_width.set_xlabel("width k (teacher: 1)")
    by_width.set_ylabel("share of starts that reach the optimum")
    by_width.legend(fontsize=8)
    by_scale.set_xscale("log")
    by_scale.set_xlabel("deviation of the start, widest net")
    by_scale.set_ylabel("median updates to half the risk")


FIGURES = (
    Figure(
        name="nonlinear_limits",
        experiment="nonlinear_conjecture",
        title="One ReLU a block: bad critical points inside the ball",
        caption=(
            "Every critical point that was reached from random starts in the ball, for targets that"
            " a net in the ball meets exactly. Theorem 2.2 for such nets would put all points left"
            " of the dashed line at the bottom. Compare the wall of linear residual nets at"
            " |||A||| = 1."
        ),
        points=limit_points,
        draw=draw_limits,
    ),
    Figure(
        name="nonlinear_gradient_ratio",
        experiment="nonlinear_conjecture",
        title="No gradient bound holds over the whole ball",
        caption=(
            "‖∇f‖² / f over random nets of a given norm, for 4 examples: median (line), least"
            " (dotted) and the least that a descent on it meets (crosses; 0 is drawn at the"
            " bottom). At random points it falls with the square of the distance from the origin;"
            " the search finds points without any gradient at every distance, which by the feature"
            " bound have dependent features."
        ),
        points=ratio_points,
        draw=draw_ratio,
    ),
    Figure(
        name="nonlinear_noise",
        experiment="nonlinear_conjecture",
        title="Noise in the start frees the origin, width does the rest",
        caption=(
            "Gradient descent from Gaussian weights towards a teacher with one unit a block. Left:"
            " how often f falls to a hundredth of f(0). Right: the time to halve f grows with the"
            " logarithm of the deviation, the mark of a strict saddle. From exactly 0 no weight"
            " ever moves."
        ),
        points=noise_points,
        draw=draw_noise,
    ),
)
