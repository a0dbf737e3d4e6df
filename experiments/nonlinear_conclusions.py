"""Metrics and verdict of each variant of experiments/nonlinear_conjecture.py.

Each function takes the settings and the records of a run and returns ``(metrics, verdict)``. A
conjecture that stands is "reproduced", one that falls "counterexample found", and "not reproduced"
says that the formulas of this project do not hold where they should.
"""

import numpy as np

FOUND, HOLDS, FAILS = "counterexample found", "reproduced", "not reproduced"


def _of(records: list[dict], kind: str) -> list[dict]:
    return [record for record in records if record["measured"] == kind]


def _joined(records: list[dict], name: str) -> np.ndarray:
    return np.concatenate([np.ravel(record[name]) for record in records])


def _conclude_origin(config: dict, records: list[dict]):
    nets, hexagons = _of(records, "at_origin"), _of(records, "on_hexagon")
    predicted, measured = (
        _joined(nets, name) for name in ("escape_curvature", "measured_curvature")
    )
    metrics = {
        "problems": len(predicted),
        "largest_gradient_entry": float(_joined(nets, "largest_gradient_entry").max()),
        "least_risk": float(_joined(nets, "risk").min()),
        "largest_autodiff_hessian_entry": float(
            _joined(nets, "largest_autodiff_hessian_entry").max()
        ),
        "least_escape_curvature": float(predicted.min()),
        "largest_relative_error_of_the_escape_curvature": float(
            np.abs(measured / predicted - 1).max()
        ),
        "largest_relative_error_of_the_form": float(
            (_joined(nets, "form_error") / predicted).max()
        ),
    }
    if hexagons:
        metrics |= {
            "hexagon_largest_curvature_without_bias": float(
                _joined(hexagons, "curvature_without_bias").max()
            ),
            "hexagon_least_curvature_with_bias": float(
                _joined(hexagons, "curvature_with_bias").min()
            ),
            "hexagon_largest_risk_share_found": float(
                (_joined(hexagons, "least_risk_found") / _joined(hexagons, "risk")).max()
            ),
        }
    bad_critical = metrics["largest_gradient_entry"] == 0 and metrics["least_risk"] > 0
    as_computed = (
        metrics["largest_relative_error_of_the_escape_curvature"] <= config["form_tolerance"]
        and metrics["largest_relative_error_of_the_form"] <= config["form_tolerance"]
        and metrics.get("hexagon_largest_curvature_without_bias", 0.0)
        <= config["hexagon"]["flat_tolerance"]
        and metrics.get("hexagon_largest_risk_share_found", 0.0) < 1
    )
    if not bad_critical:
        return metrics, HOLDS
    return metrics, FOUND if as_computed else FAILS


def _conclude_dead_units(config: dict, records: list[dict]):
    gaussian = [record for record in records if record["law"] == "gaussian"]
    others = [record for record in records if record["law"] != "gaussian"]
    off = []
    for record in gaussian:
        count, share = record["samples"], record["dead"] / record["samples"]
        low, high = record["least_expected_share"], record["largest_expected_share"]
        deviation = np.sqrt(high * (1 - high) / count)
        off.append(max(low - share, share - high, 0.0) / deviation)
    shares = [record["least_dead_risk_share"] for record in gaussian if record["dead"]]
    metrics = {
        "nets": sum(record["samples"] for record in records),
        "dead_nets": sum(record["dead"] for record in gaussian),
        "dead_nets_that_move": sum(record["moving_dead_nets"] for record in gaussian),
        "largest_dead_share": max((r["dead"] / r["samples"] for r in gaussian), default=0.0),
        "largest_deviations_from_the_formula": float(max(off, default=0.0)),
        "least_dead_risk_share": min(shares, default=None),
        "dead_nets_without_negative_biases": sum(record["dead"] for record in others),
        "least_hull_depth": min(record["hull_depth"] for record in records),
    }
    as_computed = (
        metrics["dead_nets_that_move"] == 0
        and metrics["largest_deviations_from_the_formula"] <= config["deviations"]
        and metrics["dead_nets_without_negative_biases"] == 0
    )
    if metrics["dead_nets"] == 0:
        return metrics, HOLDS
    return metrics, FOUND if as_computed else FAILS


