"""Changes to the files of a run, sealed again.

They are as a run with these values would have written them. This is also what somebody
can do who forges a run on purpose.
"""

from identity_matters import runs
from identity_matters.runs import seals
from identity_matters.runs.read import sealed_with


def rewrite(path, name: str, **fields) -> None:
    """Sets fields of the file `name` of the run at `path`; ``...`` removes one."""
    values = {
        file: runs.read_json(path / file)
        for file in ("config.json", "environment.json", "summary.json")
    }
    changed = {**values[name], **fields}
    values[name] = {
        field: value for field, value in changed.items() if value is not ...
    }
    config, environment, summary = values.values()
    environment = seals.sealed(environment)
    others = sealed_with(summary, config, environment)
    runs.write_json(path / "config.json", config)
    runs.write_json(path / "environment.json", environment)
    runs.write_json(path / "summary.json", seals.sealed(summary, *others))
