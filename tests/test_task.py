import dataclasses

import numpy as np
import pytest

from tests import toy_training as toy


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"train_images": np.zeros((20, 4, 4, 1), np.float32)},
            r"train_images must be uint8\[n, h, w, c\], got float32\[20, 4, 4, 1\]",
        ),
        (
            {"test_labels": np.zeros(5, np.int64)},
            r"test_labels must be int\[13\] as there are 13 test_images, got int64\[5\]",
        ),
        ({"train_labels": np.zeros(20)}, r"got float64\[20\]"),
        (
            {"test_images": np.zeros((0, 4, 4, 1), np.uint8), "test_labels": np.zeros(0, int)},
            "test_images are empty",
        ),
    ],
)
def test_arrays_are_checked(changed, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(toy.make_task().data, **changed)
