"""Factorizations of a target at several depths, and lower bounds on their norms."""

import math
import pathlib
import types

import numpy as np
from absl import logging

from experiments.run.measuring import generator
from experiments.run.settings import require_between
from identity_matters import linear, matrices, paper, paths
from identity_matters.linear import random_targets
from identity_matters.linear.factorization import METHODS, relative_product_error
from identity_matters.linear.target import NotApplicableError, check_depth


def build(**trial) -> types.SimpleNamespace:
    """The trial, its path settings and, for "file", its target.

    Raises:
      ValueError: a setting cannot be used, or the file does not hold a matrix.
    """
    require_between(-1, math.inf, ascents=trial["ascents"])
    for depth in trial["depths"]:
        check_depth(depth)
    if "polar" not in trial["methods"] or not set(trial["methods"]) <= set(METHODS):
        needed = f"polar, which always applies, and others of {METHODS}"
        raise ValueError(f"large_methods must be {needed}, got {trial['methods']}")
    target = None
    if trial["family"] == "file":
        target = linear.check_target(_read_matrix(trial["file"]))
        shallowest = min(trial["depths"], default=target.least_depth)
        check_depth(shallowest, target.least_depth, " = ceil(3 gamma) for this R")
    else:
        require_between(0, math.inf, dimensions=trial["dimension"])
        # Raises if the strength is out of the range of its family.
        random_targets.target(
            np.random.default_rng(0), trial["family"], 1, trial["strength"]
        )
    path = linear.PathSettings(
        pieces=trial["path_pieces"],
        exponents=trial["path_exponents"],
        iterations=trial["path_iterations"],
        starts=trial["path_starts"],
    )
    return types.SimpleNamespace(**trial, target=target, path=path)


def _read_matrix(file: str) -> np.ndarray:
    """The array in a .npy file."""
    needed = "--config.file must name a .npy file that holds R"
    source = pathlib.Path(paths.expand_home(file))
    if not source.is_file():  # a pipe, say, would wait for ever
        raise ValueError(f"{needed}; {file!r} is not a file")
    try:
        # Not np.load: it takes archives, too, and suggests unpickling, which is unsafe.
        return np.lib.format.open_memmap(source, mode="r")
    except OSError:
        raise ValueError(f"{needed}; {file!r} cannot be read") from None
    except ValueError:
        raise ValueError(f"{needed}; {file!r} holds no array of numbers") from None


def measure(trial, key) -> dict:
    """Factorizes the target at every depth by every method that applies."""
    if trial.target is not None:
        target = trial.target
    else:
        target = linear.check_target(
            random_targets.target(
                generator(key), trial.family, trial.dimension, trial.strength
            )
        )
    depths = {depth for depth in trial.depths if depth >= target.least_depth}
    if trial.least_depth_too:
        depths.add(target.least_depth)
    rows = [_measure_depth(target, depth, trial) for depth in sorted(depths)]
    measured = {"gamma": target.gamma, "rows": rows}
    if trial.family != "file":
        return measured
    for row in rows:
        _save_layers(target, row, trial)
    return {"dimension": len(target.R), **measured}


def _save_layers(target: linear.Target, row: dict, trial) -> None:
    """Saves the best factorization at one depth beside the file of R."""
    depth = row["depth"]
    best = row["best_method"]
    place = pathlib.Path(paths.expand_home(trial.file))
    layers = place.with_name(f"{place.stem}-depth={depth}.npy")
    np.save(layers, linear.factorize(target.R, depth, best, path_settings=trial.path))
    logging.info(
        "%d layers: |||A||| = %.6g (%s), at least %.6g, at most %.6g by Theorem 2.1; A"
        " in %s",
        depth,
        row["norms"][best],
        best,
        row["lower_bound"],
        row["bound_v3"],
        layers,
    )


def _measure_depth(target: linear.Target, depth: int, trial) -> dict:
    """Norms and errors of all factorizations into `depth` layers, and the bounds."""
    R = target.R
    gamma = target.gamma
    errors, norms = _factorize_by_all(R, depth, trial)
    best = min(norms, key=norms.__getitem__)
    bounds = _lower_bounds(R, depth, trial.ascents, with_vector_bound="path" in norms)
    lower_bound = bounds["lower_bound"]
    return {
        "depth": depth,
        "relative_product_errors": errors,
        "norms": norms,
        "depth_times_norms": {method: depth * norm for method, norm in norms.items()},
        "bound_v3": paper.theorem_2_1_bound_v3(gamma, depth),
        "bound_iclr2017": paper.theorem_2_1_bound_iclr2017(gamma, depth),
        "bound_polar": linear.polar_bound(gamma, depth),
        **bounds,
        "best_method": best,
        # If the lower bound is only |||A||| >= 1, the ratio to it says nothing.
        "lower_bound_is_1": depth > 1 and lower_bound == 1.0,
        "best_over_lower_bound": norms[best] / lower_bound if lower_bound > 0 else 1.0,
    }


def _lower_bounds(
    R: np.ndarray, depth: int, ascents: int, *, with_vector_bound: bool
) -> dict[str, float]:
    """The "lower_bound" and, if asked for, what single vectors alone give.

    `with_vector_bound` adds the latter as "vector_lower_bound": (F4) for the best
    vector, without the half turns of (F10). It is asked for where there is a shortest
    path, as only that comes close enough to tell the two apart.
    """
    if not with_vector_bound:
        return {"lower_bound": linear.norm_lower_bound(R, depth, ascents=ascents)}
    vector_bound = linear.norm_lower_bound(R, depth, ascents=ascents, half_turns=False)
    # The search for the best vector takes nearly all of the time, and is not made
    # again: without ascents this is what half turns and closed forms give.
    half_turn_bound = linear.norm_lower_bound(R, depth, ascents=0)
    return {
        "lower_bound": max(vector_bound, half_turn_bound),
        "vector_lower_bound": vector_bound,
    }


def _factorize_by_all(
    R: np.ndarray, depth: int, trial
) -> tuple[dict[str, float], dict[str, float]]:
    """(relative error of the product, |||A|||) by each method that applies."""
    errors = {}
    norms = {}
    for method in trial.methods:
        if method == "path" and len(R) > trial.path_max_dimension:
            continue
        try:
            A = linear.factorize(R, depth, method, path_settings=trial.path)
        except NotApplicableError:
            continue
        errors[method] = relative_product_error(A, R)
        norms[method] = matrices.largest_spectral_norm(A)
        # Free this stack before the next one is built: each may take gigabytes.
        del A
    return errors, norms
