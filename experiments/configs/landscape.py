"""Settings of experiments/landscape.py."""

import ml_collections

VARIANTS = ("critical_points", "hessian_at_origin", "negative_determinant")


def get_config(variant: str = "critical_points") -> ml_collections.ConfigDict:
    """The settings of `variant`, one of VARIANTS."""
    if variant not in VARIANTS:
        raise ValueError(f"variant must be one of {VARIANTS}, got {variant!r}")
    config = ml_collections.ConfigDict()
    config.variant = variant
    config.scale = "paper"  # the theorem has no size; widths, depths and counts are our choice
    config.max_condition_log10 = 1.0  # largest log10 of the condition number of Sigma
    if variant == "critical_points":
        config.widths = (1, 2, 3)  # d
        config.depths = (1, 2, 3, 4)  # l
        # Targets R = exp(size * Gaussian / sqrt(d)), so that det R > 0; from near I to far from it.
        config.target_sizes = (0.2, 0.6, 1.2)
        config.start_taus = (0.1, 0.5, 0.9, 0.99)  # norms of the starts inside the ball
        config.outside_norms = (1.5, 3.0)  # norms of the starts outside, for contrast
        config.starts = 8  # starts for each target size and norm, each with its own R and Sigma
        config.steps = 100  # most steps of Levenberg-Marquardt
        config.gradient_tolerance = 1e-11  # a point with ||grad f||_F up to this is critical
        config.wall_margin = 0.01  # inside means |||A||| <= 1 - wall_margin
        config.excess_tolerance = 1e-9  # optimal means (f - C) / ||R Sigma^{1/2}||^2 up to this
        config.least_inside = 100  # critical points inside that the verdict needs
    elif variant == "hessian_at_origin":
        config.widths = (2,)  # d
        config.depths = (1, 2, 3, 4, 5, 6)  # l
        config.target_sizes = (0.0, 0.6)  # as above; 0 gives R = I
    else:
        config.widths = (1, 2, 3)  # d
        config.depths = (1, 2, 3)  # l
        config.taus = (0.1, 0.3, 0.5, 0.7, 0.9, 0.99)  # radii of the balls
        config.problems = 4  # pairs of R and Sigma for each width and depth, the same in every ball
        config.starts = 5  # random starts for each problem and ball
        config.steps = 300  # updates of projected Adam
        config.learning_rate = 0.05  # of the first update, falls to 0
        # The floor may be passed by rounding alone: relative, about 2 l eps / (1 - tau).
        config.relative_tolerance = 1e-9
    return config
