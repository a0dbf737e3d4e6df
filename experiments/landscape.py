"""Theorem 2.2: every critical point of a linear residual net inside B_1 is optimal.

Command: python -m experiments.landscape --config=:critical_points
Hardware and time: one CPU core; 3 s for critical_points, 1 s for hessian_at_origin and
2 s for negative_determinant, and up to 16 s more the first time, for compiling.

* critical_points: Levenberg-Marquardt, which finds saddles as readily as minima, solves
  grad f = 0 to ``||grad f|| <= 1e-11`` from random starts inside and outside the ball.
  Expected: about 700 such points with ``|||A||| <= 0.99``, all of them optimal, and as
  many that are not optimal, at norm 1 and beyond. Closer to the wall, say at norm
  0.9998, eq. (2.3) allows any excess at so small a gradient, and searches that approach
  a degenerate point do stop there.
* hessian_at_origin: at zero weights a standard net has gradient 0 from two layers on
  and a Hessian that is exactly 0 from three layers on (Kawaguchi 2016). A residual net
  has gradient ``2 (I - R) Sigma`` in every layer; Sigma is positive definite here, so
  it is 0 only if R = I.
* negative_determinant: with det R < 0 the ball holds no critical point at all. The
  least gradient found over B_tau stays above ``gradient_bound.squared_gradient_floor``,
  and for d = 1 reaches it.

Verdict: holds for all three. They are proved in docs/theory/gradient_bound.md; the
searches are attacks that could expose an error in the proof or the code.
"""

from experiments import run
from experiments.run.settings import configs
from experiments.run.trials import each, without
from experiments.run.verdicts import joined, largest, least, under_attack, where

_COMMON = {
    "max_condition_log10": 1.0,  # largest log10 of the condition number of Sigma
    "widths": (1, 2, 3),  # d
    "depths": (1, 2, 3),  # l
}
_SETTINGS: dict[str, dict] = {
    "critical_points": {
        "depths": (1, 2, 3, 4),
        "target_sizes": (0.2, 0.6, 1.2),  # of R = exp(size * Gaussian / sqrt(d))
        "start_taus": (0.1, 0.5, 0.9, 0.99),  # norms of the starts inside the ball
        "outside_norms": (1.5, 3.0),  # norms of the starts outside, for contrast
        "starts": 8,  # per target size and norm, each with its own data
        "steps": 100,  # most Levenberg-Marquardt steps
        "gradient_tolerance": 1e-11,  # critical means ||grad f||_F is at most this
        "wall_margin": 0.01,  # inside means |||A||| <= 1 - wall_margin
        # optimal means (f - C) / ||R Sigma^{1/2}||^2 is at most this
        "excess_tolerance": 1e-9,
        "least_inside": 100,  # number of critical points inside that the verdict needs
    },
    "hessian_at_origin": {
        "widths": (2,),
        "depths": (1, 2, 3, 4, 5, 6),
        "target_sizes": (0.0, 0.6),  # 0 gives R = I
    },
    "negative_determinant": {
        "taus": (0.1, 0.3, 0.5, 0.7, 0.9, 0.99),  # radii of the balls
        # pairs of R and Sigma for each width and depth, the same in every ball
        "problems": 4,
        "starts": 5,  # per problem and ball
        "steps": 300,  # updates of projected Adam
        "learning_rate": 0.05,  # of the first update; decays to 0
        "relative_tolerance": 1e-9,  # rounding alone costs about 2 l eps / (1 - tau)
    },
}
VARIANTS = tuple(_SETTINGS)
get_config = configs(_SETTINGS, _COMMON)


def trials(*, variant: str, **settings) -> list[dict]:
    """One trial for each width and depth."""
    if variant == "critical_points":
        settings["start_norms"] = settings["start_taus"] + settings["outside_norms"]
        settings = without(settings, "start_taus", "outside_norms")
    if variant != "hessian_at_origin":
        # Zero layers are added up to this depth,
        # so that all depths share one compilation.
        settings["max_depth"] = max(settings["depths"])
    return each(settings, {"widths": "width", "depths": "depth"}, kind=variant)


