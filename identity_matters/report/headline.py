"""What the table of claims says of one claim."""

import dataclasses

NOT_IN_PAPER = "not in the paper"
NOT_RUN = "not run"


@dataclasses.dataclass(frozen=True)
class Headline:
    """What stands in the table of claims.

    Attributes:
      paper: the published figure or bound.
      ours: sentences with values, see `values`; those that have runs are shown.
      command: what makes the runs, where it is not ``make reproduce-<experiment>``.
    """

    paper: str
    ours: tuple[str, ...]
    command: str = ""
