"""Settings of benchmarks/linear.py."""

import ml_collections

VARIANTS = ("gradient_step",)


def get_config(variant: str = "gradient_step") -> ml_collections.ConfigDict:
    """The settings of `variant`, one of VARIANTS."""
    if variant not in VARIANTS:
        raise ValueError(f"variant must be one of {VARIANTS}, got {variant!r}")
    config = ml_collections.ConfigDict()
    config.variant = variant
    config.scale = "paper"  # the paper times nothing; depths and width are our goal's
    config.depths = (64, 128, 256, 512, 1024, 2048, 4096)  # layers
    config.width = 64  # d
    # Steps in one dispatch: so many that they cover layers_per_run layers, for shallow nets are
    # timed badly otherwise, and at least five, so that memory is not allocated for each.
    config.layers_per_run = 2048
    config.least_updates_per_run = 5
    config.repeats = 3  # timed rounds; each round times the steps and both chains in turn
    config.largest_ratio = 2.0  # goal: time of a step over that of the faster chain, at most
    config.exponent_tolerance = 0.15  # goal: step time grows as depth^p with |p - 1| at most this
    return config
