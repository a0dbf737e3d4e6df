"""Gradient descent inside the ball, and how long it takes to leave a saddle."""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.run.measuring import generator
from experiments.run.settings import require_between
from experiments.run.trials import Kind
from identity_matters import random_matrices
from identity_matters.linear import convergence, escape, model, second_moment

# times f(0) - C; below this, rounding decides whether the risk falls
_RISK_FLOOR = 1e-13
_ROUNDING = 1e-12  # relative amount by which rounding may exceed a certified bound


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


class CertifiedTrial(NamedTuple):
    """What `measure_certified` reads; `experiments.convergence` has the values.

    Attributes:
      depth, width: l and d.
      problems: how many are drawn.
      updates: of gradient descent on each problem.
      shares: the range of s_0, over the largest that is certified.
      sigma_condition_log10: log10 of the largest condition number of Sigma.
      singular_percent: of the Sigma that have an eigenvalue 0, if d > 1.
    """

    depth: int
    width: int
    problems: int
    updates: int
    shares: tuple[float, float]
    sigma_condition_log10: float
    singular_percent: float


def measure_certified(trial: CertifiedTrial, key: jax.Array) -> dict:
    """Gradient descent on certified problems, checked at every update."""
    certified = _certified_problems(trial, generator(key))
    if not certified:
        return {"certified": 0, "left_the_ball": 0, "fell_too_slowly": 0}
    R, Sigma, certificates = zip(*certified, strict=True)
    end = _descend(
        R=np.stack(R),
        Sigma=np.stack(Sigma),
        learning_rates=np.array([c.learning_rate for c in certificates]),
        factors=np.array([c.factor for c in certificates]),
        depth=trial.depth,
        updates=trial.updates,
    )
    # A NaN has left the ball, and has not fallen.
    radii = np.array([certificate.norm for certificate in certificates])
    stayed = end.norm <= radii * (1 + _ROUNDING)
    fell = end.largest_share_of_promise <= 1 + _ROUNDING
    return {
        "certified": len(certified),
        "left_the_ball": int(np.sum(~stayed)),
        "fell_too_slowly": int(np.sum(~fell)),
    }


def _certified_problems(
    trial: CertifiedTrial, rng: np.random.Generator
) -> list[tuple[np.ndarray, np.ndarray, convergence.DescentCertificate]]:
    """(R, Sigma, certificate of descent) of each random problem that has one."""
    moments = [
        random_sigma(
            rng, trial.width, trial.sigma_condition_log10, trial.singular_percent
        )
        for _ in range(trial.problems)
    ]
    certified = []
    for moment in moments:
        s0 = rng.uniform(*trial.shares) * convergence.LARGEST_PATH_S0
        R = target_at(rng, moment, s0)
        certificate = convergence.will_converge(
            R, moment.Sigma, trial.depth, rank=moment.rank
        ).descent
        if certificate is not None:
            certified.append((R, moment.Sigma, certificate))
    return certified


class BeyondTrial(NamedTuple):
    """What `measure_beyond` reads.

    Attributes:
      depth, width: l and d.
      problems: how many are drawn for each excess.
      updates: of gradient descent on each problem.
      excess_over_sigma: (f - C) / sigma at zero weights.
      condition_log10: log10 of the largest condition number of Sigma.
      converged: a problem counts as converged if f - C ends at or below this multiple
        of its first value.
    """

    depth: int
    width: int
    problems: int
    updates: int
    excess_over_sigma: tuple[float, ...]
    condition_log10: float
    converged: float


def measure_beyond(trial: BeyondTrial, key: jax.Array) -> dict:
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
        end = _descend(
            R=R,
            Sigma=Sigma,
            learning_rates=1 / (4 * trial.depth * norms_of_sigma * (1 + s0) ** 2),
            # No decrease is promised here, so the factor does not matter.
            factors=np.ones(trial.problems),
            depth=trial.depth,
            updates=trial.updates,
        )
        has_converged = end.last_excess <= trial.converged * end.first_excess
        converged_percent.append(100 * float(np.mean(has_converged)))
    return {"converged_percent": converged_percent}


class _End(NamedTuple):
    """What descent on n problems came to, f64[n] each.

    Attributes:
      first_excess, last_excess: f - C.
      norm: a bound on |||A||| on the way.
      largest_share_of_promise: f - C after an update over what `factors` promise
        there, the largest over all updates; above 1 the risk fell too slowly.
    """

    first_excess: np.ndarray
    last_excess: np.ndarray
    norm: np.ndarray
    largest_share_of_promise: np.ndarray


def _descend(
    *,
    R: np.ndarray,
    Sigma: np.ndarray,
    learning_rates: np.ndarray,
    factors: np.ndarray,
    depth: int,
    updates: int,
) -> _End:
    """Gradient descent on n problems, from zero weights.

    Args:
      R, Sigma: f64[n, d, d].
      learning_rates: f64[n].
      factors: f64[n], by which each update is promised to multiply f - C.
      depth: l.
      updates: of each.
    """
    end = _descend_one(R, Sigma, learning_rates, factors, depth, updates)
    return _End(*map(np.asarray, end))


