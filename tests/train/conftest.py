"""A trained net that the tests of this folder share."""

import pytest

from tests.train.striped_images import trained_on


@pytest.fixture(scope="module")
def trained():
    """A net of three steps on X, whose images were divided by 255."""
    return trained_on()[0]
