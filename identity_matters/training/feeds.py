"""The batches of a run, dispatch by dispatch, whether its data are arrays or streams."""

from typing import Any

import numpy as np

from identity_matters.training.task import Arrays, Streams


class ArrayFeed:
    """Only positions: the examples lie on the devices.

    Args:
      data: the splits.
      rows: this process's part of a batch.
    """

    def __init__(self, data: Arrays, rows: slice):
        self._data = data
        self._rows = rows

    def take(self, first: int, end: int) -> dict:
        """What the steps `first`, ..., `end` - 1 see: {"indices", "epochs"}, i32[steps, rows]."""
        indices, epochs = self._data.batch_plan(first, end - first)
        return {"indices": indices[:, self._rows], "epochs": epochs[:, self._rows]}

    def close(self) -> None:
        """Nothing is open."""


class StreamFeed:
    """Images as they are decoded; the stream opens at the first step taken and runs to the last.

    Args:
      data: the streams.
      steps: of the whole run.
    """

    def __init__(self, data: Streams, steps: int):
        self._data = data
        self._steps = steps
        self._stream: Any = None
        self._step = 0

    def take(self, first: int, end: int) -> dict:
        """As `ArrayFeed.take`, with "images": u8[steps, rows, h, w, c] and "labels" beside them.

        Raises:
          ValueError: `first` is not the step after the last one taken.
        """
        if self._stream is None:
            self._stream = self._data.open_train(first, self._steps - first)
            self._step = first
        if first != self._step:
            raise ValueError(
                f"first must be {self._step}, the next step of the stream, got {first}"
            )
        batches = [next(self._stream) for _ in range(first, end)]
        self._step = end
        if len(batches) == 1:
            # A view: a batch of ImageNet is 39 MB.
            return {name: value[None] for name, value in batches[0].items()}
        return {name: np.stack([batch[name] for batch in batches]) for name in batches[0]}

    def close(self) -> None:
        """Ends the threads and processes that read."""
        if self._stream is not None:
            self._stream.close()


def make_feed(data: Arrays | Streams, rows: slice, steps: int) -> ArrayFeed | StreamFeed:
    """The feed of a run of `steps` steps, with `rows` of each batch for this process."""
    return StreamFeed(data, steps) if isinstance(data, Streams) else ArrayFeed(data, rows)