def _conclude_search(config: dict, records: list[dict]):
    searches, (hand,) = _of(records, "search"), _of(records, "by_hand")
    (control,) = _of(records, "linear_control")
    names = searches[0]["kind_names"]
    kinds = np.array(names)[_joined(searches, "kinds")]
    descends = _joined(searches, "descends").astype(bool)
    bad = (kinds == "saddle") | (kinds == "no negative curvature")
    proofs = [proof for record in searches for proof in record["certificates"]]
    epsilon = np.finfo(float).eps * max(hand["risk"])
    by_hand = (
        not any(hand["moves"])
        and min(hand["risk"]) > 0
        and min(hand["least_rise_nearby"]) >= -epsilon
        and max(hand["best_risk"]) <= epsilon
        and max(hand["largest_norm"]) < 1
    )
    independent = _joined(searches, "bound_coefficient") > config["independent_from"]
    metrics = {
        "starts": len(kinds),
        "critical_points_inside": int((~np.isin(kinds, ("not critical", "outside"))).sum()),
        "bad_smooth_critical_points_inside": int(bad.sum()),
        **{f"ended_{name.replace(' ', '_')}": int((kinds == name).sum()) for name in names},
        "descents": int(descends.sum()),
        "descents_that_ended_at_a_bad_one": int((bad & descends).sum()),
        "independent_features_optimal": int((independent & (kinds == "optimal")).sum()),
        "independent_features_bad": int((independent & bad).sum()),
        "proved_local_minima": len(proofs),
        **_of_proofs(proofs),
        "by_hand_nets": len(hand["risk"]),
        "by_hand_holds": int(by_hand),
        **{name: control[name] for name in control if name.startswith("linear_")},
    }
    if control["linear_bad_inside"] > 0 or metrics["independent_features_bad"] > 0:
        return metrics, FAILS
    return metrics, FOUND if by_hand or proofs else HOLDS


def _of_proofs(proofs: list[dict]) -> dict:
    """Of the proved local minimum with the largest risk; nothing without a proof."""
    if not proofs:
        return {}
    worst = max(proofs, key=lambda proof: proof["risk_share"])
    names = ("risk_share", "norm", "teacher_norm", "kink_distance", "curvature", "radius")
    return {f"worst_proved_{name}": worst[name] for name in names}


def _conclude_gradient_ratio(config: dict, records: list[dict]):
    tight = [r for record in records for r in record["tight_right_over_left"] if r is not None]
    metrics = {
        "nets": sum(record["samples"] * len(record["norms"]) for record in records),
        "largest_right_over_left": max(record["largest_right_over_left"] for record in records),
        "least_tight_right_over_left": min(tight, default=None),
        "largest_share_of_zero_gradients": float(_joined(records, "share_zero").max()),
        "least_ratio_found": float(_joined(records, "searched_ratio").min()),
    }
    slack = config["rounding"]
    holds = (
        len(tight) > 0
        and metrics["largest_right_over_left"] <= 1 + slack
        and metrics["least_tight_right_over_left"] >= 1 - slack
        and max(tight) <= 1 + slack
    )
    return metrics, HOLDS if holds else FAILS


def _conclude_noise(config: dict, records: list[dict]):
    def rows(width, noisy=True):
        return [
            (record, index)
            for record in records
            if record["width"] == width
            for index, scale in enumerate(record["scales"])
            if (scale > 0) == noisy
        ]

    widths = sorted({record["width"] for record in records})
    success = {
        width: [record["success_share"][index] for record, index in rows(width)] for width in widths
    }
    unmoved = [r["largest_travelled"][i] for width in widths for r, i in rows(width, noisy=False)]
    metrics = {
        "largest_step_from_zero": max(unmoved, default=None),
        **{f"success_share_at_width_{w}": float(np.mean(values)) for w, values in success.items()},
        "least_success_share_at_the_largest_width": min(success[widths[-1]]),
    }
    holds = (
        len(unmoved) > 0
        and max(unmoved) == 0
        and metrics[f"success_share_at_width_{widths[-1]}"] >= config["least_success_share"]
    )
    return metrics, HOLDS if holds else FAILS


CONCLUDE = {
    "origin": _conclude_origin,
    "dead_units": _conclude_dead_units,
    "search": _conclude_search,
    "gradient_ratio": _conclude_gradient_ratio,
    "noise": _conclude_noise,
}
