"""The variables of a Flax module, by the names that Flax gives their collections."""

from collections.abc import Mapping
from typing import Any

# Those that are trained, those that are set once, and running means and variances.
COLLECTIONS = ("params", "fixed", "batch_stats")


def of_every_collection(variables: Mapping[str, Any]) -> dict:
    """The variables, with an empty dict for each collection that is missing."""
    return {name: variables.get(name, {}) for name in COLLECTIONS}
