"""Paths as users write them: a leading `~` is their home directory."""

import os


def expand_home(path: str | os.PathLike[str]) -> str:
    """`path` with a leading `~` or `~user` replaced by that home directory.

    Shells leave `~` alone inside `--flag=~/x`, so every path that a user gives comes
    through here. All other paths are returned as they are, those of buckets
    (`gs://...`) too.

    Raises:
      ValueError: if the home directory is not known, as in containers that run as an
        unknown user.

    >>> expand_home("gs://bucket/results")
    'gs://bucket/results'
    """
    text = os.fspath(path)
    expanded = os.path.expanduser(text)
    if text.startswith("~") and expanded == text:
        raise ValueError(
            f"{text}: this home directory is not known; write the path out, or ./{text}"
            " if ~ is part of the name"
        )
    return expanded
