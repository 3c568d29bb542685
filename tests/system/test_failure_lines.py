"""The line of a log that says why its process ended."""

import subprocess

import pytest

from ps_cluster.system.failure_lines import failure_line, last_error_line

CHATTER = "I0000 00:00:1 port.cc:153] oneDNN custom operations are on.\n"
CHAIN = """connecting
Traceback (most recent call last):
  File "a.py", line 1, in f
    import torch
ModuleNotFoundError: No module named 'torch'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "b.py", line 2, in g
ImportError: Keras cannot be imported. Check that it is installed.
"""
CAUSE = CHAIN.replace("During handling of the above exception, another exception occurred", "{}").format(
    "The above exception was the direct cause of the following exception"
)
CAUGHT = """a push failed, and is tried again
Traceback (most recent call last):
  File "c.py", line 3, in h
ConnectionError: caught and logged

training goes on
"""
FATAL = """training
F0000 00:00:1 tensor.cc:1] Check failed: dtype() == expected
*** Check failure stack trace: ***
    @ 0x7f libtensorflow.so
"""


@pytest.mark.parametrize(
    ("log", "exit_code", "reason"),
    [
        (CHAIN, 1, "ModuleNotFoundError: No module named 'torch'"),
        (CAUSE, 1, "ModuleNotFoundError: No module named 'torch'"),
        (CAUGHT + CHAIN, 1, "ModuleNotFoundError: No module named 'torch'"),
        (CHAIN + CAUGHT, 1, "ConnectionError: caught and logged"),
        (CHAIN + "step 7\n", -9, "step 7"),  # killed: an error before was none of its end
        (FATAL, -6, "F0000 00:00:1 tensor.cc:1] Check failed: dtype() == expected"),
        ("terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n", -6,
         "terminate called after throwing an instance of 'std::bad_alloc'"),
        ("usage: wrong\nno TensorFlow here\n" + CHATTER, 1, "no TensorFlow here"),
        (CHATTER, 1, ""),
        ("", 1, ""),
    ],
)  # fmt: skip
def test_the_reason_is_what_a_process_wrote_first_when_it_failed(tmp_path, log, exit_code, reason):
    (tmp_path / "log").write_text("RuntimeError: of the process before\n" + log)
    assert failure_line(tmp_path / "log", len("RuntimeError: of the process before\n"), exit_code) == reason


def test_a_log_that_somebody_has_removed_has_no_reason(tmp_path):
    assert failure_line(tmp_path / "absent", 0, 1) == ""


@pytest.mark.parametrize(("stderr", "line"), [("first\nlast\n\n", "last"), (" \n", "exit code 3")])
def test_a_program_that_failed_is_told_by_its_last_line_or_its_exit_code(stderr, line):
    assert last_error_line(subprocess.CompletedProcess([], 3, "output", stderr)) == line
