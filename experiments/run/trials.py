"""How experiments list their trials: combinations of the settings with several values.

Trials are plain dicts, which metrics.jsonl repeats beside what was measured.
"""

import itertools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple


class Kind(NamedTuple):
    """A kind of trials: the type that `build` makes of each, and what measures it.

    Attributes:
      trial_type: a NamedTuple, whose fields are settings of the trial.
      measure: takes such a trial and a key, and returns what was measured.
    """

    trial_type: Any
    measure: Callable[..., dict]

    def make_trial(self, settings: dict) -> Any:
        """The trial, from those settings that are its fields.

        Raises TypeError, which names them, for missing fields without a default.
        """
        return self.trial_type(**only(settings, self.trial_type._fields))


def grid(**values) -> list[dict]:
    """One dict for each combination of one value per name; the last varies fastest."""
    names = tuple(values)
    return [
        dict(zip(names, row, strict=True))
        for row in itertools.product(*values.values())
    ]


def only(settings: dict, names: Iterable[str]) -> dict:
    """Those settings that have these names."""
    return {name: settings[name] for name in names if name in settings}


def without(settings: dict, *names: str) -> dict:
    """The settings that have none of these names."""
    return {name: value for name, value in settings.items() if name not in names}


def each(settings: dict, several: dict[str, str], **first) -> list[dict]:
    """One trial for each combination of values; all other settings are unchanged.

    Args:
      settings: the settings; those that `several` names hold lists.
      several: which settings are lists, and how a trial calls one entry. ``{"depths":
        "depth", "sizes": "width depth"}`` turns each pair of `sizes` into a `width` and
        a `depth`. Settings that are missing are skipped; the last one varies fastest.
      first: fields that come first in every trial.
    Raises:
      ValueError: an entry does not have one part for each name.
    """
    trials = [first | without(settings, *several)]
    for setting, called in several.items():
        if setting in settings:
            values = list(settings[setting])
            entries = _named_entries(setting, values, called.split())
            trials = [trial | entry for trial in trials for entry in entries]
    return trials


def _named_entries(setting: str, values: list, names: list[str]) -> list[dict]:
    """The entries of one setting as dicts from the trial's names to their parts."""
    if len(names) == 1:
        return [{names[0]: value} for value in values]
    for value in values:
        if len(value) != len(names):
            raise ValueError(
                f"each of {setting} must be ({', '.join(names)}), got {value}"
            )
    return [dict(zip(names, value, strict=True)) for value in values]


def slices(examples: int, *, slice_examples: int) -> list[dict]:
    """The slices of that many examples, in order; the last one may have fewer.

    Each is the fields "first_of_slice" and "slice_examples" of a trial; see `slice_of`.
    """
    return [
        {
            "first_of_slice": first,
            "slice_examples": min(slice_examples, examples - first),
        }
        for first in range(0, examples, slice_examples)
    ]


def slice_of(trial: Any) -> slice:
    """The places of the examples of a trial that `slices` has made."""
    return slice(trial.first_of_slice, trial.first_of_slice + trial.slice_examples)
