"""Parametrized tests whose rows say what each value is."""

from typing import Any

import pytest


def by_name(*rows: dict[str, Any]) -> pytest.MarkDecorator:
    """`pytest.mark.parametrize` with rows of arguments by name.

    >>> by_name({"x": 1, "square": 1}, {"x": 2, "square": 4}).args
    (('x', 'square'), [(1, 1), (2, 4)])
    """
    names = tuple(rows[0])
    return pytest.mark.parametrize(
        names, [tuple(row[name] for name in names) for row in rows]
    )
