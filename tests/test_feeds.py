import numpy as np
import pytest

from identity_matters.training import feeds
from identity_matters.training.task import Streams
from tests import toy_training as toy


class Opened:
    """A stream of batches that hold their own step."""

    def __init__(self, first_step, steps):
        self.batches = iter(
            [
                {"images": np.full((2, 1, 1, 1), step, np.uint8), "labels": np.full(2, step)}
                for step in range(first_step, first_step + steps)
            ]
        )
        self.closed = False

    def __next__(self):
        return next(self.batches)

    def close(self):
        self.closed = True


@pytest.fixture
def opened():
    return []


@pytest.fixture
def feed(opened):
    def open_train(first_step, steps):
        opened.append(Opened(first_step, steps))
        return opened[-1]

    return feeds.make_feed(Streams((1, 1, 1), 20, 5, open_train, None), slice(0, 2), steps=7)


def test_a_stream_opens_once_at_the_first_step_taken(feed, opened):
    one = feed.take(3, 4)
    assert one["images"].shape == (1, 2, 1, 1, 1) and one["labels"].tolist() == [[3, 3]]
    assert feed.take(4, 6)["labels"].tolist() == [[4, 4], [5, 5]]
    assert feed.take(6, 7)["labels"].tolist() == [[6, 6]]
    assert len(opened) == 1
    feed.close()
    assert opened[0].closed


def test_a_stream_does_not_jump(feed):
    feed.take(0, 1)
    with pytest.raises(ValueError, match="first must be 1, the next step of the stream, got 2"):
        feed.take(2, 3)


def test_closing_what_was_never_opened(feed, opened):
    feed.close()
    assert not opened


def test_arrays_give_this_process_its_rows():
    data = toy.make_task(batch_examples=8).data
    halves = [feeds.make_feed(data, rows, 4).take(1, 3) for rows in (slice(0, 4), slice(4, 8))]
    indices, epochs = data.batch_plan(1, 2)
    for name, whole in (("indices", indices), ("epochs", epochs)):
        both = np.concatenate([half[name] for half in halves], axis=1)
        np.testing.assert_array_equal(both, whole)
