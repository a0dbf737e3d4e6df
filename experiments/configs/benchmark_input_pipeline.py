"""Settings of benchmarks/input_pipeline.py."""

import ml_collections

VARIANTS = ("imagenet",)


def get_config(variant: str = "imagenet") -> ml_collections.ConfigDict:
    """The settings of `variant`, one of VARIANTS."""
    if variant not in VARIANTS:
        raise ValueError(f"variant must be one of {VARIANTS}, got {variant!r}")
    config = ml_collections.ConfigDict()
    config.variant = variant
    config.scale = "paper"  # the goals are ours
    # A directory with a prepared imagenet2012, or with *.JPEG files; "" generates some.
    config.data_dir = ""
    config.images = 256  # different ones; a prepared imagenet2012 has its own number
    config.cores = (1, 0)  # 0: all
    config.batch_examples = 64
    config.batches_per_round = 8
    config.rounds = 5
    # The simulated accelerator takes this times as long for a step as the pipeline for its batch.
    config.step_over_batch_seconds = 1.25
    config.least_share_of_decoder_percent = 80.0  # goal
    config.most_wait_percent = 5.0  # goal
    return config
