"""Random problems with a teacher inside the ball: the least risk in it is 0."""

import dataclasses
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike

from identity_matters import checks, random_matrices
from identity_matters.relu import model, origin
from identity_matters.relu.model import Blocks, Problem

# Teachers are drawn again if they are almost inactive on the sample: f(0) is below this
# share of norm^4, as a block of that norm adds about norm^2 to an input of length 1.
_LEAST_RISK_SHARE = 2e-2
_DRAWS_AT_MOST = 50


@dataclasses.dataclass(frozen=True)
class Setting:
    """What to draw; ValueError if `lifted_width` or `teacher_norm` is out of range.

    If d > d_in, A is a random isometry and B the transpose of another, else both are
    the identity.
    """

    pairs: int  # of inputs x and -x: n = 2 pairs, and 0 is in the hull (N8)
    width_in: int  # d_in, of inputs and outputs
    lifted_width: int  # d, of the blocks
    depth: int
    teacher_width: int
    teacher_norm: float  # |||theta||| of the teacher
    bias: bool  # whether its units have biases

    def __post_init__(self):
        if self.lifted_width < self.width_in:
            raise ValueError(
                f"lifted_width must be at least width_in, got {self.lifted_width} <"
                f" {self.width_in}"
            )
        if not 0 < self.teacher_norm < 1:
            raise ValueError(
                f"teacher_norm must be between 0 and 1, got {self.teacher_norm}"
            )


def paired_inputs(
    rng: np.random.Generator, count: int, pairs: int, width: int
) -> np.ndarray:
    """Samples of x and -x: f64[count, 2 pairs, width].

    x is Gaussian with mean square length 1.
    """
    half = rng.standard_normal((count, pairs, width))
    return np.concatenate([half, -half], axis=1) / np.sqrt(width)


def _isometries(rng, count: int, rows: int, columns: int) -> np.ndarray:
    """Random f64[count, rows, columns], orthonormal columns; I if square."""
    if rows == columns:
        return np.broadcast_to(np.eye(rows), (count, rows, rows)).copy()
    return random_matrices.orthogonal(rng, (count,), rows, columns)


def realizable(
    rng: np.random.Generator, count: int, setting: Setting
) -> tuple[Problem, Blocks]:
    """`count` problems and their teachers, stacked.

    Raises ArithmeticError if too few teachers are active on their samples.
    """
    least_risk = _LEAST_RISK_SHARE * setting.teacher_norm**4
    batches: list[tuple[Problem, Blocks]] = []
    for _ in range(_DRAWS_AT_MOST):
        drawn, teacher = _draw(rng, count, setting)
        is_active = origin.risk_at_origin(drawn) >= least_risk
        batches.append(_members((drawn, teacher), is_active))
        if sum(len(problem.x) for problem, _ in batches) >= count:
            return jax.tree.map(lambda *parts: np.concatenate(parts)[:count], *batches)
    raise ArithmeticError(
        f"fewer than {count} of {_DRAWS_AT_MOST * count} teachers see the sample"
    )


def _draw(
    rng: np.random.Generator, count: int, setting: Setting
) -> tuple[Problem, Blocks]:
    """Problems with their teachers, stacked, active or not."""
    x = paired_inputs(rng, count, setting.pairs, setting.width_in)
    A = _isometries(rng, count, setting.lifted_width, setting.width_in)
    B = _isometries(rng, count, setting.lifted_width, setting.width_in).swapaxes(1, 2)
    teacher = model.random_blocks(
        rng,
        np.full(count, setting.teacher_norm),
        depth=setting.depth,
        width=setting.teacher_width,
        dimension=setting.lifted_width,
        bias=setting.bias,
    )
    without_y = Problem(x=x, y=np.zeros_like(x), A=A, B=B)
    passed = jax.vmap(model.forward)(teacher, without_y)
    return without_y._replace(y=np.asarray(passed.predictions)), teacher


def _members(tree: Any, is_kept: np.ndarray) -> Any:
    """The members of the leading axis where `is_kept`, bool[m], is true."""
    return jax.tree.map(lambda part: part[is_kept], tree)


def repeat(tree: Any, times: int) -> Any:
    """Repeats every member of the leading axis `times` times in a row."""
    return jax.tree.map(lambda part: np.repeat(np.asarray(part), times, axis=0), tree)


def member(tree: Any, index: int) -> Any:
    """One member of the leading axis."""
    return jax.tree.map(lambda part: np.asarray(part)[index], tree)


def plain_problem(x: ArrayLike, y: ArrayLike) -> Problem:
    """A sample, x and y f64[n, d], with identity matrices as input and output maps.

    ValueError unless both hold finite real numbers and have the same shape.
    """
    x = checks.real_array("x", x, axes=2)
    y = checks.real_array("y", y, axes=2)
    identity = np.eye(x.shape[1])
    problem = Problem(x=x, y=y, A=identity, B=identity)
    model.check_shape_of_y(problem, x.shape)
    return problem
