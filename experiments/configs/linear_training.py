"""Settings of experiments/linear_training.py."""

import ml_collections

VARIANTS = ("depth", "stuck_targets")


def get_config(variant: str = "depth") -> ml_collections.ConfigDict:
    """The settings of `variant`, one of VARIANTS."""
    if variant not in VARIANTS:
        raise ValueError(f"variant must be one of {VARIANTS}, got {variant!r}")
    config = ml_collections.ConfigDict()
    config.variant = variant  # which of the two questions, see VARIANTS
    config.scale = "paper"  # the deepest net has the 1202 layers that the paper cites

    config.descent = ml_collections.ConfigDict()  # gradient descent, the same for every network
    config.descent.relative_risk_tolerance = 1e-8  # of ||(I - R) Sigma^{1/2}||_F^2: "converged"
    config.descent.divergence_factor = 1e3  # stop above this many times the first excess risk
    config.descent.curve_points = 100  # at most so many points of a curve are kept

    config.problem = _depth() if variant == "depth" else _stuck_targets(config.descent)
    if variant == "depth":
        config.descent.max_updates = 1000  # about ten times what the residual nets need
        config.descent.record_every = 5  # updates between two records
        config.descent.stall_tolerance = 1e-12  # least relative decrease an update must promise
    return config


def _depth() -> ml_collections.ConfigDict:
    problem = ml_collections.ConfigDict()
    problem.depths = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 1202)  # layers
    problem.width = 6  # d
    problem.problem_seed = 0  # draws R and Sigma, the same at every depth; --seed draws the weights
    problem.gamma = 0.5  # gamma of R: singular values from e^-gamma to e^gamma
    problem.angles_radians = (1.5, 0.8)  # by which R turns its planes
    problem.sigma_eigenvalues = (0.5, 0.7, 0.9, 1.1, 1.3, 1.5)  # of Sigma = E[x x^T]
    problem.starts = 2  # random initial weights for each network and depth
    # Standard deviation of near-zero weights, times depth: |||A||| l starts at about 5 times that.
    problem.near_zero_std_times_depth = 0.1
    # Multiples of 1/L (training_setup.largest_stable_learning_rate). The standard nets take the
    # best of three, so that the residual nets have no advantage by the step size.
    problem.residual_rate_factors = (1.0,)
    problem.standard_rate_factors = (0.25, 1.0, 4.0)
    problem.stuck_from_depth = 8  # from here on standard nets near zero are claimed not to move
    problem.moved_relative_decrease = 0.01  # a net has moved if its excess risk fell by this part
    return problem


def _stuck_targets(descent) -> ml_collections.ConfigDict:
    descent.max_updates = 20_000
    descent.record_every = 1  # updates between two records
    descent.stall_tolerance = 0.0  # a stalled run is to go on for all its updates
    problem = ml_collections.ConfigDict()
    problem.depth = 8  # layers
    problem.plane_diagonal = (-1.0, -1.0, 1.0, 1.0)  # R with det R > 0 that stalls from zero
    problem.negative_diagonal = (1.0, 1.0, 1.0, -0.5)  # R with det R < 0 that stalls from zero
    problem.positive_diagonal = (2.0, 1.5, 1.0, 0.5)  # R that is learned from zero
    problem.rotation_radians = 2.5  # angle of a plane rotation that is learned from zero
    problem.map_widths = (8, 32, 128)  # m, width of the nets with fixed Gaussian maps
    problem.repeats = 3  # draws of each random start or pair of maps
    problem.noise_std = 1e-3  # of the entries of the noise added to zero weights
    problem.factorization_noise_std = 0.03  # of the noise added to the constructed factorization
    problem.stall_tolerance = 1e-3  # relative distance from the predicted excess that is a match
    return problem
