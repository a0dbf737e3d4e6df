"""Does training stay near the identity, and how long does leaving a saddle take?

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
import types
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments import run
from experiments.run.measuring import generator
from experiments.run.settings import configs, require_between
from experiments.run.trials import each
from experiments.run.verdicts import joined, reproduced, total, under_attack, where
from identity_matters import random_matrices
from identity_matters.linear import convergence, escape, model, second_moment

# times f(0) - C; below this, rounding decides whether the risk falls
_RISK_FLOOR = 1e-13
_ROUNDING = 1e-12  # relative amount by which rounding may exceed a certified bound

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
get_config = configs(_SETTINGS)


def trials(*, variant: str, **settings) -> list[dict]:
    """One trial for each depth and width, and for each target or shape beyond."""
    if variant == "escape":
        require_between(1, math.inf, largest_factor=settings["largest_factor"])
        several = {"depths": "depth", "targets": "target"}
        return each(settings, several, question="escape")
    certified = {}
    beyond = {}
    for name, value in settings.items():
        if name.startswith("beyond_"):
            beyond[name.removeprefix("beyond_")] = value
        else:
            certified[name] = value
    return [
        *each(certified, {"depths": "depth", "widths": "width"}, question="certified"),
        *each(beyond, {"shapes": "depth width"}, question="beyond"),
    ]


def build(**trial) -> types.SimpleNamespace:
    """The trial.

    Raises:
      ValueError: the certificate or the integral rejects a setting.
    """
    if trial["question"] == "escape":
        # Starts are clipped at 3 deviations, and (V5) asks for positive weights.
        require_between(0, 1 / 3, noises=trial["noises"])
        require_between(-math.inf, math.inf, targets=trial["target"])
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
    return types.SimpleNamespace(**trial)


class SecondMoment(NamedTuple):
    """Sigma, f64[d, d], and its rank before it was rotated and rounded."""

    Sigma: np.ndarray
    rank: int


def random_sigma(
    rng: np.random.Generator,
    width: int,
    condition_log10: float,
    singular_percent: float,
) -> SecondMoment:
    """A rotated second moment with log-uniform eigenvalues, sometimes one of them 0."""
    eigenvalues = 10 ** rng.uniform(-condition_log10 / 2, condition_log10 / 2, width)
    if width > 1 and 100 * rng.random() < singular_percent:
        eigenvalues[rng.integers(width)] = 0.0
    rank = int(np.count_nonzero(eigenvalues))
    return SecondMoment(random_matrices.symmetric(rng, eigenvalues), rank)


def target_at(rng: np.random.Generator, moment: SecondMoment, s0: float) -> np.ndarray:
    """A target R, in a random direction from I, with ``sqrt((f(0) - C) / sigma) = s0``.

    Args:
      rng: draws the direction.
      moment: Sigma, whose least eigenvalue above 0 is sigma.
      s0: at least 0.
    """
    identity = np.eye(len(moment.Sigma))
    direction = rng.standard_normal(moment.Sigma.shape)
    kept = second_moment.kept_part(moment.Sigma)
    s0_of_direction = math.sqrt(kept.squared_norm(direction) / kept.least)
    return identity - s0 / s0_of_direction * direction


def measure_certified(trial, key) -> dict:
    """Gradient descent on certified problems, checked at every update."""
    rng = generator(key)
    moments = [
        random_sigma(
            rng, trial.width, trial.sigma_condition_log10, trial.singular_percent
        )
        for _ in range(trial.problems)
    ]
    targets = [
        target_at(rng, moment, rng.uniform(*trial.shares) * convergence.LARGEST_PATH_S0)
        for moment in moments
    ]
    certified = []
    for R, moment in zip(targets, moments, strict=True):
        certificate = convergence.will_converge(
            R, moment.Sigma, trial.depth, rank=moment.rank
        )
        if certificate.descent is not None:
            certified.append((R, moment.Sigma, *certificate.descent))
    R, Sigma, radii, rates, factors = map(np.stack, zip(*certified, strict=True))
    _, _, norms, decreases = map(
        np.asarray, _descent(R, Sigma, rates, factors, trial.depth, trial.updates)
    )
    # A NaN has left the ball, and has not fallen.
    stayed = norms <= radii * (1 + _ROUNDING)
    fell = decreases <= 1 + _ROUNDING
    return {
        "certified": len(certified),
        "left_the_ball": int(np.sum(~stayed)),
        "fell_too_slowly": int(np.sum(~fell)),
    }


def measure_beyond(trial, key) -> dict:
    """Percent of random problems on which descent from zero converges, by f(0) - C."""
    rng = generator(key)
    converged_percent = []
    for s0 in np.sqrt(trial.excess_over_sigma):
        moments = [
            random_sigma(rng, trial.width, trial.condition_log10, singular_percent=0.0)
            for _ in range(trial.problems)
        ]
        R = np.stack([target_at(rng, moment, s0) for moment in moments])
        Sigma = np.stack([moment.Sigma for moment in moments])
        norms_of_sigma = np.linalg.norm(Sigma, 2, axis=(1, 2))
        rates = 1 / (4 * trial.depth * norms_of_sigma * (1 + s0) ** 2)
        # No decrease is promised here, so the factor does not matter.
        factors = np.ones(trial.problems)
        first, last, _, _ = map(
            np.asarray, _descent(R, Sigma, rates, factors, trial.depth, trial.updates)
        )
        has_converged = last <= trial.converged * first
        converged_percent.append(100 * float(np.mean(has_converged)))
    return {"converged_percent": converged_percent}


@functools.partial(jax.jit, static_argnames=("depth", "updates"))
@functools.partial(jax.vmap, in_axes=(0, 0, 0, 0, None, None))
def _descent(R, Sigma, learning_rate, factor, depth, updates):
    """Gradient descent on one problem, from zero weights.

    Returns:
      The first and the last f - C; a bound on |||A|||; and the slowest decrease of f -
      C in one update, over `factor`.
    """
    evaluate = functools.partial(model.excess_risk_and_gradient, R=R, Sigma=Sigma)
    zero = jnp.zeros((depth, *R.shape))
    first, gradient = evaluate(zero)

    def update(_, carry):
        A, excess, gradient, norm, slowest = carry
        A = A - learning_rate * gradient
        new_excess, gradient = evaluate(A)
        decrease = new_excess / (factor * jnp.maximum(excess, _RISK_FLOOR * first))
        norm = jnp.maximum(norm, _norm_bound(A))
        return A, new_excess, gradient, norm, jnp.maximum(slowest, decrease)

    start = (zero, first, gradient, 0.0, 0.0)
    _, last, _, norm, slowest = jax.lax.fori_loop(0, updates, update, start)
    return first, last, norm, slowest


def _norm_bound(A):
    """The 16-norm of the singular values, largest over the layers.

    It is cheap, and exceeds the spectral norm by at most 9 % for d = 4.
    """
    power = jnp.swapaxes(A, 1, 2) @ A
    for _ in range(3):
        power = power @ power
    return jnp.max(jnp.trace(power, axis1=1, axis2=2)) ** (1 / 16)


def measure_escape(trial, key) -> dict:
    """Predicted and measured updates until every entry reaches its target, by noise."""
    rng = generator(key)
    r = np.array(trial.target)
    rate = trial.learning_rate_scale / (trial.depth * (1 + np.abs(r).max()) ** 2)
    return {
        "learning_rate": rate,
        "by_noise": [
            _measure_escape_from_noise(trial, rng, r, rate, noise)
            for noise in trial.noises
        ],
    }


def _measure_escape_from_noise(trial, rng, r, rate: float, noise: float) -> dict:
    shape = (trial.draws, len(r), trial.depth)
    starts = 1 + noise * np.clip(rng.standard_normal(shape), -3, 3)
    predicted = np.array(
        [_predicted_time(start, r, trial.risk) / rate for start in starts]
    )
    is_run = predicted <= trial.max_updates / 2
    measured = np.asarray(
        _updates_needed(starts[is_run], r, rate, trial.risk, trial.max_updates)
    )
    ratios = predicted[is_run] / np.maximum(measured, 1)
    return {
        "noise": noise,
        "predicted_updates": predicted.tolist(),
        "measured_updates": measured.tolist(),
        "not_run": int(np.sum(~is_run)),
        "not_reached": int(np.sum(measured >= trial.max_updates)),
        "predicted_over_measured": ratios.tolist(),
    }


def _predicted_time(start: np.ndarray, r: np.ndarray, risk: float) -> float:
    """The time (V5) until the last entry has reached its target."""
    return max(
        escape.escape_time(weights, target, 1.0, risk)
        for weights, target in zip(start, r, strict=True)
    )


@jax.jit
def _updates_needed(w, r, learning_rate, risk, max_updates):
    """Updates that descent on w takes until every entry reaches its target, i64[n].

    Args:
      w: f64[n, entries, l], the starts.
      r: f64[entries], the targets.
      learning_rate: of every update.
      risk: an entry has reached its target at this f - C.
      max_updates: where all stop.
    """

    def is_moving(w):
        return (jnp.prod(w, axis=-1) - r) ** 2 > risk

    def update(carry):
        w, count, updates = carry
        moving = is_moving(w)
        gradient = jax.grad(lambda w: jnp.sum((jnp.prod(w, axis=-1) - r) ** 2))(w)
        w = jnp.where(moving[..., None], w - learning_rate * gradient, w)
        return w, count + jnp.any(moving, axis=-1), updates + 1

    def goes_on(carry):
        w, _, updates = carry
        return jnp.any(is_moving(w)) & (updates < max_updates)

    start = (w, jnp.zeros(w.shape[0], jnp.int64), jnp.int64(0))
    _, count, _ = jax.lax.while_loop(goes_on, update, start)
    return count


MEASURES = {
    "certified": measure_certified,
    "beyond": measure_beyond,
    "escape": measure_escape,
}


def _inside(settings: dict, records: list[dict]) -> run.Verdict:
    certified = where(records, question="certified")
    beyond = where(records, question="beyond")
    converged = np.mean([record["converged_percent"] for record in beyond], axis=0)
    up_to_1 = np.array(settings["beyond_excess_over_sigma"]) <= 1
    metrics = {
        "certified_problems": total(certified, "certified"),
        "left_the_ball": total(certified, "left_the_ball"),
        "fell_too_slowly": total(certified, "fell_too_slowly"),
        "least_converged_percent_up_to_1_sigma": min(
            converged[up_to_1].tolist(), default=None
        ),
    }
    failed = metrics["left_the_ball"] + metrics["fell_too_slowly"]
    verdict = under_attack(failed > 0, metrics["certified_problems"] > 0)
    return run.Verdict("iterates-stay-inside", metrics, verdict)


def _escape(settings: dict, records: list[dict]) -> run.Verdict:
    by_noise = [
        {**record, **entry} for record in records for entry in record["by_noise"]
    ]
    ratios = joined(by_noise, "predicted_over_measured").tolist()
    least_ratio = min(ratios, default=math.nan)
    largest_ratio = max(ratios, default=math.nan)
    shallowest = min(settings["depths"])
    deepest = max(settings["depths"])
    quietest = where(by_noise, noise=min(settings["noises"]))
    metrics = {
        "runs": len(ratios),
        "not_run": total(by_noise, "not_run"),
        "not_reached": total(by_noise, "not_reached"),
        "least_predicted_over_measured": least_ratio,
        "largest_predicted_over_measured": largest_ratio,
        "median_updates_negative_shallowest": _median_updates(
            quietest, shallowest, negative=True
        ),
        "median_updates_negative_deepest": _median_updates(
            quietest, deepest, negative=True
        ),
        "median_updates_positive_deepest": _median_updates(
            quietest, deepest, negative=False
        ),
    }
    factor = settings["largest_factor"]
    within = 1 / factor <= least_ratio and largest_ratio <= factor
    verdict = reproduced(within and not metrics["not_reached"])
    return run.Verdict("time-to-escape", metrics, verdict)


def _median_updates(records: list[dict], depth: int, *, negative: bool) -> float:
    """The median of the predicted updates over scalar targets of one sign."""
    scalar = [
        record
        for record in where(records, depth=depth)
        if len(record["target"]) == 1 and (record["target"][0] < 0) == negative
    ]
    return float(np.median(joined(scalar, "predicted_updates")))


VERDICTS = {
    "inside": _inside,
    "escape": _escape,
}
EXPERIMENT = run.Experiment(
    name="convergence",
    module=__name__,
    trials=trials,
    measure=MEASURES,
    verdict=VERDICTS,
    build=build,
    kind_field="question",
    signed=(
        "targets",
        "sigma_condition_log10",
        "singular_percent",
        "beyond_condition_log10",
    ),
)

if __name__ == "__main__":
    run.main(EXPERIMENT)
