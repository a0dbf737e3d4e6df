"""Settings of the toy experiment."""

import ml_collections


def get_config(variant: str = "plain") -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.variant = variant
    config.scale = "paper"
    config.values = (1, 2, 3)
    config.pause_seconds = 0.0
    config.action = "none"
    return config