@functools.partial(jax.jit, static_argnames=("depth", "updates"))
@functools.partial(jax.vmap, in_axes=(0, 0, 0, 0, None, None))
def _descend_one(R, Sigma, learning_rate, factor, depth, updates) -> tuple:
    """The fields of `_End` for one problem."""
    evaluate = functools.partial(model.excess_risk_and_gradient, R=R, Sigma=Sigma)
    zero = jnp.zeros((depth, *R.shape))
    first, gradient = evaluate(zero)

    def update(_, carry):
        A, excess, gradient, norm, largest_share = carry
        A = A - learning_rate * gradient
        new_excess, gradient = evaluate(A)
        promised = factor * jnp.maximum(excess, _RISK_FLOOR * first)
        largest_share = jnp.maximum(largest_share, new_excess / promised)
        norm = jnp.maximum(norm, _norm_bound(A))
        return A, new_excess, gradient, norm, largest_share

    start = (zero, first, gradient, 0.0, 0.0)
    _, last, _, norm, largest_share = jax.lax.fori_loop(0, updates, update, start)
    return first, last, norm, largest_share


def _norm_bound(A):
    """A cheap bound on |||A|||, at most 9 % above it for d = 4.

    It is the 16-norm of the singular values, the largest over the layers. Unlike
    `sampled.spectral_norm_bounds` it is for layers of ordinary size, whose 16th powers
    are within the range of float64.
    """
    power = jnp.swapaxes(A, 1, 2) @ A
    for _ in range(3):
        power = power @ power
    return jnp.max(jnp.trace(power, axis1=1, axis2=2)) ** (1 / 16)


class EscapeTrial(NamedTuple):
    """What `measure_escape` reads.

    Attributes:
      depth: l.
      target: the diagonal of R.
      noises: deviations of the weights around 1.
      draws: starts for each noise.
      learning_rate_scale: the step size times l (1 + max |r|)^2.
      risk: f - C at which an entry has reached its target.
      max_updates: a start that is predicted to need more than half of them is not run.
    """

    depth: int
    target: tuple[float, ...]
    noises: tuple[float, ...]
    draws: int
    learning_rate_scale: float
    risk: float
    max_updates: int


def measure_escape(trial: EscapeTrial, key: jax.Array) -> dict:
    """Predicted and measured updates until every entry reaches its target, by noise."""
    rng = generator(key)
    r = np.array(trial.target)
    rate = trial.learning_rate_scale / (trial.depth * (1 + np.abs(r).max()) ** 2)
    return {
        "learning_rate": rate,
        "by_noise": [
            _measure_escape_from_noise(trial, rng, r, rate=rate, noise=noise)
            for noise in trial.noises
        ],
    }


def _measure_escape_from_noise(
    trial: EscapeTrial,
    rng: np.random.Generator,
    r: np.ndarray,
    *,
    rate: float,
    noise: float,
) -> dict:
    """The same for starts of one noise; r is the target, f64[entries]."""
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
    times = [
        escape.escape_time(weights, target, 1.0, risk)
        for weights, target in zip(start, r, strict=True)
    ]
    return float(np.max(times))  # unlike `max`, NaN if one of them is


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


# By the question of a trial.
_KINDS = {
    "certified": Kind(CertifiedTrial, measure_certified),
    "beyond": Kind(BeyondTrial, measure_beyond),
    "escape": Kind(EscapeTrial, measure_escape),
}
MEASURES = {question: kind.measure for question, kind in _KINDS.items()}


def build(*, question: str, **settings) -> tuple:
    """The trial of this kind, which has the settings that its measurement reads.

    Raises:
      ValueError: the certificate or the integral rejects a setting.
    """
    trial = _KINDS[question].make_trial(settings)
    match trial:
        case EscapeTrial():
            _check_escape(trial)
        case CertifiedTrial():
            _check_certificate(trial.width, trial.depth)
            _check_shares(trial.shares)
        case BeyondTrial():
            _check_certificate(trial.width, trial.depth)
    return trial


def _check_escape(trial: EscapeTrial) -> None:
    """ValueError for noises, targets or a risk that (V5) does not cover."""
    # Starts are clipped at 3 deviations, and (V5) asks for positive weights.
    require_between(0, 1 / 3, noises=trial.noises)
    require_between(-math.inf, math.inf, targets=trial.target)
    for r in trial.target:
        # Raises if it cannot be computed for this target and risk.
        escape.escape_time(np.ones(trial.depth), r, 1.0, trial.risk)


def _check_certificate(width: int, depth: int) -> None:
    """ValueError if there is no certificate for nets of this size."""
    identity = np.eye(width)
    convergence.will_converge(identity, identity, depth)


def _check_shares(shares: tuple[float, ...]) -> None:
    if len(shares) != 2 or not 0 < shares[0] <= shares[1] < 1:
        raise ValueError(
            f"shares must be (low, high), 0 < low <= high < 1, got {shares}"
        )
