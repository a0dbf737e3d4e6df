"""What `make reproduce` runs, in this order: each experiment with all of its VARIANTS."""

import importlib

EXPERIMENTS = (
    "factorization",
    "gradient_bound",
    "landscape",
    "linear_training",
)


def variants(experiment: str) -> tuple[str, ...]:
    """The variants of an experiment that belong to the reproduction."""
    return importlib.import_module(f"experiments.configs.{experiment}").VARIANTS
