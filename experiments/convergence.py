"""Does training from zero stay inside the ball, and how long does it take to leave a
saddle?

(V1) to (V6) of docs/theory/convergence.md answer both questions.

* inside: random problems that `will_converge` certifies. At every update, gradient
  descent with the certified step size must stay within the certified radius and lower
  the risk as fast as certified.
* escape: how many updates descent from noise of several sizes takes to reach a scalar
  or diagonal target, against the number that the integral (V5) predicts.

Command: python -m experiments.convergence --config=:inside
Hardware and time: 2 CPU cores, 15 to 25 s per variant. float64.
Expected: no certified problem fails, and descent still converges far beyond the
certificate. Predicted and measured updates agree to a few percent. With noise 0.01, a
negative target takes about 400 updates at 2 layers and 300,000 at 6; a positive one
takes 110 to 190 at every depth.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments import run
from experiments.run import shared
from identity_matters import random_matrices
from identity_matters.linear import convergence, escape, model, second_moment

# times f(0) - C; below this, rounding decides whether the risk falls
_RISK_FLOOR = 1e-13

_SETTINGS = {
    "inside": {
        "depths": (1, 2, 4, 8, 32),  # l, each combined with every width
        "widths": (1, 2, 4),  # d
        "problems": 670,  # problems per depth and width: 10,050 in all
        "updates": 100,  # of gradient descent on each problem
        # s_0 over the largest certified s_0, uniform on this range
        "shares": (0.05, 0.999),
        "sigma_condition_log10": 3.0,  # log10 of the largest condition number of Sigma
        # percent of the Sigma with d > 1 that have an eigenvalue 0
        "singular_percent": 25.0,
        # at zero weights
        "beyond_excess_over_sigma": (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0),
        "beyond_shapes": ((2, 2), (8, 2), (2, 4), (8, 4)),  # pairs (l, d)
        "beyond_problems": 40,  # problems per excess and shape
        # like sigma_condition_log10; no Sigma is singular
        "beyond_condition_log10": 1.0,
        "beyond_updates": 2000,  # with step size 1 / (4 l ||Sigma|| (1 + s_0)^2)
        "beyond_converged": 1e-6,  # converged: f - C is at most this times f(0) - C
    },
    "escape": {
        "depths": (2, 3, 4, 5, 6),  # l
        # standard deviation of w around 1; clipped at 3 deviations
        "noises": (0.01, 0.05, 0.2),
        "draws": 32,  # starts per depth, target and noise
        # diagonals of R
        "targets": ((-0.5,), (-2.0,), (-0.5, -1.5, 0.8), (0.5,), (2.0,)),
        # step size times l sigma (1 + max |r|)^2, to follow the flow
        "learning_rate_scale": 0.1,
        "risk": 1e-6,  # an entry has reached its target once its f - C is at most this
        # starts predicted to need more than half of this are not run
        "max_updates": 3_000_000,
        # largest ratio of prediction and measurement, either way; above 1
        "largest_factor": 2.0,
    },
}
VARIANTS = tuple(_SETTINGS)
get_config = shared.configs(_SETTINGS)


def trials(*, variant: str, **settings) -> list[dict]:
    """One trial for each (depth, width) and each of beyond_shapes, or for each (depth,
    target).
    """
    if variant == "escape":
        shared.require_between(1, math.inf, largest_factor=settings["largest_factor"])
        return shared.each(
            settings, {"depths": "depth", "targets": "target"}, question="escape"
        )
    beyond = {
        k.removeprefix("beyond_"): v for k, v in settings.items() if "beyond_" in k
    }
    certified = {k: v for k, v in settings.items() if "beyond_" not in k}
    listed = shared.each(
        certified, {"depths": "depth", "widths": "width"}, question="certified"
    )
    return listed + shared.each(beyond, {"shapes": "depth width"}, question="beyond")


def build(**trial):
    """The trial; raises ValueError if the certificate or the integral rejects its
    settings.
    """
    if trial["question"] == "escape":
        # Starts are clipped at 3 deviations, and (V5) asks for positive weights.
        shared.require_between(0, 1 / 3, noises=trial["noises"])
        shared.require_between(-math.inf, math.inf, targets=trial["target"])
        for r in trial["target"]:
            escape.escape_time(np.ones(trial["depth"]), r, 1.0, trial["risk"])
    else:
        identity = np.eye(trial["width"])
        convergence.will_converge(identity, identity, trial["depth"])
    shares = trial.get("shares", (0.5, 0.5))
    if len(shares) != 2 or not 0 < shares[0] <= shares[1] < 1:
        raise ValueError(
            f"shares must be (low, high), 0 < low <= high < 1, got {shares}"
        )
    return trial


class SecondMoment(NamedTuple):
    """Sigma, f64[d, d], and its rank before it was rotated and rounded."""

    Sigma: np.ndarray
    rank: int


def random_sigma(
    rng, width: int, condition_log10: float, singular_percent: float
) -> SecondMoment:
    """A second moment with log-uniform eigenvalues, sometimes with one of them 0,
    rotated.
    """
    eigenvalues = 10 ** rng.uniform(-condition_log10 / 2, condition_log10 / 2, width)
    if width > 1 and 100 * rng.random() < singular_percent:
        eigenvalues[rng.integers(width)] = 0.0
    rank = int(np.count_nonzero(eigenvalues))
    return SecondMoment(random_matrices.symmetric(rng, eigenvalues), rank)


def target_at(rng, moment: SecondMoment, s0: float) -> np.ndarray:
    """A target R in a random direction from I with ``sqrt((f(0) - C) / sigma) =
    s0``.
    """
    identity = np.eye(len(moment.Sigma))
    direction = rng.standard_normal(moment.Sigma.shape)
    kept = second_moment.kept_part(moment.Sigma)
    at_one = math.sqrt(kept.squared_norm(direction) / kept.least)
    return identity - s0 / at_one * direction


def measure_certified(trial, rng) -> dict:
    """Gradient descent on certified problems, checked at every update."""
    size = trial.width, trial.sigma_condition_log10, trial.singular_percent
    data = [random_sigma(rng, *size) for _ in range(trial.problems)]
    limit = convergence.LARGEST_PATH_S0
    targets = [
        target_at(rng, moment, rng.uniform(*trial.shares) * limit) for moment in data
    ]
    certified = []
    for R, (Sigma, rank) in zip(targets, data, strict=True):
        certificate = convergence.will_converge(
            R, Sigma, trial.depth, rank=rank
        ).descent
        if certificate is not None:
            certified.append((R, Sigma, *certificate))
    R, Sigma, radii, rates, factors = map(np.stack, zip(*certified, strict=True))
    found = _descent(R, Sigma, rates, factors, trial.depth, trial.updates)
    _, _, norms, decreases = map(np.asarray, found)
    return {
        "certified": len(certified),
        # a NaN has left it
        "left_the_ball": int(np.sum(~(norms <= radii * (1 + 1e-12)))),
        "fell_too_slowly": int(np.sum(~(decreases <= 1 + 1e-12))),
    }


def measure_beyond(trial, rng) -> dict:
    """Percent of random problems on which descent from zero converges, for each ``f(0)
    - C``.
    """
    shares, problems = [], range(trial.problems)
    for s0 in np.sqrt(trial.excess_over_sigma):
        moments = [
            random_sigma(rng, trial.width, trial.condition_log10, 0.0) for _ in problems
        ]
        targets = [target_at(rng, moment, s0) for moment in moments]
        data = [moment.Sigma for moment in moments]
        norms_of_sigma = np.linalg.norm(data, 2, axis=(1, 2))
        rates = 1 / (4 * trial.depth * norms_of_sigma * (1 + s0) ** 2)
        stacks = np.stack(targets), np.stack(data), rates, np.ones(len(data))
        first, last, *_ = map(np.asarray, _descent(*stacks, trial.depth, trial.updates))
        shares.append(100 * float(np.mean(last <= trial.converged * first)))
    return {"converged_percent": shares}


@functools.partial(jax.jit, static_argnames=("depth", "updates"))
@functools.partial(jax.vmap, in_axes=(0, 0, 0, 0, None, None))
def _descent(R, Sigma, learning_rate, factor, depth, updates):
    """One problem: first and last f - C, a bound on |||A|||, the slowest decrease over
    `factor`.
    """
    evaluate = functools.partial(model.excess_risk_and_gradient, R=R, Sigma=Sigma)
    zero = jnp.zeros((depth, *R.shape))
    first, gradient = evaluate(zero)

    def update(_, carry):
        A, excess, gradient, norm, worst = carry
        A = A - learning_rate * gradient
        after, gradient = evaluate(A)
        decrease = after / (factor * jnp.maximum(excess, _RISK_FLOOR * first))
        # The 16-norm of the singular values is cheap, and at most 9 % too large for d =
        # 4.
        power = jnp.swapaxes(A, 1, 2) @ A
        for _ in range(3):
            power = power @ power
        bound = jnp.max(jnp.trace(power, axis1=1, axis2=2)) ** (1 / 16)
        return (
            A,
            after,
            gradient,
            jnp.maximum(norm, bound),
            jnp.maximum(worst, decrease),
        )

    start = (zero, first, gradient, 0.0, 0.0)
    _, last, _, norm, worst = jax.lax.fori_loop(0, updates, update, start)
    return first, last, norm, worst


def measure_escape(trial, rng) -> dict:
    """Predicted and measured updates until every entry reaches its target, for each
    noise.
    """
    r, shape = np.array(trial.target), (trial.draws, len(trial.target), trial.depth)
    rate = trial.learning_rate_scale / (trial.depth * (1 + np.abs(r).max()) ** 2)

    def predict(start) -> float:
        entries = zip(start, r, strict=True)
        return (
            max(escape.escape_time(*entry, 1.0, trial.risk) for entry in entries) / rate
        )

    by_noise = []
    for noise in trial.noises:
        w = 1 + noise * np.clip(rng.standard_normal(shape), -3, 3)
        predicted = np.array([predict(start) for start in w])
        runs = predicted <= trial.max_updates / 2
        measured = np.asarray(
            _updates_needed(w[runs], r, rate, trial.risk, trial.max_updates)
        )
        row = {
            "noise": noise,
            "predicted_updates": predicted.tolist(),
            "measured_updates": measured.tolist(),
            "not_run": int(np.sum(~runs)),
            "not_reached": int(np.sum(measured >= trial.max_updates)),
            "predicted_over_measured": (
                predicted[runs] / np.maximum(measured, 1)
            ).tolist(),
        }
        by_noise.append(row)
    return {"learning_rate": rate, "by_noise": by_noise}


@jax.jit
def _updates_needed(w, r, learning_rate, risk, max_updates):
    """Updates that descent on w, f64[n, entries, l], takes until every entry reaches
    its target.
    """

    def unfinished(w):
        return (jnp.prod(w, axis=-1) - r) ** 2 > risk

    def update(carry):
        w, count, updates = carry
        moving = unfinished(w)
        gradient = jax.grad(lambda w: jnp.sum((jnp.prod(w, axis=-1) - r) ** 2))(w)
        w = jnp.where(moving[..., None], w - learning_rate * gradient, w)
        return w, count + jnp.any(moving, axis=-1), updates + 1

    start = w, jnp.zeros(w.shape[0], jnp.int64), jnp.int64(0)
    _, count, _ = jax.lax.while_loop(
        lambda carry: jnp.any(unfinished(carry[0])) & (carry[2] < max_updates),
        update,
        start,
    )
    return count


MEASURES = {
    "certified": measure_certified,
    "beyond": measure_beyond,
    "escape": measure_escape,
}


def _inside(settings: dict, records: list[dict]) -> tuple[dict, str]:
    certified, beyond = (
        shared.where(records, question=name) for name in ("certified", "beyond")
    )
    converged = np.mean([record["converged_percent"] for record in beyond], axis=0)
    up_to_1 = np.array(settings["beyond_excess_over_sigma"]) <= 1
    metrics = {
        "certified_problems": shared.total(certified, "certified"),
        "left_the_ball": shared.total(certified, "left_the_ball"),
        "fell_too_slowly": shared.total(certified, "fell_too_slowly"),
        "least_converged_percent_up_to_1_sigma": min(
            converged[up_to_1].tolist(), default=None
        ),
    }
    failed = metrics["left_the_ball"] + metrics["fell_too_slowly"]
    return metrics, shared.under_attack(failed > 0, metrics["certified_problems"] > 0)


def _escape(settings: dict, records: list[dict]) -> tuple[dict, str]:
    runs = [{**record, **entry} for record in records for entry in record["by_noise"]]
    ratios = shared.joined(runs, "predicted_over_measured").tolist()
    least, most = (end(ratios, default=math.nan) for end in (min, max))
    shallowest, deepest = min(settings["depths"]), max(settings["depths"])

    def median(depth, negative):
        some = shared.where(runs, depth=depth, noise=min(settings["noises"]))
        scalar = [
            r
            for r in some
            if len(r["target"]) == 1 and (r["target"][0] < 0) == negative
        ]
        return float(np.median(shared.joined(scalar, "predicted_updates")))

    metrics = {
        "runs": len(ratios),
        "not_run": shared.total(runs, "not_run"),
        "not_reached": shared.total(runs, "not_reached"),
        "least_predicted_over_measured": least,
        "largest_predicted_over_measured": most,
        "median_updates_negative_shallowest": median(shallowest, True),
        "median_updates_negative_deepest": median(deepest, True),
        "median_updates_positive_deepest": median(deepest, False),
    }
    factor = settings["largest_factor"]
    within = 1 / factor <= least and most <= factor
    return metrics, shared.reproduced(within and not metrics["not_reached"])


VERDICTS = {
    "inside": ("iterates-stay-inside", _inside),
    "escape": ("time-to-escape", _escape),
}
_ANY_SIGN = (
    "targets",
    "sigma_condition_log10",
    "singular_percent",
    "beyond_condition_log10",
)
EXPERIMENT = run.Experiment("convergence", trials, MEASURES, VERDICTS, build, _ANY_SIGN)

if __name__ == "__main__":
    run.main(EXPERIMENT)
