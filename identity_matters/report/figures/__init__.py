"""The figures of the report: those that the modules of this package declare, by name."""

import importlib
import pkgutil

from identity_matters.report import figure

for _module in pkgutil.iter_modules(__path__, f"{__name__}."):
    importlib.import_module(_module.name)
FIGURES = tuple(sorted(figure.DECLARED, key=lambda one: one.experiment))
