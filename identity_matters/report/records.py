"""Fields of records as rows of a table, for figures and verdicts."""

# The exceptions that reading a malformed record can raise.
MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def pick(record: dict, names: str) -> dict:
    """Some fields of a record, named in one string; "new=old" renames one."""
    pairs = (name.rpartition("=") for name in names.split())
    return {new or old: record[old] for new, _, old in pairs}


def rows(records: list[dict], names: str) -> list[dict]:
    """Some fields of each record, as in `pick`.

    Parallel lists give one row per position.

    From ``{"depth": 2, "norms": [0.1, 0.3]}``, "depth norm=norms" makes the rows
    ``{"depth": 2, "norm": 0.1}`` and ``{"depth": 2, "norm": 0.3}``. Lists may be
    nested.
    """
    found: list[dict] = []
    for row in (pick(record, names) for record in records):
        lists = [name for name, held in row.items() if isinstance(held, list)]
        if not lists:
            found.append(row)
            continue
        places = zip(*(row[name] for name in lists), strict=True)
        each = [row | dict(zip(lists, place, strict=True)) for place in places]
        found += rows(each, " ".join(row))
    return found
