"""Messages to people: one line each, in which nothing acts on a terminal."""

import unicodedata

# Unicode's general categories of characters that
# control, reorder or hide text, or are no text.
_INVISIBLE = {"Cc", "Cf", "Cn", "Co", "Cs"}
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class RunError(Exception):
    """A run directory cannot be used; the message names it and says what to do."""

    def __init__(self, message: str):
        super().__init__(visible(message))


class MalformedFileError(RunError):
    """A file is missing or malformed; the message names it and says what is wrong."""


class NotResumableError(RunError):
    """A run stands in the way of the one that was to be made.

    Attributes:
      reason: names the directory, or the file, and says why it cannot be resumed; the
        message adds how to go on.
    """

    def __init__(self, reason: str, how_to_go_on: str):
        super().__init__(f"{reason}; {how_to_go_on}")
        self.reason = visible(reason)


def visible(text: object) -> str:
    """`text` as one line without control characters, of the same length.

    White space, line breaks included, becomes a blank. Characters that a terminal would
    obey, that reverse or hide other text, or that cannot be encoded become U+FFFD.

    >>> visible("a\\n\\x1b[2Jb")
    'a \N{REPLACEMENT CHARACTER}[2Jb'
    """
    text = str(text)
    if text.isprintable():
        return text
    return "".join(map(_visible_character, text))


def _visible_character(character: str) -> str:
    if character.isspace():
        return " "
    return REPLACEMENT if unicodedata.category(character) in _INVISIBLE else character


def first_line(error: BaseException) -> str:
    """The first line of an error's message; if that is empty, its type."""
    # str() of a KeyError is the repr of its key.
    text = str(
        error.args[0] if isinstance(error, KeyError) and error.args else error
    ).strip()
    return visible(text.splitlines()[0]) if text else type(error).__name__
