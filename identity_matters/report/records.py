"""Fields of records as rows of a table, for figures and verdicts."""

from identity_matters.runs import Run

# The exceptions that reading a malformed record can raise.
MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def of_kind(run: Run, kind: str, name: str = "kind") -> list[dict]:
    """The run's records of one kind, which is the field `name` of each."""
    return [record for record in run.records if record[name] == kind]


def pick(record: dict, names: str) -> dict:
    """Some fields of a record, named in one string; "new=old" renames one.

    The string is the header of a table: a figure lists its columns as it prints them.
    """
    picked = {}
    for name in names.split():
        new_name, _, old_name = name.rpartition("=")
        picked[new_name or old_name] = record[old_name]
    return picked


def rows_of(records: list[dict], names: str) -> list[dict]:
    """Some fields of each record, as in `pick`; parallel lists give a row per position.

    From ``{"depth": 2, "norms": [0.1, 0.3]}``, "depth norm=norms" makes the rows
    ``{"depth": 2, "norm": 0.1}`` and ``{"depth": 2, "norm": 0.3}``. Lists may be
    nested.
    """
    return [row for record in records for row in _without_lists(pick(record, names))]


def _without_lists(row: dict) -> list[dict]:
    """The row for each position of its lists, which are of the same length."""
    lists = {name: value for name, value in row.items() if isinstance(value, list)}
    if not lists:
        return [row]
    expanded = []
    for entries in zip(*lists.values(), strict=True):
        entry_of = dict(zip(lists, entries, strict=True))
        expanded += _without_lists(row | entry_of)
    return expanded
