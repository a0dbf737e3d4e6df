"""What experiments/factorization.py measures: every factorization of one target, at all depths."""

import pathlib

import jax
import numpy as np

from identity_matters import paper
from identity_matters.linear.factorization import (
    NotApplicableError,
    PathSettings,
    factorize,
    norm_lower_bound,
    polar_bound,
)
from identity_matters.linear.lower_bound import plane_path_length
from identity_matters.linear.spectral_norm import max_spectral_norm, relative_product_error
from identity_matters.linear.target import Target, check_target
from identity_matters.linear.target_families import draw_target


def load_target(file: str) -> Target:
    """The R in a .npy file; raises ValueError where there is none that Theorem 2.1 is about."""
    if not pathlib.Path(file).is_file():
        raise ValueError(f"file must be a .npy file that holds R, got {file!r}, which is no file")
    try:
        R = np.load(file, allow_pickle=False)
    except (ValueError, OSError, EOFError):
        # NumPy's own message suggests to unpickle what is no array, whoever made it.
        raise ValueError(
            f"file must be a .npy file that holds R, got {file}, which holds no array of numbers"
        ) from None
    return check_target(R)


def measure(cell: dict, key) -> dict:
    """Factorizes the target of the cell at every depth by every method that applies."""
    if cell["family"] == "file":
        target = load_target(cell["file"])
    else:
        generator = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        R = draw_target(cell["family"], cell["dimension"], cell["strength"], generator)
        target = check_target(R)
    depths = [depth for depth in cell["depths"] if depth >= target.least_depth]
    if cell["least_depth_too"]:
        depths = sorted({target.least_depth, *depths})
    measured = {
        "gamma": target.gamma,
        "log10_condition": float(np.log10(target.K[0] / target.K[-1])),
        "rows": [_measure_depth(target.R, target.gamma, depth, cell) for depth in depths],
    }
    if cell["dimension"] == 2:
        # Exact where det R = 1, and else a lower bound.
        measured["shortest_length"] = plane_path_length(target.R)
        measured["log_determinant"] = float(np.linalg.slogdet(target.R)[1])
    return measured


def _measure_depth(R: np.ndarray, gamma: float, depth: int, cell: dict) -> dict:
    settings = PathSettings(
        pieces=cell["path_pieces"],
        exponents=tuple(cell["path_exponents"]),
        iterations=cell["path_iterations"],
        starts=cell["path_starts"],
    )
    errors, norms = {}, {}
    for method in cell["methods"]:
        try:
            A = factorize(R, depth, method, path_settings=settings)
        except NotApplicableError:
            continue
        errors[method] = relative_product_error(A, R)
        norms[method] = max_spectral_norm(A)
        # Two stacks of gigabytes need not be there at once.
        del A
    best = min(norms, key=norms.get)
    lower = norm_lower_bound(R, depth, ascents=cell["ascents"])
    return {
        "depth": depth,
        "relative_product_errors": errors,
        "norms": norms,
        "depth_times_norms": {method: depth * norm for method, norm in norms.items()},
        "bound_v3": paper.theorem_2_1_bound_v3(gamma, depth),
        "bound_iclr2017": paper.theorem_2_1_bound_iclr2017(gamma, depth),
        "bound_polar": polar_bound(gamma, depth),
        "lower_bound": lower,
        "best_method": best,
        # Where the lower bound says no more than |||A||| >= 1, the distance to it says nothing.
        "lower_bound_is_1": depth > 1 and lower == 1.0,
        "best_over_lower_bound": norms[best] / lower if lower > 0 else 1.0,
    }
