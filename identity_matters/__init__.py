"""Hardt & Ma (arXiv 1611.04231), reproduced, checked and extended in JAX."""

from typing import TYPE_CHECKING

from identity_matters.lazy_names import module_getattr

# For type checkers, which cannot follow the __getattr__ below.
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

# At run time a part is imported when it is first used, as in
# `identity_matters.linear.factorize`: that should not load Flax.
if not TYPE_CHECKING:
    _PARTS = {name: name for name in __all__ if name != "__version__"}
    __getattr__ = module_getattr(__name__, _PARTS)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
