"""Settings of benchmarks/train_step.py."""

import ml_collections

VARIANTS = ("cpu", "gpu")
_FULL = {"blocks_per_stage": (9, 9, 9), "widths": (64, 128, 256)}
_QUARTER = {"blocks_per_stage": (9, 9, 9), "widths": (16, 32, 64)}


def get_config(variant: str = "cpu") -> ml_collections.ConfigDict:
    """The settings of `variant`, one of VARIANTS."""
    if variant not in VARIANTS:
        raise ValueError(f"variant must be one of {VARIANTS}, got {variant!r}")
    on_gpu = variant == "gpu"
    config = ml_collections.ConfigDict()
    config.variant = variant
    config.scale = "paper"  # the goals are ours
    # Table 1, and on a CPU a quarter of its width as well.
    config.nets = {"table_1": _FULL} if on_gpu else {"table_1": _FULL, "quarter_width": _QUARTER}
    config.batch_examples = 128 if on_gpu else 32
    config.compute_dtype = "bfloat16" if on_gpu else "float32"
    config.steps_per_round = 400 if on_gpu else 3
    config.steps_per_dispatch = 100 if on_gpu else 1
    config.rounds = 5
    # Random images of CIFAR's shape: their values do not matter for speed.
    config.examples = 50_000 if on_gpu else 5_000
    config.image_pixels_per_side = 32
    config.num_classes = 10
    config.pad_pixels_per_side = 2
    config.learning_rate = 0.01
    # Goal: our images per second over PyTorch's, at least.
    config.least_speedup = 1.2 if on_gpu else 1.0
    # Goal: images per second, by a part of the device's name.
    config.images_per_second_goals = {"H200": 33_000}
    # The interpreter of an environment with PyTorch.
    config.torch_python = ".venv-torch/bin/python"
    return config
