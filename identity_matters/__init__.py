"""Hardt & Ma (arXiv 1611.04231), reproduced, checked and extended in JAX."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from identity_matters import (
        images,
        linear,
        memorize,
        nets,
        paper,
        preprocessing,
        relu,
        report,
        train,
    )

__version__ = "0.1.0"
__all__ = [
    "__version__",
    "images",
    "linear",
    "memorize",
    "nets",
    "paper",
    "preprocessing",
    "relu",
    "report",
    "train",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Imports a part when it is first used.

        An example is `identity_matters.linear.factorize`.
        """
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return importlib.import_module(f"{__name__}.{name}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
