"""The search for bad critical points of ReLU residual nets, points by hand, the linear control."""

import dataclasses

import jax
import numpy as np

from experiments.nonlinear_measures import setting_of
from identity_matters.linear import landscape_checks
from identity_matters.nonlinear import (
    certificate,
    critical_points,
    examples,
    feature_bound,
    network,
    origin,
    problems,
)
from identity_matters.nonlinear.network import Blocks

# Digits kept of numbers that only figures and counts use.
_DIGITS = 6


def _short(values) -> list:
    return [float(f"{value:.{_DIGITS}g}") for value in np.asarray(values, np.float64)]


def search(rng, cell: dict) -> dict:
    """Where the searches end, by kind; and a certificate of the best bad local minimum."""
    sample, teachers = problems.realizable(rng, cell["problems"], setting_of(cell))
    norms = np.repeat(cell["start_norms"], cell["starts"])
    descends = np.arange(len(norms)) % 2 == 0
    per_problem, many = len(norms), cell["problems"]
    shape = (cell["depth"], cell["width"], cell["lifted_width"])
    blocks = network.random_blocks(rng, np.tile(norms, many), *shape, cell["bias"])
    batch = problems.repeat(sample, per_problem)
    limits, numbers = critical_points.find(
        blocks,
        batch,
        np.tile(descends, many),
        steps=cell["steps"],
        tolerance=cell["gradient_tolerance"],
    )
    numbers = {**numbers, **critical_points.kink_margins(limits, batch)}
    numbers["bound_coefficient"] = feature_bound.batched_coefficient(limits, batch)
    numbers = {name: np.asarray(value) for name, value in numbers.items()}
    numbers["risk_share"] = numbers["risk"] / origin.risk_at_origin(batch)
    numbers["max_norm"] = network.max_norm(limits)
    thresholds = ("optimal_share", "radius", "kink_tolerance", "zero_unit_tolerance")
    kinds = critical_points.classify(
        numbers,
        gradient_tolerance=cell["gradient_tolerance"],
        curvature_tolerance=cell["curvature_tolerance"],
        **{name: cell[name] for name in thresholds},
    )
    kept = ("gradient_norm", "risk_share", "max_norm", "bound_coefficient")
    return {
        "kinds": [critical_points.KINDS.index(kind) for kind in kinds],
        "kind_names": list(critical_points.KINDS),
        "descends": np.tile(descends, many).tolist(),
        "certificates": _certificates(cell, kinds, numbers, limits, teachers, batch),
        **{name: _short(numbers[name]) for name in kept},
    }


def _certificates(cell, kinds, numbers, limits, teachers, batch) -> list[dict]:
    """Proofs for the most curved candidates; of the best with all that a reader needs."""
    if cell["depth"] != 1:
        return []
    order = np.argsort(-numbers["curvature_across"])
    order = [int(i) for i in order if kinds[i] == critical_points.KINDS[-1]]
    proofs = []
    for index in order[: cell["certified_at_most"]]:
        candidate, problem = problems.member(limits, index), problems.member(batch, index)
        teacher = problems.member(teachers, index // (len(kinds) // cell["problems"]))
        try:
            proof = certificate.certify(candidate, teacher, problem)
        except certificate.NotCertifiedError:
            continue
        proofs.append(
            {
                **dataclasses.asdict(proof),
                "risk_share": float(numbers["risk_share"][index]),
                "candidate": _lists(candidate),
                "teacher": _lists(teacher),
                "x": np.asarray(problem.x).tolist(),
                "input_map": np.asarray(problem.A).tolist(),
                "output_map": np.asarray(problem.B).tolist(),
            }
        )
    proofs.sort(key=lambda proof: -proof["kink_distance"])
    for proof in proofs[1:]:
        for name in ("candidate", "teacher", "x", "input_map", "output_map"):
            del proof[name]
    return proofs


def _lists(blocks: Blocks) -> dict:
    named = blocks._asdict()
    return {name: None if w is None else np.asarray(w).tolist() for name, w in named.items()}


def by_hand(rng, cell: dict) -> dict:
    """`examples.wrong_side` at every depth and width: gradient, risk, and the risk around it."""
    problem = examples.two_points(0.0, cell["left"])
    found = []
    for depth in cell["depths"]:
        for width in cell["widths"]:
            for bias in (False, True):
                point = examples.wrong_side(depth, width, cell["point_norm"], bias)
                best = examples.realizing_unit(depth, width, cell["left"], bias)
                # The point, the best net, and points of the cube around the first.
                nets = jax.tree.map(
                    lambda w, b: np.concatenate(
                        [
                            np.stack([w, b]),
                            w
                            + rng.uniform(-1, 1, (cell["nearby_points"], *w.shape))
                            * cell["nearby"],
                        ]
                    ),
                    point,
                    best,
                )
                batch = problems.repeat(network.stack_problems([problem]), len(nets.U))
                risks, gradient = network.batched_risk_and_gradient(nets, batch)
                found.append(
                    {
                        "moves": any(
                            (np.asarray(g)[0] != 0).any() for g in jax.tree.leaves(gradient)
                        ),
                        "risk": float(risks[0]),
                        "least_rise_nearby": float(risks[2:].min() - risks[0]),
                        "best_risk": float(risks[1]),
                        "largest_norm": float(network.max_norm(nets)[:2].max()),
                    }
                )
    return {name: [one[name] for one in found] for name in found[0]}


def linear_control(rng, cell: dict) -> dict:
    """The search of Theorem 2.2 for linear residual nets, from as many starts in the same ball."""
    found = landscape_checks.from_many_starts(
        rng,
        width=cell["width_in"],
        depth=cell["depth"],
        max_depth=cell["depth"],
        target_sizes=(cell["target_size"],),
        start_norms=tuple(cell["start_norms"]),
        starts=cell["starts"],
        steps=cell["steps"],
        gradient_tolerance=cell["gradient_tolerance"],
        max_condition_log10=cell["max_condition_log10"],
    )
    gradient, norm, excess = (
        np.array(found[name][:-1]) for name in ("gradient_norms", "norms", "relative_excess")
    )
    inside = (gradient <= cell["gradient_tolerance"]) & (norm < cell["radius"])
    return {
        "linear_starts": len(norm),
        "linear_critical_inside": int(inside.sum()),
        "linear_bad_inside": int((inside & (excess > cell["optimal_share"])).sum()),
    }
