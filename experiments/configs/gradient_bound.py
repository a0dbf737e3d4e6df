"""Settings of experiments/gradient_bound.py; one variant for each form of eq. (2.3)."""

import ml_collections

VARIANTS = ("iclr2017", "v3", "corrected")


def get_config(variant: str = "iclr2017") -> ml_collections.ConfigDict:
    """The settings of `variant`, one of VARIANTS."""
    if variant not in VARIANTS:
        raise ValueError(f"variant must be one of {VARIANTS}, got {variant!r}")
    config = ml_collections.ConfigDict()
    config.variant = variant  # the form of eq. (2.3): identity_matters.linear.landscape.FORMS
    config.scale = "paper"  # the statement has no size; 10^6 points is our choice

    # Random points of B_tau.
    config.points = 1_000_000  # at least so many points in all, shared out as 1 / (d^2 l)
    config.widths = (1, 2, 3, 5, 8)  # d
    config.depth_caps = (4, 16)  # l is uniform on 1 ... 4 in one group, on 5 ... 16 in the next
    config.max_tau = 0.99  # radii of the balls lie in (0, max_tau)
    config.sigma_norm_log10 = (-3.0, 3.0)  # range of log10 ||Sigma||, log-uniform
    config.max_condition_log10 = 4.0  # largest log10 of the condition number of Sigma
    config.batch_points = 1000  # points evaluated by one call
    # A point fails if right > left (1 + relative_tolerance). Rounding enters as
    # cond(Sigma) eps + 2 l eps / (1 - tau), at most about 1e-11 here.
    config.relative_tolerance = 1e-9
    config.histogram_log10 = (-12.0, 6.0)  # range of log10(right / left); the end bins take the rest
    config.histogram_bins = 72  # bins over that range

    # Optimisation of right / left over A, R and Sigma with ||Sigma|| <= 1.
    config.search_widths = (1, 1, 2, 2)  # d of each search
    config.search_depths = (1, 2, 2, 3)  # l of each search
    config.search_taus = (0.2, 0.5, 0.8)  # radii, all in every search
    config.search_starts = 20  # random starts for each radius
    config.search_steps = 500  # updates of projected Adam
    config.search_learning_rate = 0.1  # of the first update, falls to 0

    # The tight family A_i = -tau I, Sigma = s I.
    config.tight_widths = (1, 3)  # d
    config.tight_depths = (1, 2, 4, 8, 16)  # l
    config.tight_taus = tuple(round(0.05 * k, 2) for k in range(1, 20))  # radii
    config.tight_scales = (0.5, 1.0, 2.0)  # s
    config.tight_tolerance = 1e-12  # largest relative error of the equality

    # Scaling of the data, Sigma -> s Sigma.
    config.scaling_points = 1000  # random points with d = 3 and l in 1 ... 4
    config.scaling_log10 = tuple(range(-3, 19))  # log10 of the factors s

    # Exact search for d = 1: layers in {0, -1/2, 1/2}, R and Sigma positive integers.
    config.exact_max_depth = 2  # largest l
    config.exact_max_integer = 4  # largest R and Sigma
    return config
