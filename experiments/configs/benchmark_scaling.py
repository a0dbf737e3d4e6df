"""Settings of benchmarks/scaling.py."""

import ml_collections

VARIANTS = ("virtual_devices",)


def get_config(variant: str = VARIANTS[0]) -> ml_collections.ConfigDict:
    """The settings of `variant`, one of VARIANTS."""
    if variant not in VARIANTS:
        raise ValueError(f"variant must be one of {VARIANTS}, got {variant!r}")
    config = ml_collections.ConfigDict()
    config.variant = variant
    config.scale = "paper"  # the goal is ours
    config.device_counts = (2, 4, 8)  # each is compared with one device
    # A quarter of Table 1's width and a third of its depth: about a third of a second a step.
    config.net = {"blocks_per_stage": (3, 3, 3), "widths": (16, 32, 64)}
    config.batch_examples = 64  # over all devices
    # Random images of CIFAR's shape: their values do not matter for speed.
    config.examples = 1024
    config.image_pixels_per_side = 32
    config.num_classes = 10
    config.steps_per_round = 3
    config.rounds = 7
    config.largest_overhead = 1.5  # goal: time on several devices over that on one, at most
    return config
