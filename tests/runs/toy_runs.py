"""A toy run and its lines, for the tests of run directories."""

from identity_matters import runs

DONE = {
    "claim": "theorem-2-1",
    "metrics": {"test_error_percent": 6.4},
    "paper": {"test_error_percent": 6.38},
    "verdict": "reproduced",
}


def create(results_dir, **changes):
    settings = {
        "experiment": "toy",
        "variant": "a/b",
        "seed": 3,
        "config": {"depth": (1, 2)},
    }
    return runs.RunDir.create(results_dir, **{**settings, **changes})


def lines_of(path):
    return (path / "metrics.jsonl").read_bytes().splitlines(keepends=True)
