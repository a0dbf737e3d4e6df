"""Lists that several processes compute; each test has a process without threads."""

import subprocess
import sys

import pytest

from tests.forked import ROOT

PROGRAM = """
import os, time
from identity_matters.report.shared_work import compute

first = os.getpid()

def slow(item):
    time.sleep(0.2)
    return item, os.getpid()

class Unsendable(Exception):
    def __init__(self, first, second):
        super().__init__((first, second))

def fails_in_a_child(item):
    time.sleep(0.2)
    if os.getpid() != first:
        {failure}
    return item

{call}
"""


def output_of(call, failure="pass"):
    program = PROGRAM.format(call=call, failure=failure)
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout, done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="one process computes all")
def test_results_are_in_the_order_of_the_items_whoever_computed_them():
    call = "print(*zip(*compute(slow, 'abcdef', processes=3)), sep=chr(10))"
    items, pids = output_of(call)[0].splitlines()
    assert items == "('a', 'b', 'c', 'd', 'e', 'f')"
    assert len(set(pids.strip("()").split(", "))) == 3


def test_there_may_be_fewer_items_than_processes():
    assert output_of("print(compute(len, [], processes=2))")[0] == "[]\n"
    assert output_of("print(compute(len, ['ab'], processes=2))")[0] == "[2]\n"


@pytest.mark.skipif(sys.platform != "linux", reason="there is no other process")
def test_no_process_is_left_after_an_error_here():
    call = """
import multiprocessing

def fails_here(item):
    if os.getpid() == first:
        raise ValueError('of this process')
    time.sleep(30)

started = time.monotonic()
try:
    compute(fails_here, 'ab', processes=2)
except ValueError as error:
    print(error, multiprocessing.active_children(), time.monotonic() - started < 10)
"""
    assert output_of(call)[0] == "of this process [] True\n"


@pytest.mark.skipif(sys.platform != "linux", reason="there is no other process")
@pytest.mark.parametrize(
    "failure, error",
    [
        ("raise ValueError('of a child')", "ValueError: of a child"),
        ("os.kill(os.getpid(), 9)", "ChildProcessError: a process ended before"),
        ("raise Unsendable(1, 2)", "ChildProcessError: Unsendable: (1, 2)"),
    ],
)
def test_what_ends_another_process_ends_the_computation(failure, error):
    written, errors = output_of("compute(fails_in_a_child, 'abcd', 2)", failure)
    assert written == ""
    assert error in errors.splitlines()[-1]
