"""Names of a package that load their module when they are first used.

Importing a package then costs nothing: ``--help`` does not wait for JAX, and neither do
`factorize` and the other names of `identity_matters.linear` whose modules use NumPy
alone. A NumPy module that imports a JAX module does load JAX, as
`identity_matters.linear.sampled_bound` does by importing `sampled`.
"""

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def module_getattr(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package, which Python calls for a name it lacks.

    Args:
      package: the package's ``__name__``.
      modules: name -> the module below the package that defines it; of the same name if
        the module itself is meant.
    """

    def getattr_of_package(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(f"{package}.{modules[name]}")
        return module if name == modules[name] else getattr(module, name)

    return getattr_of_package
