"""Powers of rotations in the cases that rounding makes hard, and principal roots."""

import itertools

import numpy as np
import pytest

from identity_matters.linear.matrix_powers import (
    principal_root_minus_identity,
    real_rotation_form,
)
from identity_matters.matrices import rotate_rows


def rotation(angles, fixed, seed=0):
    d = 2 * len(angles) + fixed
    S = np.linalg.qr(np.random.default_rng(seed).standard_normal((d, d)))[0]
    return S @ rotate_rows(S.T, np.array([*angles, *[0.0] * (fixed // 2)]))


@pytest.mark.parametrize(
    ("angles", "fixed"),
    [
        ([2.5], 0),
        ([2.5], 1),
        ([1.0, 1.0, 1.0], 0),
        ([np.pi, np.pi], 0),
        ([np.pi], 3),
        ([np.pi - 1e-9, np.pi - 1e-8, np.pi], 1),
        ([1e-9, 1e-8], 1),
        ([], 1),
        ([], 4),
    ],
)
def test_powers_turn_every_plane(angles, fixed):
    Q = rotation(angles, fixed)
    form = real_rotation_form(Q)
    identity = np.eye(len(Q))
    np.testing.assert_allclose(form.basis @ form.basis.T, identity, atol=1e-13)
    largest = max(angles, default=0.0)
    # A Schur form finds the angles up to a few rounding errors of entries of size 1.
    assert form.largest_angle == pytest.approx(largest, abs=1e-14)
    np.testing.assert_allclose(identity + form.power_minus_identity(1.0), Q, atol=1e-13)
    fifth = identity + form.power_minus_identity(0.2)
    np.testing.assert_allclose(np.linalg.matrix_power(fifth, 5), Q, atol=1e-13)
    norm = np.linalg.norm(form.power_minus_identity(0.2), 2)
    assert norm == pytest.approx(2 * np.sin(largest / 10), abs=1e-14)


def test_small_powers_keep_their_digits():
    form = real_rotation_form(rotation([1.0], 0))
    # The diagonal is -5e-17, which would be lost to rounding if computed as cos - 1.
    assert np.trace(form.power_minus_identity(1e-8)) == pytest.approx(-1e-16, rel=1e-10)


def test_the_other_way_round_ends_in_the_same_place():
    form = real_rotation_form(rotation([2.0, -3.0], 1))
    other = form.the_other_way()
    assert other.largest_angle == pytest.approx(2 * np.pi - 3.0)
    ends = [way.power_minus_identity(1.0) for way in (form, other)]
    np.testing.assert_allclose(*ends, atol=1e-13)


def test_half_turns_are_paired_by_the_polar_part():
    moduli = np.array([3.0, 0.5, 3.0, 0.5])
    for order in itertools.permutations(range(4)):
        P = np.diag(moduli[list(order)])
        form = real_rotation_form(-np.eye(4), P)
        for plane in (form.basis[:, :2], form.basis[:, 2:]):
            # P is a multiple of I on each plane.
            restricted = plane.T @ P @ plane
            np.testing.assert_allclose(
                restricted, restricted[0, 0] * np.eye(2), atol=1e-15
            )
        identity = np.eye(4)
        np.testing.assert_allclose(
            form.power_minus_identity(1.0), -2 * identity, atol=1e-15
        )


def test_angles_at_pi_up_to_the_rounding_of_the_target_are_half_turns():
    angles = [np.pi - 1e-13, np.pi - 1e-13]
    P = np.diag([1e4, 1.0, 1e4, 1.0])
    Q = rotation(angles, 0)
    # Without P the planes are those of Q; with it, and its condition number of 1e4,
    # those of P.
    assert real_rotation_form(Q).largest_angle < np.pi
    form = real_rotation_form(Q, P)
    np.testing.assert_array_equal(form.angles, [np.pi, np.pi])
    assert np.abs(form.basis[:, :2].T @ P @ form.basis[:, :2] - np.eye(2)).max() < 1e-9


def test_defective_matrix_takes_the_logarithm():
    root = principal_root_minus_identity(np.array([[4.0, 1.0], [0, 4.0]]), 2)
    # The square root of a Jordan block is [[2, 1/4], [0, 2]].
    np.testing.assert_allclose(root, [[1, 0.25], [0, 1]], atol=1e-13)


def test_thousands_of_factors_lose_no_digits():
    generator = np.random.default_rng(1)
    V = generator.standard_normal((20, 20))
    R = V @ np.diag(np.geomspace(1e4, 1e-4, 20)) @ np.linalg.inv(V)
    A = principal_root_minus_identity(R, 4096)
    power = np.linalg.matrix_power(np.eye(20) + A, 4096)
    assert np.linalg.norm(power - R) <= 1e-10 * np.linalg.norm(R)
