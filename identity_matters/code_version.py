"""Which code runs: its commit, whether it was changed, and a digest of its sources.

Git's own `status` trusts flags of the index, the user's configuration and further
ignore files. Here the contents of all files are compared with the commit's tree
instead.

A copy without .git, such as a container's, can carry the file .code_version.json. A
clone without changes writes it with

    python -m identity_matters.code_version

It lists the commit's files and their hashes, with which the copy is compared.
"""

import hashlib
import json
import os
import pathlib
import subprocess
import sys
from typing import NamedTuple

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
FILE = ".code_version.json"
GIT_TIMEOUT_SECONDS = 30
# What can change a number: these files in these directories.
_CODE_DIRECTORIES = ("identity_matters", "experiments", "benchmarks")
_CODE_ENDINGS = (".py", ".toml")
_RESULTS = "results/"  # may differ from the commit: it is where runs go
_LINK = "120000"  # git's mode of a symbolic link
_SHA1_DIGITS = 40
_FILE_TYPES = ("100644", "100755", _LINK)

Tree = dict[str, tuple[str, str]]  # path -> (git's mode, hash of the content)


def code_version() -> dict:
    """Returns what environment.json says about the code.

    Returns:
      commit: the commit of the clone, or of the copy's .code_version.json; None if
        unknown.
      dirty: whether files outside results/ differ from the commit, or others are there
        that .gitignore does not name; None if unknown.
      code: a digest of the source files as they are; see `digest`.
    """
    commit, tree, other_files = _from_git() if _is_clone() else _from_file()
    dirty = None
    if tree is not None and other_files is not None:
        dirty = bool(other_files) or any(
            not _is_unchanged(path, *tree[path]) for path in tree
        )
    return {"commit": commit, "dirty": dirty, "code": digest(_source_hashes())}


def digest(hashes: dict[str, str]) -> str:
    """A digest of the source files in `hashes`: path -> git's SHA-1 of the content.

    So it is also the same in clones that use SHA-256.
    """
    lines = [
        f"{content} {path}\n"
        for path, content in sorted(hashes.items())
        if _is_code(path)
    ]
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:16]


def digest_of_commit(commit: str) -> str | None:
    """The `digest` of a commit's source files; None if this clone lacks the commit."""
    tree = _tree_of(commit) if _is_clone() else None
    if tree is None:
        return None
    hashes = {}
    for path, (_, name) in tree.items():
        if _is_code(path):
            sha1 = _sha1_of_blob(name)
            if sha1 is None:
                return None
            hashes[path] = sha1
    return digest(hashes)


def _sha1_of_blob(name: str) -> str | None:
    """The SHA-1 of what git calls `name`; None if git cannot tell.

    It is the name itself, except in the clones that use SHA-256.
    """
    if len(name) == _SHA1_DIGITS:
        return name
    content = _git("cat-file", "blob", name)
    return None if content is None else _hash(content)


def _is_code(path: str) -> bool:
    """Whether a file, by its path in the repository, is source code of the suite."""
    return path.split("/")[0] in _CODE_DIRECTORIES and path.endswith(_CODE_ENDINGS)


def _source_hashes() -> dict[str, str]:
    """Path -> git's SHA-1 of the content, of the source files as they are now."""
    return {
        path.relative_to(REPOSITORY).as_posix(): _hash(_content(path))
        for name in _CODE_DIRECTORIES
        for path in (REPOSITORY / name).rglob("*")
        if path.suffix in _CODE_ENDINGS and path.is_file()
    }


def _content(path: pathlib.Path) -> bytes:
    """What git stores: a text with its line ends, or the target of a symbolic link."""
    if path.is_symlink():
        return os.fsencode(os.readlink(path))
    return path.read_bytes().replace(b"\r\n", b"\n")


def _hash(content: bytes, digits: int = _SHA1_DIGITS) -> str:
    """Git's hash of a file's content: SHA-1, or SHA-256 in the clones that use it."""
    function = hashlib.sha1 if digits == _SHA1_DIGITS else hashlib.sha256
    return function(b"blob %d\0" % len(content) + content).hexdigest()


