"""When a training dispatches, logs, evaluates and saves."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Intervals:
    """How often a run dispatches, logs, evaluates and saves, in steps.

    Logs, evaluations and checkpoints are also due at the last step, and an evaluation
    also before the first. A dispatch ends wherever something is due. Its end depends
    only on where it starts, so a resumed run executes the same programs as an
    uninterrupted one. Raises ValueError for an interval below 1.

    >>> every = Intervals(
    ...     steps=100,
    ...     steps_per_dispatch=10,
    ...     steps_per_log=25,
    ...     steps_per_evaluation=50,
    ...     steps_per_checkpoint=50,
    ... )
    >>> every.dispatch_end(20)
    25
    >>> every.next_due(20, "evaluation")
    50
    >>> every.is_due("log", 75)
    True
    """

    steps: int
    steps_per_dispatch: int
    steps_per_log: int
    steps_per_evaluation: int
    steps_per_checkpoint: int

    def __post_init__(self):
        for name, value in dataclasses.asdict(self).items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")

    def is_due(self, name: str, step: int) -> bool:
        """Whether a log, evaluation or checkpoint is due at `step`."""
        if step == 0:
            return name == "evaluation"
        return step % getattr(self, f"steps_per_{name}") == 0 or step == self.steps

    def next_due(self, step: int, *names: str) -> int:
        """The first step after `step` at which any of `names` is due."""
        intervals = [getattr(self, f"steps_per_{name}") for name in names]
        return min(self.steps, *(step - step % every + every for every in intervals))

    def dispatch_end(self, step: int) -> int:
        """The last step of the dispatch that starts after `step`."""
        due = self.next_due(step, "log", "evaluation", "checkpoint")
        return min(due, step + self.steps_per_dispatch)

    def seconds_left(
        self, step: int, *, step_seconds: float, evaluation_seconds: float
    ) -> float:
        """Estimated time from `step` to the end of the run.

        Args:
          step: updates made so far.
          step_seconds, evaluation_seconds: how long each takes.
        """
        evaluations_in_all = -(-self.steps // self.steps_per_evaluation)
        evaluations = evaluations_in_all - step // self.steps_per_evaluation
        return (self.steps - step) * step_seconds + evaluations * evaluation_seconds