def _critical_points(settings: dict, records: list[dict]) -> run.Verdict:
    """Every critical point found inside the ball is optimal, and enough lie there."""
    # The last point of each trial started at A_i = -I, the zero map; it counts apart.
    names = ("norms", "relative_excess", "gradient_norms")
    points = [{name: record[name][:-1] for name in names} for record in records]
    at_minus_identity = [
        record["gradient_norms"][-1] for record in records if record["depth"] >= 2
    ]
    norm = joined(points, "norms")
    excess = joined(points, "relative_excess")
    critical = joined(points, "gradient_norms") <= settings["gradient_tolerance"]
    inside = norm <= 1 - settings["wall_margin"]
    not_optimal = critical & (excess > settings["excess_tolerance"])
    metrics = {
        "starts": len(norm),
        "critical_points": int(critical.sum()),
        "largest_norm_called_inside": 1 - settings["wall_margin"],
        "critical_points_inside": int((critical & inside).sum()),
        "critical_points_inside_not_optimal": int((not_optimal & inside).sum()),
        "critical_points_not_optimal": int(not_optimal.sum()),
        "least_norm_of_critical_points_not_optimal": min(
            norm[not_optimal].tolist(), default=None
        ),
        "minus_identity_largest_gradient_norm": max(at_minus_identity, default=0.0),
    }
    enough = metrics["critical_points_inside"] >= settings["least_inside"]
    stayed = metrics["minus_identity_largest_gradient_norm"] == 0
    refuted = metrics["critical_points_inside_not_optimal"] > 0
    return run.Verdict("theorem-2-2", metrics, under_attack(refuted, enough and stayed))


def _hessian(settings: dict, records: list[dict]) -> run.Verdict:
    """What is claimed to be 0 is exactly 0; what is claimed to be positive is not."""
    nets = [
        {**net, "depth": record["depth"]}
        for record in records
        for net in record["nets"]
    ]
    standard = where(nets, net="standard")
    residual = where(nets, net="residual")
    at_identity = where(residual, target_size=0)
    elsewhere = [net for net in residual if net["target_size"] > 0]
    from_2_layers = [net for net in standard if net["depth"] >= 2]
    from_3_layers = [net for net in standard if net["depth"] >= 3]
    claimed_to_be_0 = {
        "standard_largest_gradient_norm_from_2_layers": largest(
            from_2_layers, "gradient_norm", 0.0
        ),
        "standard_largest_hessian_entry_from_3_layers": largest(
            from_3_layers, "largest_hessian_entry", 0.0
        ),
        "residual_largest_gradient_norm_at_identity_target": largest(
            at_identity, "gradient_norm", 0.0
        ),
    }
    claimed_to_be_positive = {
        "standard_least_excess": least(standard, "excess"),
        "residual_least_gradient_norm": least(elsewhere, "gradient_norm"),
    }
    attacked = bool(from_3_layers and elsewhere)
    refuted = any(claimed_to_be_0.values()) or not all(claimed_to_be_positive.values())
    return run.Verdict(
        claim="origin",
        metrics=claimed_to_be_0 | claimed_to_be_positive,
        verdict=under_attack(attacked and refuted, attacked),
    )


def _negative_determinant(settings: dict, records: list[dict]) -> run.Verdict:
    """No gradient in a ball is below the floor of that ball, and d = 1 reaches it."""
    balls = sum(len(record["taus"]) * record["problems"] for record in records)
    scalar = where(records, width=1)
    metrics = {
        "balls": balls,
        "starts": balls * settings["starts"],
        "least_gradient_over_floor": least(records, "least_over_floor"),
        "largest_gradient_over_floor_width_1": largest(scalar, "largest_over_floor"),
        "least_gradient_norm": float(joined(records, "least_gradient_norms").min()),
        "largest_norm_over_tau": largest(records, "largest_norm_over_tau"),
    }
    tolerance = settings["relative_tolerance"]
    inside = metrics["largest_norm_over_tau"] <= 1 + tolerance
    below = metrics["least_gradient_over_floor"] < 1 - tolerance
    # For d = 1 the floor is the least gradient: a search that ends above it is too weak
    # to say anything.
    reached = bool(scalar) and (
        metrics["largest_gradient_over_floor_width_1"] <= 1 + tolerance
    )
    return run.Verdict(
        claim="negative-determinant",
        metrics=metrics,
        verdict=under_attack(inside and below, inside and reached),
    )


VERDICTS = {
    "critical_points": _critical_points,
    "hessian_at_origin": _hessian,
    "negative_determinant": _negative_determinant,
}
EXPERIMENT = run.Experiment(
    name="landscape",
    module=__name__,
    trials=trials,
    measurements="experiments.measurements.landscape",
    verdict=VERDICTS,
    signed=("max_condition_log10", "target_sizes"),
)

if __name__ == "__main__":
    run.main(EXPERIMENT)
