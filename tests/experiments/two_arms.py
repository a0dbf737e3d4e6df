"""A file of settings: `digits/initialisation` with the two arms that its verdict needs.

An arm takes six trainings, which for the six arms are most of the time of
tests/experiments/test_experiments.py; tests/experiments/test_image_settings.py makes
the trainings of every arm.
"""

import ml_collections

from experiments.images import comparisons


def get_config(variant: str = "digits/initialisation") -> ml_collections.ConfigDict:
    settings = comparisons.get_config(variant).to_dict()
    settings["arms"] = {name: settings["arms"][name] for name in ("paper", "he")}
    return ml_collections.ConfigDict(settings)
