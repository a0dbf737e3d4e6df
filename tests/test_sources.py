import dataclasses

import pytest

from identity_matters.data.sources import SOURCES, find_source


def test_published_sizes():
    assert SOURCES["cifar10"].splits == {"train": 50_000, "test": 10_000}
    assert SOURCES["cifar100"].num_classes == 100
    assert SOURCES["digits"].splits == {"all": 1797, "train": 1347, "test": 450}
    assert all(name == source.name for name, source in SOURCES.items())


def test_records_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        SOURCES["digits"].num_classes = 2


def test_unknown_names_are_answered_with_the_known_ones():
    with pytest.raises(ValueError, match="'mnist'; there are digits, cifar10, cifar100"):
        find_source("mnist")
    with pytest.raises(ValueError, match="cifar10 has the splits train, test, not 'validation'"):
        find_source("cifar10", "validation")
    assert find_source("cifar10", "test") is SOURCES["cifar10"]
