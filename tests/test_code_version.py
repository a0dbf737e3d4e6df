"""The commit of the code that runs, and whether the code is the commit's."""

import os
import shutil
import subprocess

import pytest

from identity_matters import code_version, environment

UNKNOWN = {"commit": None, "dirty": None}
IDENTITY = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "core.autocrlf=false")


def git(directory, *arguments):
    subprocess.run(["git", *arguments], cwd=directory, check=True, capture_output=True)


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A clone with one source file, at a commit without changes."""
    (tmp_path / "clone" / "experiments").mkdir(parents=True)
    top = tmp_path / "clone"
    (top / "experiments" / "square.py").write_text("VALUE = 2\n")
    (top / "experiments" / "link.py").symlink_to("square.py")
    (top / ".gitignore").write_text(
        "/data\n.venv*\n*.tmp\n/results/local\n/.code_version.json\n"
    )
    git(top, "init", "-q")
    git(top, "add", ".")
    git(top, *IDENTITY, "commit", "-qm", "one")
    monkeypatch.setattr(code_version, "REPOSITORY", top.resolve())
    return top


def version_of():
    version = code_version.code_version()
    return {name: version[name] for name in UNKNOWN}


def test_the_commit_is_known_only_where_it_is_ours(clone, monkeypatch):
    known = version_of()
    assert len(known["commit"]) == 40 and known["dirty"] is False
    # If git cannot read its index, it is unknown whether the work tree is clean.
    (clone / ".git" / "index").write_bytes(b"x")
    assert version_of()["dirty"] is None
    # An installed copy inside another clone is not at the commit of that clone.
    monkeypatch.setattr(code_version, "REPOSITORY", (clone / "experiments").resolve())
    assert version_of() == UNKNOWN


def evil(clone, name="evil.py"):
    (clone / "experiments" / name).write_text("VALUE = 3\n")


def change(clone):
    (clone / "experiments" / "square.py").write_text("VALUE = 3\n")


def hide(name, *command):
    """Hides an untracked or changed file from `git status`."""

    def act(clone):
        change(clone) if name == "square.py" else evil(clone, name)
        git(clone, *command)

    return act


def ignore_in(*place):
    def act(clone):
        evil(clone)
        with open(clone.joinpath(*place), "a") as file:
            file.write("evil.py\n.gitignore\n")

    return act


def redirect(clone):
    change(clone)
    (clone / "experiments" / "square.py").rename(clone / "experiments" / "link.tmp")
    (clone / "experiments" / "square.py").symlink_to("link.tmp")


def retarget(clone):
    evil(clone, "evil.tmp")
    (clone / "experiments" / "link.py").unlink()
    (clone / "experiments" / "link.py").symlink_to("evil.tmp")


def replace_commit(clone):
    change(clone)
    git(clone, "add", ".")
    git(clone, *IDENTITY, "commit", "-qm", "two")
    git(clone, "replace", "HEAD~", "HEAD")
    git(clone, "reset", "-q", "--soft", "HEAD~")


@pytest.mark.parametrize(
    "act",
    [
        change,
        evil,
        lambda clone: (clone / "experiments" / "square.py").unlink(),
        hide("evil.py", "config", "status.showUntrackedFiles", "no"),
        hide(
            "square.py", "update-index", "--assume-unchanged", "experiments/square.py"
        ),
        hide("square.py", "update-index", "--skip-worktree", "experiments/square.py"),
        hide("square.py", "add", "."),
        ignore_in(".git", "info", "exclude"),
        ignore_in("experiments", ".gitignore"),
        ignore_in(".gitignore"),
        redirect,
        retarget,
        replace_commit,
    ],
)
def test_changed_code_is_noticed_however_it_is_hidden(clone, act):
    act(clone)
    assert version_of()["dirty"] is True


def test_what_is_no_change_is_none(clone, tmp_path, monkeypatch):
    for name in ("data", ".venv", "results/local"):
        (clone / name).parent.mkdir(exist_ok=True)
        (clone / name).symlink_to(tmp_path)
    (clone / "results" / "REPORT.md").write_text("a report")
    (clone / "experiments" / "square.py").write_bytes(b"VALUE = 2\r\n")
    (clone / "left.tmp").write_text("")
    monkeypatch.setenv("GIT_DIR", str(tmp_path))  # as in a hook
    assert version_of()["dirty"] is False


def test_no_program_of_the_configuration_is_run(clone):
    hook = clone.parent / "hook"
    hook.write_text(f"#!/bin/sh\ntouch {clone.parent / 'executed'}\n")
    hook.chmod(0o755)
    git(clone, "config", "core.fsmonitor", str(hook))
    assert version_of()["dirty"] is False
    assert not (clone.parent / "executed").exists()


def test_a_git_that_does_not_answer_is_given_up(monkeypatch):
    def wait(*arguments, **settings):
        raise subprocess.TimeoutExpired("git", settings["timeout"])

    monkeypatch.setattr(subprocess, "run", wait)
    monkeypatch.setattr(code_version, "FILE", "none.json")
    assert version_of() == UNKNOWN


def copy_of(clone, monkeypatch):
    """A copy of the clone without .git.

    It has the file that says what it is a copy of.
    """
    code_version.write_file()
    copy = clone.parent / "copy"
    shutil.copytree(clone, copy, symlinks=True)
    shutil.rmtree(copy / ".git")
    monkeypatch.setattr(code_version, "REPOSITORY", copy.resolve())
    return copy


def test_a_clone_that_uses_sha256_has_the_same_digest(clone):
    with_sha1 = code_version.code_version()
    shutil.rmtree(clone / ".git")
    git(clone, "init", "-q", "--object-format=sha256")
    git(clone, "add", ".")
    git(clone, *IDENTITY, "commit", "-qm", "one")
    with_sha256 = code_version.code_version()
    assert len(with_sha256["commit"]) == 64 and with_sha256["dirty"] is False
    assert with_sha256["code"] == with_sha1["code"]
    of_commit = code_version.digest_of_commit(with_sha256["commit"])
    assert of_commit == with_sha1["code"]


def test_a_copy_without_git_carries_its_commit(clone, monkeypatch):
    known = code_version.code_version()
    assert code_version.digest_of_commit(known["commit"]) == known["code"]
    assert code_version.digest_of_commit("0" * 40) is None
    copy = copy_of(clone, monkeypatch)
    assert code_version.code_version() == known
    # Where the file says nothing, nobody knows.
    (copy / code_version.FILE).write_text("{}")
    assert version_of() == UNKNOWN


@pytest.mark.parametrize("act", [change, evil, redirect, retarget])
def test_a_copy_that_was_changed_is_no_copy(clone, monkeypatch, act):
    commit = version_of()["commit"]
    copy = copy_of(clone, monkeypatch)
    act(copy)
    assert version_of() == {"commit": commit, "dirty": True}


def test_the_file_is_written_in_a_clone_without_changes_only(clone, monkeypatch):
    change(clone)
    with pytest.raises(ValueError, match="not a clean clone: commit or remove"):
        code_version.write_file()
    shutil.rmtree(clone / ".git")
    with pytest.raises(ValueError, match="not a clean clone"):
        code_version.write_file()


def test_the_digest_covers_the_code_and_nothing_else(clone):
    before = code_version.code_version()["code"]
    (clone / "README.md").write_text("text")
    os.makedirs(clone / "identity_matters")
    assert code_version.code_version()["code"] == before
    (clone / "identity_matters" / "claims.toml").write_text("")
    assert code_version.code_version()["code"] != before


def test_what_a_resumed_run_must_have_in_common():
    began = {
        **{"code": "a", "commit": "1" * 40, "dirty": False},
        **{
            "packages": {"jax": "0.10.2"},
            "jax_settings": {"jax_default_prng_impl": "threefry2x32"},
        },
        **{"variables": {}, "cpu_cores": 1},
    }
    assert (
        environment.why_not_resumed(began, {**began, "cpu_cores": 2, "commit": None})
        is None
    )
    for changes, reason in (
        (
            {"code": "b", "dirty": True},
            "by other code .*111, here 1+ with uncommitted changes",
        ),
        (
            {"packages": {"jax": "0.11.0"}},
            r"other packages \(jax 0.10.2, here 0.11.0\)",
        ),
        ({"jax_settings": {"jax_default_prng_impl": "rbg"}}, "threefry2x32, here rbg"),
        ({"variables": {"XLA_FLAGS": "--xla_fast"}}, "XLA_FLAGS None, here --xla_fast"),
    ):
        with pytest.raises(AssertionError, match=reason):
            raise AssertionError(
                environment.why_not_resumed(began, {**began, **changes})
            )
    # Of what is not known before JAX has started nothing is asked.
    assert (
        environment.why_not_resumed(began, {"code": "a", "packages": {"jax": "0.10.2"}})
        is None
    )


def test_flags_that_change_a_number_are_recorded(monkeypatch):
    changes_no_number = "--xla_dump_to=/x --xla_cpu_parallel_codegen_split_count=1"
    monkeypatch.setenv(
        "XLA_FLAGS", f"{changes_no_number} --xla_cpu_enable_fast_math=true"
    )
    monkeypatch.setenv("JAX_DEFAULT_PRNG_IMPL", "threefry2x32")
    described = environment.describe()
    assert described["variables"] == {"XLA_FLAGS": "--xla_cpu_enable_fast_math=true"}
    settings = described["jax_settings"]
    assert settings["jax_default_prng_impl"] == "threefry2x32"
    assert settings["jax_threefry_partitionable"] is True
    assert settings["jax_enable_x64"] is True
