"""Random damages to finished runs: each is refused, or leaves every value as it was."""

import json
import random
import shutil

import pytest

from experiments import judge
from identity_matters import runs
from tests.measured import REFERENCE
from tests.rewriting import rewrite
from tests.runs.toy_runs import DONE, create

DAMAGES = 60  # of each run
NAMES = ("landscape/critical_points", "relu/origin")


def changed(value, rng):
    """`value` with one thing changed, lost, renamed, doubled or added, at any depth."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        name = rng.choice(sorted(value))
        others = {key: entry for key, entry in value.items() if key != name}
        return rng.choice(
            [
                others,
                {**others, f"{name}x": value[name]},
                {**value, "new": 1},
                *3 * [{**value, name: changed(value[name], rng)}],
            ]
        )
    if isinstance(value, list) and value and rng.random() < 0.8:
        at = rng.randrange(len(value))
        before = value[:at]
        entry = value[at]
        after = value[at + 1 :]
        return rng.choice(
            [
                [*before, *after],
                [*before, entry, entry, *after],
                [*before, changed(entry, rng), *after],
            ]
        )
    return rng.choice([value is None, 77, -1.5, None, "holds", "0" * 16, [], {}])


def damaged(data: bytes, is_lines: bool, rng: random.Random) -> bytes:
    """The content of a file as a bad disk, a broken copy or a hand could leave it."""
    at = rng.randrange(len(data))
    end = at + rng.randrange(1, 40)
    lines = data.splitlines(keepends=True)
    first, second = sorted((rng.randrange(len(lines)), rng.randrange(len(lines))))
    match rng.randrange(7):
        case 0:
            return (
                data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
            )
        case 1:
            return data[:at]
        case 2:
            return data[:at] + data[end:]
        case 3:
            return data[:at] + bytes(len(data[at:end])) + data[end:]
        case 4:
            swapped = [lines[second], *lines[first + 1 : second], lines[first]]
            return b"".join([*lines[:first], *swapped, *lines[second + 1 :]])
        case 5:
            return b"".join([*lines[:first], *lines[second:], lines[second]])
    if is_lines:
        lines[first] = (
            json.dumps(changed(json.loads(lines[first]), rng)).encode() + b"\n"
        )
        return b"".join(lines)
    return json.dumps(changed(json.loads(data), rng)).encode()


def values(run: runs.Run) -> str:
    fields = run.config, run.environment, run.summary, run.records
    return json.dumps(runs.to_json(fields), sort_keys=True)


@pytest.mark.parametrize("name", NAMES)
def test_no_damage_is_taken_for_a_result(tmp_path, name):
    rng = random.Random(name)
    good = values(runs.read_run(REFERENCE / name / "seed=0"))
    path = tmp_path / name / "seed=0"
    refused = 0
    for _ in range(DAMAGES):
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(REFERENCE / name / "seed=0", path)
        file = path / rng.choice(judge.FILES)
        file.write_bytes(damaged(file.read_bytes(), file.suffix == ".jsonl", rng))
        accepted, problems = runs.read_collection(tmp_path)
        assert len(accepted) + len(problems) == 1
        if problems:
            assert str(path) in problems[0] and problems[0].isprintable()
            refused += 1
        else:
            assert values(accepted[0]) == good
    assert refused > 0.8 * DAMAGES


def test_the_environment_of_each_resumption_is_checked(tmp_path):
    path = tmp_path / "run"
    shutil.copytree(REFERENCE / NAMES[0] / "seed=0", path)
    environment = runs.read_run(path).environment
    rewrite(path, "environment.json", resumed=[environment])
    assert len(runs.read_run(path).environments) == 2
    rewrite(path, "environment.json", resumed=[{**environment, "commit": "unknown"}])
    with pytest.raises(runs.RunError, match=r"environment\.json: commit must be"):
        runs.read_run(path)


def test_a_run_that_was_killed_while_it_was_resumed_with_other_data_goes_on(tmp_path):
    """config.json is written first, and summary.json is still that of before."""
    config = {"data": {"data_dir": "here"}}
    create(tmp_path, config=config).finish("interrupted")
    (path,) = tmp_path.rglob("config.json")
    runs.write_json(path, {"data": {"data_dir": "there"}})
    create(tmp_path, config=config).finish("done", **DONE)
    assert runs.read_run(path.parent).config == config
