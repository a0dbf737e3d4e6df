"""The paths from which the search for a shortest path from I to R begins.

The search bends a path bit by bit, and so hardly ever leaves its homotopy class. In
GL(d), d > 2, the paths from I to R are of two classes. A start of the other class, or
of the same one in another basin, may lead to a shorter path.

All starts are paths that turn and stretch at once (`turn_and_stretch`). They differ in
the rotation that they follow:

* the polar factor Q, each plane the short way round, as in method polar;
* for d > 2, Q with its largest turn the other way round: the other class than Q's;
* none, as in method root: of either class;
* Q with its largest turns lengthened, as in method paired; several become half turns.
  Their paths are of either class;
* for d = 4, rotations that turn all vectors at the pace of the one that is forced the
  long way round (F13): one for each side to which the other plane may turn.
"""

import dataclasses
import math
from typing import NamedTuple

import numpy as np

from identity_matters.linear.lower_bound import forced_vector
from identity_matters.linear.matrix_powers import RotationForm
from identity_matters.linear.one_pace import end_and_across, isoclinic_turns
from identity_matters.linear.optimum import longest_step_in_plane
from identity_matters.linear.shortest_path import PathSettings
from identity_matters.linear.target import Target
from identity_matters.linear.turn_and_stretch import (
    Factorization,
    no_turn,
    polar_factor,
    polar_form,
    turn_and_stretch,
)

# From a lengthened path the search uses exponents from this on: a small one, for which
# all layers count and not only the longest, would drive the path out of its basin.
_LEAST_STEEP_EXPONENT = 32


class Start(NamedTuple):
    """A path to start from.

    Attributes:
      turn: the rotation that `turn_and_stretch` follows.
      stretch_is_P: as there.
      settings: how to search from it.
    """

    turn: RotationForm
    stretch_is_P: bool
    settings: PathSettings

    def layers(self, target: Target, depth: int) -> Factorization:
        """The path in `depth` layers.

        Raises NotApplicableError if its rotation leaves R no principal root.
        """
        return turn_and_stretch(
            target, self.turn, depth, stretch_is_P=self.stretch_is_P
        )


def path_starts(target: Target, depth: int, settings: PathSettings) -> list[Start]:
    """The starts of the module docstring, of which some may not apply to the target.

    Args:
      target: R, and its polar form.
      depth: l, for which the turns are lengthened.
      settings: how to search; from lengthened turns only with the steep exponents.
    """
    polar = polar_form(target)
    starts = [
        Start(turn=polar, stretch_is_P=True, settings=settings),
        Start(turn=no_turn(target), stretch_is_P=False, settings=settings),
    ]
    # In the plane the other way round is never shorter (F11).
    if len(target.R) > 2:
        other_way = polar.the_other_way()
        starts.append(Start(turn=other_way, stretch_is_P=True, settings=settings))
    steep = _only_steep_exponents(settings)
    for turn in _lengthened_turns(target, polar, depth) + _turns_at_one_pace(target.R):
        starts.append(Start(turn=turn, stretch_is_P=False, settings=steep))
    return starts


def _only_steep_exponents(settings: PathSettings) -> PathSettings:
    """The settings without their small exponents; as they are if all are small."""
    steep = tuple(p for p in settings.exponents if p >= _LEAST_STEEP_EXPONENT)
    return dataclasses.replace(settings, exponents=steep or settings.exponents)


def _lengthened_turns(
    target: Target, polar: RotationForm, depth: int
) -> list[RotationForm]:
    """The polar turn with its 1, 2, ... largest turns lengthened.

    The last one has all turns beyond a right angle lengthened. One turn is always
    tried, if there is a plane.
    """
    large_turns = int(np.count_nonzero(np.abs(polar.angles) > np.pi / 2))
    least_tried = min(len(polar.angles), 1)
    return [
        lengthened_turn(target, polar, planes, depth)
        for planes in range(1, max(least_tried, large_turns) + 1)
    ]


def _turns_at_one_pace(R: np.ndarray) -> list[RotationForm]:
    """For d = 4: rotations that turn all vectors at the `forced_vector`'s pace (F13).

    There are none in other dimensions, or if no vector is forced.
    """
    if len(R) != 4:
        return []
    x = forced_vector(R)
    if x is None:
        return []
    end, across = end_and_across(R, x)
    # 2 pi less the angle between x and R x, in [pi, 2 pi).
    the_long_way = float(np.pi + np.arctan2(np.linalg.norm(across), -x @ end))
    return isoclinic_turns(R, x, the_long_way)


def lengthened_turn(
    target: Target, turn: RotationForm, planes: int, depth: int
) -> RotationForm:
    """Lengthens the `planes` largest turns, each by the best psi there (F15).

    Several become half turns, paired anew by P. The planes are invariant if R is
    normal. In the result the other planes follow, as they are.
    """
    largest = np.argsort(-np.abs(turn.angles), kind="stable")[:planes]
    chosen_basis, other_basis = _split_basis(turn.basis, largest)
    basis, stretches = _paired_basis(chosen_basis, polar_factor(target))
    lengthened = [
        _lengthened_angle(theta, log_stretches, depth)
        for theta, log_stretches in zip(
            _angles_to_lengthen(turn.angles[largest]), np.log(stretches), strict=True
        )
    ]
    return RotationForm(
        basis=np.concatenate([basis, other_basis], axis=1),
        angles=np.concatenate([lengthened, np.delete(turn.angles, largest)]),
    )


def _angles_to_lengthen(angles: np.ndarray) -> np.ndarray:
    """One angle as it is; of several, f64[planes], each becomes pi.

    Half turns alone keep their rotation when their planes are paired anew.
    """
    if len(angles) == 1:
        return angles
    return np.full(len(angles), np.pi)


def _lengthened_angle(theta: float, log_stretches: np.ndarray, depth: int) -> float:
    """theta and the best psi beyond it, to the side to which theta turns."""
    psi = _best_psi(abs(theta), log_stretches, depth)
    return theta + math.copysign(psi, theta)


def _split_basis(
    basis: np.ndarray, chosen_planes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The columns of the chosen planes, plane by plane, and all other columns."""
    columns = np.ravel([[2 * plane, 2 * plane + 1] for plane in chosen_planes])
    others = np.setdiff1d(np.arange(len(basis)), columns)
    return basis[:, columns], basis[:, others]


def _paired_basis(columns: np.ndarray, P: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A basis of the space of `columns`, f64[d, 2 k], in which P is diagonal there.

    Neighbouring eigenvalues of P share a plane. Returns the basis and the eigenvalues,
    f64[k, 2], of each plane.
    """
    eigenvalues, mixed = np.linalg.eigh(columns.T @ P @ columns)
    # A reflection would turn the plane the other way round.
    mixed[:, 0] *= np.linalg.slogdet(mixed)[0]
    return columns @ mixed, eigenvalues.reshape(-1, 2)


def _best_psi(theta: float, log_stretches: np.ndarray, depth: int) -> float:
    """psi of (F15) in a plane that turns by theta >= 0 and is stretched, f64[2]."""
    m = float(np.mean(log_stretches))
    g = float(np.ptp(log_stretches)) / 2
    return longest_step_in_plane(theta, m, g, depth).psi
