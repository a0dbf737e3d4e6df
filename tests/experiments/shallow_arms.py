"""A file of settings: `digits/two_depths` with nets of 7 convolutions in every arm.

The nets of 31 take seconds to compile.
"""

import ml_collections

from experiments.images import comparisons


def get_config(variant: str = "digits/two_depths") -> ml_collections.ConfigDict:
    settings = comparisons.get_config(variant)
    for arm in settings.arms.values():
        arm.blocks_per_stage = (1, 1, 1)
    return settings
