"""Run directories, which experiments write and the report reads.

Other people's scripts may read them, too.

One run is one directory ``<results_dir>/<experiment>/<variant>/seed=<k>/`` that holds

* ``config.json``       the settings it ran with,
* ``environment.json``  the code, versions, hardware and command (and those of every
  resumption),
* ``metrics.jsonl``     one JSON object a line, appended as the run goes,
* ``summary.json``      the contract that tables and scripts rely on (see `contract`).

`run_dir` writes runs, with the lines of `metrics_file`, and `read` reads them back.
`seals` finds what was changed by accident. Results may be in a bucket (gs://...).
Buckets have no locks, so start each run only once.
"""

from identity_matters.runs.contract import (
    CHECKPOINTS,
    FINISHED,
    SCALES,
    SCHEMA,
    SEEDS,
    STATUSES,
    VERDICTS,
    check_environment,
    check_summary,
    run_path,
    without_non_finite,
)
from identity_matters.runs.jsonio import (
    NON_FINITE,
    from_json,
    read_json,
    to_json,
    write_atomically,
    write_json,
)
from identity_matters.runs.messages import (
    MalformedFileError,
    NotResumableError,
    RunError,
    first_line,
    visible,
)
from identity_matters.runs.read import Run, read_collection, read_run
from identity_matters.runs.run_dir import (
    FULL_DISK,
    RunDir,
    lock_path,
    why_not_resumable,
)
from identity_matters.runs.settings_diff import (
    PLACE_SETTINGS,
    differences,
    flat,
    why_not_of_variant,
)

__all__ = [
    "CHECKPOINTS",
    "FINISHED",
    "FULL_DISK",
    "NON_FINITE",
    "PLACE_SETTINGS",
    "SCALES",
    "SCHEMA",
    "SEEDS",
    "STATUSES",
    "VERDICTS",
    "MalformedFileError",
    "NotResumableError",
    "Run",
    "RunDir",
    "RunError",
    "check_environment",
    "check_summary",
    "differences",
    "first_line",
    "flat",
    "from_json",
    "lock_path",
    "read_collection",
    "read_json",
    "read_run",
    "run_path",
    "to_json",
    "visible",
    "why_not_of_variant",
    "why_not_resumable",
    "without_non_finite",
    "write_atomically",
    "write_json",
]
