"""A gcloud for tests: notes its calls, keeps requests in a file and buckets in a directory.

Everything it knows lies in the directory that FAKE_GCLOUD names:
  calls     one call a line, as a JSON list
  states    the states that `queued-resources list` gives in turn, one a line; the last one stays,
            an empty line is no request at all
  fail      if there: calls that contain its first line fail, from the one on that its second counts
  buckets/  gs://NAME/... is buckets/NAME/...
"""

import json
import os
import pathlib
import re
import shutil
import sys

HOME = pathlib.Path(os.environ.get("FAKE_GCLOUD", "."))


def install(directory: pathlib.Path) -> dict[str, str]:
    """Puts a `gcloud` into `directory`/bin; the environment in which it is found."""
    (directory / "bin").mkdir(parents=True)
    program = directory / "bin" / "gcloud"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -SE {__file__} "$@"\n')
    program.chmod(0o755)
    path = f"{directory / 'bin'}:{os.environ['PATH']}"
    return {**os.environ, "FAKE_GCLOUD": str(directory), "PATH": path}


def main(words: list[str]) -> int:
    with open(HOME / "calls", "a") as file:
        file.write(json.dumps(["gcloud", *words]) + "\n")
    if _must_fail(words):
        print("ERROR: this call was told to fail", file=sys.stderr)
        return 1
    flags = [word for word in words if word.startswith("-")]
    arguments = [word for word in words if not word.startswith("-")]
    if words[:4] == ["compute", "tpus", "queued-resources", "list"]:
        print(_next_state())
    elif words[:2] == ["storage", "cp"]:
        source, target = map(_path, arguments[2:])
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    elif words[:2] == ["storage", "rsync"]:
        return _rsync(*map(_path, arguments[2:]), flags)
    return 0


def _must_fail(words: list[str]) -> bool:
    file = HOME / "fail"
    if not file.exists():
        return False
    part, first = file.read_text().splitlines()
    if part not in " ".join(words):
        return False
    file.write_text(f"{part}\n{max(int(first) - 1, 1)}\n")
    return int(first) <= 1


def _next_state() -> str:
    file = HOME / "states"
    states = file.read_text().split("\n")
    if len(states) > 1:
        file.write_text("\n".join(states[1:]))
    return states[0]


def _path(argument: str) -> pathlib.Path:
    if argument.startswith("gs://"):
        return HOME / "buckets" / argument.removeprefix("gs://")
    return pathlib.Path(argument)


def _rsync(source: pathlib.Path, target: pathlib.Path, flags: list[str]) -> int:
    if not source.is_dir():
        print(f"ERROR: {source} does not exist", file=sys.stderr)
        return 1
    exclude = next((f.split("=", 1)[1] for f in flags if f.startswith("--exclude=")), None)
    names = {
        str(path.relative_to(source))
        for path in source.rglob("*")
        if path.is_file() and not (exclude and re.match(exclude, str(path.relative_to(source))))
    }
    for name in sorted(names):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, target / name)
    if "--delete-unmatched-destination-objects" in flags:
        for path in [path for path in target.rglob("*") if path.is_file()]:
            if str(path.relative_to(target)) not in names:
                path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
