"""The documented syntax of each gcloud command that clusters/ uses, and a check against it.

Written down from the SYNOPSIS of the reference pages named below; only what a command takes, in
full, so that a flag that does not exist, or belongs to another command, is found.
"""

import dataclasses

REFERENCE = "https://cloud.google.com/sdk/gcloud/reference/"
# Of every command; "GCLOUD WIDE FLAGS" of each page. Names that end in = take a value.
WIDE_FLAGS = {
    "--access-token-file=", "--account=", "--billing-project=", "--configuration=",
    "--flags-file=", "--flatten=", "--format=", "--help", "--impersonate-service-account=",
    "--log-http", "--project=", "--quiet", "--trace-token=", "--user-output-enabled",
    "--verbosity=",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Command:
    """What a command takes.

    Attributes:
      positionals: how many at least and at most; None is any number.
      required: of each group one flag must be there, and only one.
      optional: flags that may be there.
    """

    positionals: tuple[int, int | None]
    required: tuple[tuple[str, ...], ...] = ()
    optional: frozenset[str] = frozenset()


_LOCATION = (("--zone=",),)
_SSH = frozenset(
    {
        "--dry-run", "--force-key-file-overwrite", "--internal-ip", "--plain", "--ssh-key-file=",
        "--strict-host-key-checking=", "--worker=", "--ssh-key-expiration=",
        "--ssh-key-expire-after=",
    }
)  # fmt: skip
# Zones are required here where the reference lets a default of the user's stand in.
COMMANDS = {
    "compute tpus queued-resources create": Command(
        (1, 1),
        (
            *_LOCATION,
            ("--runtime-version=",),
            ("--accelerator-type=", "--topology="),
            ("--node-id=", "--node-count="),
        ),
        frozenset(
            {
                "--async", "--boot-disk=", "--data-disk=", "--description=", "--guaranteed",
                "--internal-ips", "--labels=", "--metadata=", "--metadata-from-file=", "--network=",
                "--node-prefix=", "--range=", "--reserved", "--scopes=", "--service-account=",
                "--shielded-secure-boot", "--spot", "--subnetwork=", "--tags=", "--type=",
                "--valid-after-duration=", "--valid-after-time=", "--valid-until-duration=",
                "--valid-until-time=", "--reservation-host-folder=",
                "--reservation-host-organization=", "--reservation-host-project=",
            }
        ),
    ),
    "compute tpus queued-resources delete": Command(
        (1, 1), _LOCATION, frozenset({"--async", "--force"})
    ),
    "compute tpus queued-resources describe": Command((1, 1), _LOCATION),
    "compute tpus queued-resources list": Command(
        (0, 0),
        _LOCATION,
        frozenset({"--filter=", "--limit=", "--page-size=", "--sort-by=", "--uri"}),
    ),
    "compute tpus tpu-vm ssh": Command(
        (1, 1), _LOCATION, _SSH | {"--command=", "--output-directory=", "--ssh-flag="}
    ),
    "compute tpus tpu-vm scp": Command(
        (2, None), _LOCATION, _SSH | {"--compress", "--recurse", "--scp-flag="}
    ),
    "storage cp": Command(
        (2, None),
        (),
        frozenset(
            {
                "--all-versions", "--cache-control=", "--content-type=", "--continue-on-error",
                "--daisy-chain", "--do-not-decompress", "--gzip-in-flight=", "--gzip-in-flight-all",
                "--gzip-local=", "--gzip-local-all", "--ignore-symlinks", "--manifest-path=",
                "--no-clobber", "--preserve-acl", "--preserve-posix", "--preserve-symlinks",
                "--print-created-message", "--read-paths-from-stdin", "--recursive",
                "--skip-unsupported", "--storage-class=",
            }
        ),
    ),
    "storage rsync": Command(
        (2, 2),
        (),
        frozenset(
            {
                "--cache-control=", "--checksums-only", "--content-type=", "--continue-on-error",
                "--delete-unmatched-destination-objects", "--dry-run", "--exclude=",
                "--gzip-in-flight=", "--gzip-in-flight-all", "--include-managed-folders",
                "--no-clobber", "--no-ignore-symlinks", "--preserve-posix", "--recursive",
                "--skip-if-dest-has-newer-mtime", "--skip-unsupported",
            }
        ),
    ),
}  # fmt: skip


def page(name: str) -> str:
    """The address of the reference of the command called `name`."""
    return REFERENCE + name.replace(" ", "/")


def check(words: list[str]) -> str:
    """The name of the command that `words` are.

    Raises:
      ValueError: what is wrong with it, and the page that says so.
    """
    if words[0] != "gcloud":
        raise ValueError(f"not a gcloud command: {words}")
    line = " ".join(words[1:])
    name = next((name for name in COMMANDS if line.startswith(f"{name} ")), None)
    if name is None:
        raise ValueError(f"no such command: {line}")
    command, rest = COMMANDS[name], words[1 + len(name.split()) :]
    flags = [_flag(word) for word in rest if word.startswith("-")]
    known = WIDE_FLAGS | command.optional | {flag for group in command.required for flag in group}
    for flag in flags:
        if flag not in known:
            raise ValueError(f"{name} has no flag {flag}; see {page(name)}")
        if flags.count(flag) > 1:
            raise ValueError(f"{name}: {flag} is given twice")
    for group in command.required:
        if sum(flag in flags for flag in group) != 1:
            raise ValueError(f"{name} needs one of {group}; see {page(name)}")
    least, most = command.positionals
    count = sum(not word.startswith("-") for word in rest)
    if count < least or (most is not None and count > most):
        raise ValueError(f"{name} takes {least} to {most} arguments, got {count}: {rest}")
    return name


def _flag(word: str) -> str:
    """The name of a flag: --zone=x gives --zone=, --spot stays."""
    name, equals, value = word.partition("=")
    if equals and not value:
        raise ValueError(f"{name} has no value")
    return name + equals