def _is_unchanged(name: str, mode: str, expected: str) -> bool:
    """Whether the file `name` has the content with this hash, up to the line ends."""
    path = REPOSITORY / name
    try:
        if path.is_symlink() != (mode == _LINK):
            return False
        contents = [_content(path)]
        if mode != _LINK:
            contents.append(path.read_bytes())
    except OSError:
        return False
    return any(_hash(content, len(expected)) == expected for content in contents)


def _is_clone() -> bool:
    """Whether REPOSITORY is the top of a clone.

    A copy may lie inside one of the user's clones.
    """
    top = _git("rev-parse", "--show-toplevel")
    return (
        top is not None
        and pathlib.Path(os.fsdecode(top.rstrip(b"\n"))).resolve() == REPOSITORY
    )


class _Version(NamedTuple):
    """A commit and what is known of it; None for what is not."""

    commit: str | None = None
    tree: Tree | None = None  # its files outside results/
    # files that are here, but neither in the tree nor ignored
    other_files: list[str] | None = None


def _from_git() -> _Version:
    """What git says of the clone that this is; nothing if git does not answer."""
    commit = _git("rev-parse", "--verify", "HEAD^{commit}")
    if commit is None:
        return _Version()
    name = commit.decode().strip()
    tree = _tree_of(name)
    command = ["ls-files", "-z", "--others"]
    if tree and ".gitignore" in tree:
        # Of all ignore files only the commit's own counts: none can hide itself.
        command.append(f"--exclude-from={REPOSITORY / '.gitignore'}")
    listed = _git(*command, "--", ".", f":!{_RESULTS}")
    other_files = None if listed is None else os.fsdecode(listed).split("\0")[:-1]
    return _Version(name, tree, other_files)


def _tree_of(commit: str) -> Tree | None:
    """The files of a commit outside results/; None if git cannot tell."""
    listed = _git("ls-tree", "-r", "-z", "--full-tree", commit)
    if listed is None:
        return None
    tree: Tree = {}
    for entry in os.fsdecode(listed).split("\0")[:-1]:
        about, _, path = entry.partition("\t")
        mode, _, content = about.split()
        if mode in _FILE_TYPES and not path.startswith(_RESULTS):
            tree[path] = mode, content
    return tree


def _from_file() -> _Version:
    """The same from .code_version.json; of other files only source files are found."""
    try:
        held = json.loads((REPOSITORY / FILE).read_text(encoding="utf-8"))
        commit = str(held["commit"])
        files = held["files"].items()
        tree = {path: (str(mode), str(content)) for path, (mode, content) in files}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return _Version()
    return _Version(
        commit, tree, [path for path in _source_hashes() if path not in tree]
    )


def _git(*arguments: str) -> bytes | None:
    """What this git command prints; None if it fails or there is no git."""
    command = [
        "git",
        "-C",
        str(REPOSITORY),
        # Otherwise git could run a program that the clone's configuration names.
        "-c",
        "core.fsmonitor=false",
        "--no-optional-locks",  # without it a killed git leaves .git/index.lock behind
        "--no-replace-objects",
        *arguments,
    ]
    # In a hook, variables such as GIT_DIR name another clone.
    environment = {
        name: value for name, value in os.environ.items() if name[:4] != "GIT_"
    }
    try:
        return subprocess.check_output(
            command,
            stderr=subprocess.DEVNULL,
            env=environment,
            timeout=GIT_TIMEOUT_SECONDS,
        )
    except (OSError, subprocess.SubprocessError):
        return None


def write_file() -> pathlib.Path:
    """Writes .code_version.json; ValueError unless this is a clone without changes."""
    if not _is_clone() or code_version()["dirty"] is not False:
        raise ValueError(
            f"{REPOSITORY} is not a clean clone: commit or remove what is changed first"
        )
    version = _from_git()
    path = REPOSITORY / FILE
    path.write_text(
        json.dumps({"commit": version.commit, "files": version.tree}) + "\n",
        encoding="utf-8",
    )
    return path


if __name__ == "__main__":
    try:
        print(write_file())
    except (ValueError, OSError) as error:
        sys.exit(f"code_version: {error}")
