"""Values survive the way to a file and back; a file is replaced as a whole."""

import json
import math

import jax.numpy as jnp
import numpy as np
import pytest

from identity_matters import json_files


def test_arrays_become_lists_and_scalars_numbers():
    value = {"a": np.arange(3), "b": jnp.float32(1.5), 2: (np.int64(7), True, None, "text")}
    assert json_files.to_json(value) == {"a": [0, 1, 2], "b": 1.5, "2": [7, True, None, "text"]}


def test_non_finite_numbers_survive_strict_json():
    text = json.dumps(json_files.to_json([math.inf, -math.inf, math.nan]), allow_nan=False)
    assert text == '["Infinity", "-Infinity", "NaN"]'
    infinity, minus_infinity, nan = json_files.from_json(json.loads(text))
    assert (infinity, minus_infinity) == (math.inf, -math.inf)
    assert math.isnan(nan)


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "file.json"
    json_files.write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        json_files.write_json(path, {"a": object()})
    assert json_files.read_json(path) == {"a": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["file.json"]


def test_a_line_cut_short_is_left_out(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": 2}\n{"a": ')
    assert json_files.read_complete_lines(path) == ([{"a": 1}, {"a": 2}], 18)


@pytest.mark.parametrize(
    ("content", "reason"),
    [("[1]", "must hold a JSON object"), ("{", "not JSON"), (None, "missing")],
)
def test_a_malformed_file_is_named(tmp_path, content, reason):
    path = tmp_path / "summary.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(json_files.MalformedFileError, match=rf"summary\.json: {reason}"):
        json_files.read_json(path)


def test_a_malformed_line_is_named_with_its_number(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"a": 1}\nnonsense\n')
    with pytest.raises(json_files.MalformedFileError, match=r"metrics\.jsonl:2: not JSON"):
        json_files.read_complete_lines(path)
