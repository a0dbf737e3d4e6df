"""Strict JAX for every test: float64, no silent rank promotion, four virtual CPUs.

A relative tolerance is the whole tolerance of `pytest.approx`.

Most programs of the tests run once, for less time than XLA takes to optimize them. So
they are compiled quickly, in the tests and in processes that `tests.forked` starts, but
for tests that are marked with `compiled_for_users`. `tests.kept_programs` keeps them
for the next session.
"""

import contextlib
import functools
import pathlib
import signal

import jax
import pytest

from identity_matters import code_version
from tests import forked, kept_programs, quick_compilation

# A shell makes its background jobs ignore Ctrl-C; processes that tests start would
# inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")

# Their tests train nets, or start processes: `make test-fast` leaves them out, and
# single tests elsewhere that are marked as slow.
SLOW_DIRECTORIES = ("benchmarks", "experiments", "report", "runs", "train")
SLOW_FILES = (
    "docs/test_commands.py",
    "docs/test_examples.py",
    "docs/test_notebooks.py",
    "docs/test_tutorial.py",
    "images/test_imagenet.py",
    "linear/test_sampled.py",
    "test_clusters.py",
    "test_code_version.py",
    "test_hostile.py",
    "test_imports.py",
    "test_jax_settings.py",
    "test_make.py",
    "test_offline.py",
)

# Their tests take longest. They come first, as one that begins when the others have
# ended leaves all workers but its own idle.
LONG_FILES = (
    "docs/test_notebooks.py",
    "train/test_survival.py",
    "train/test_train.py",
    "report/test_report.py",
    "test_hostile.py",
    "test_offline.py",
    "experiments/test_reproduce.py",
    "experiments/test_experiments.py",
)


_approx = pytest.approx


def _approx_as_given(expected, rel=None, abs=None, nan_ok=False):
    """`pytest.approx`, where a relative tolerance that is given is all that there is.

    pytest's own would accept any difference up to 1e-12, too: a rel of 1e-13 would say
    nothing, and of an expected 1e-13 any number below 1e-12 would pass.
    """
    if rel is not None and abs is None:
        abs = 0.0
    return _approx(expected, rel=rel, abs=abs, nan_ok=nan_ok)


pytest.approx = _approx_as_given


def pytest_configure(config: pytest.Config) -> None:
    """Keeps programs on disk, unless pytest can or may keep nothing there.

    What runs record of the code is computed once: no test changes the files.
    """
    forked.use_code_version(functools.cache(code_version.code_version))
    cache = getattr(config, "cache", None)
    if cache is not None:
        with contextlib.suppress(OSError):
            kept_programs.use(cache.mkdir(kept_programs.directory_name()))


def pytest_collectstart() -> None:
    """Tables of cases may hold what a program has computed."""
    quick_compilation.use(True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests of SLOW_DIRECTORIES and SLOW_FILES as slow; LONG_FILES first."""
    for item in items:
        path = _path_in_tests(item)
        if path.parts[0] in SLOW_DIRECTORIES or path.as_posix() in SLOW_FILES:
            item.add_marker(pytest.mark.slow)
    # Sorting leaves the tests of a file, and the other files, in their order.
    items.sort(key=_rank)


def _path_in_tests(item: pytest.Item) -> pathlib.Path:
    return item.path.relative_to(pathlib.Path(__file__).parent)


def _rank(item: pytest.Item) -> int:
    """The place of the test's file in LONG_FILES, or behind them."""
    path = _path_in_tests(item).as_posix()
    return LONG_FILES.index(path) if path in LONG_FILES else len(LONG_FILES)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Chooses how the programs of the test are compiled."""
    for_users = item.get_closest_marker("compiled_for_users") is not None
    quick_compilation.use(not for_users)


@pytest.fixture(scope="session")
def key():
    """The one root key of the tests; fold or split it."""
    return jax.random.key(0)
