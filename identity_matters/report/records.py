"""Fields of records as rows of a table, for figures and verdicts."""

from identity_matters.runs import Run

# The exceptions that reading a malformed record can raise.
MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def of_kind(run: Run, kind: str, name: str = "kind") -> list[dict]:
    """The run's records of one kind, which is the field `name` of each."""
    return [record for record in run.records if record[name] == kind]


def pick(record: dict, names: str) -> dict:
    """Some fields of a record, named in one string; "new=old" renames one.

    The names are in one string because they are also the columns of the figure's CSV.
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


def totals_of_slices(records: list[dict]) -> list[dict]:
    """One row for each number n of examples, over the slices that a network ran on.

    Errors and seconds of running are sums; largest errors and memory are maxima. A
    network that was built again after an interruption counts with its quickest build.
    """
    sizes = sorted({record["examples"] for record in records})
    return [
        _total(n, [record for record in records if record["examples"] == n])
        for n in sizes
    ]


def _total(n: int, slices: list[dict]) -> dict:
    """The row of one n."""
    return {
        "examples": n,
        "errors": sum(record["errors"] for record in slices),
        "certified": all(record["certified"] for record in slices),
        "max_abs_error": max(record["max_abs_error"] for record in slices),
        "build_seconds": min(record["build_seconds"] for record in slices),
        "run_seconds": sum(record["run_seconds"] for record in slices),
        "peak_memory_gigabytes": max(
            record["peak_memory_gigabytes"] for record in slices
        ),
    }
