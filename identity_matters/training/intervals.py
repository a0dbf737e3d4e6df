"""When a run dispatches, logs, evaluates and saves.

Dispatches end at every multiple of the intervals for logs, evaluations and checkpoints. Where they
end depends on the step alone, so a resumed run repeats the programs of an uninterrupted one.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Intervals:
    """When things happen, in steps.

    >>> every = Intervals(100, 10, 25, 50, 50)
    >>> every.dispatch_end(20), every.next_due(20, "evaluation"), every.is_due("log", 75)
    (25, 50, True)

    Raises:
      ValueError: one of them is below 1.
    """

    steps: int
    steps_per_dispatch: int
    steps_per_log: int
    steps_per_evaluation: int
    steps_per_checkpoint: int

    def __post_init__(self):
        for field in dataclasses.fields(self):
            if getattr(self, field.name) < 1:
                raise ValueError(
                    f"{field.name} must be at least 1, got {getattr(self, field.name)}"
                )

    def is_due(self, name: str, step: int) -> bool:
        """Whether a log, evaluation or checkpoint is due at `step`; each is at the last step."""
        return step % getattr(self, f"steps_per_{name}") == 0 or step == self.steps

    def next_due(self, step: int, *names: str) -> int:
        """The first step after `step` at which any of `names` is due."""
        intervals = [getattr(self, f"steps_per_{name}") for name in names]
        return min(self.steps, *(step - step % every + every for every in intervals))

    def dispatch_end(self, step: int) -> int:
        """Where the dispatch that starts after `step` ends."""
        due = self.next_due(step, "log", "evaluation", "checkpoint")
        return min(due, step + self.steps_per_dispatch)

    def dispatch_lengths(self, step: int, until: int) -> set[int]:
        """The different numbers of steps of the dispatches from `step` to `until`."""
        lengths = set()
        while step < until:
            end = self.dispatch_end(step)
            lengths.add(end - step)
            step = end
        return lengths
