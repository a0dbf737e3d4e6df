import inspect

import pytest

from identity_matters.models.registry import MODELS


def test_names():
    assert sorted(MODELS) == [
        "all_cnn_c",
        "all_conv_residual",
        "densenet",
        "mlp",
        "resnet",
        "resnet_imagenet",
    ]
    for name, factory in MODELS.items():
        assert factory.__name__ == name


@pytest.mark.parametrize("name", MODELS)
def test_factories_take_settings_by_keyword_alone(name):
    """A misspelt setting must be an error; the common ones have one name everywhere."""
    parameters = inspect.signature(MODELS[name]).parameters
    assert {p.kind for p in parameters.values()} == {inspect.Parameter.KEYWORD_ONLY}
    assert parameters["num_classes"].default is inspect.Parameter.empty
    assert parameters["compute_dtype"].default == "float32"
    assert parameters["axis_name"].default is None
