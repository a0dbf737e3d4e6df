"""What `make reproduce` runs, in this order: each experiment with all of its VARIANTS."""

import importlib

EXPERIMENTS = (
    "factorization",
    "gradient_bound",
    "landscape",
    "linear_training",
    "expressivity",
)


def variants(experiment: str) -> tuple[str, ...]:
    """The variants of an experiment that belong to the reproduction."""
    return _configs(experiment).VARIANTS


def other_variants(experiment: str) -> tuple[str, ...]:
    """Those that need prepared data, more time or an accelerator, and run only when named."""
    return getattr(_configs(experiment), "OTHER_VARIANTS", ())


def _configs(experiment: str):
    return importlib.import_module(f"experiments.configs.{experiment}")
