"""A command in a child process: its lines are printed, and it ends with its caller."""

import contextlib
import os
import resource
import signal
import subprocess
import sys

import psutil
import pytest

from ps_cluster.api.program import Program
from tests.helpers.processes import assert_none_left, wait_until

# Does what every command does first, and then waits for a minute.
WAITING = """
import os, time
from ps_cluster.cli.main import main
main.callback()
print(os.getpid(), flush=True)
time.sleep(60)
"""
CALLER = f"""
import sys
from ps_cluster.api.program import Program
with Program((sys.executable, "-c", {WAITING!r})) as program:
    program.attend()
"""


def test_a_command_ends_with_its_caller_however_that_one_ends():
    with subprocess.Popen([sys.executable, "-c", CALLER], stdout=subprocess.PIPE, text=True) as caller:
        pid = int(caller.stdout.readline())
        assert psutil.pid_exists(pid)
        os.kill(caller.pid, signal.SIGKILL)
    wait_until(lambda: not psutil.pid_exists(pid), within_s=5)


def test_a_command_that_is_left_in_the_middle_is_ended(tmp_path):
    with Program((sys.executable, "-c", "import time; time.sleep(60)", str(tmp_path))):
        assert any(str(tmp_path) in child.cmdline() for child in psutil.Process().children())
    assert_none_left(tmp_path, within_s=0)


def test_a_program_that_cannot_start_leaves_no_descriptor_open():
    before = psutil.Process().num_fds()
    with pytest.raises(FileNotFoundError):
        Program(("/nonexistent/program",))
    assert psutil.Process().num_fds() == before


def test_lines_come_whole_and_an_error_is_kept_back():
    said = []
    code = r"import sys; sys.stdout.write('one\ntw'); sys.stdout.flush(); print('o\nError: it broke')"
    with Program((sys.executable, "-c", code), said.append) as program:
        program.attend()
    assert said == ["one", "two"]


def test_a_program_that_closes_its_output_is_waited_for():
    code = "import os, time; os.close(1); os.close(2); time.sleep(0.5); os._exit(0)"
    looks = []
    with Program((sys.executable, "-c", code)) as program:
        program.attend(lambda: bool(looks.append(1)))
        program.check(None)
    assert len(looks) < 10, "it is not asked without a pause"


def test_a_command_finds_the_modules_of_its_caller_and_no_variables_that_give_settings(tmp_path, monkeypatch):
    """Only the caller's arguments decide the settings; all others have their defaults."""
    (tmp_path / "beside_the_script.py").write_text("NAME = 'found'\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PS_CLUSTER__TRAINING__SEED", "7")
    said = []
    show = "import os, beside_the_script as b; print(b.NAME, [name for name in os.environ if 'PS_CLUSTER__' in name])"
    with Program((sys.executable, "-c", show), said.append) as program:
        program.attend()
    assert said == ["found []"]


def test_a_process_with_many_open_files_reads_the_output_too():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    many, said = 1_100, []
    assert hard == resource.RLIM_INFINITY or hard > many + 200
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, many + 200), hard))
    with contextlib.ExitStack() as files:
        files.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(many):
            files.enter_context(open(os.devnull, "rb"))
        with Program((sys.executable, "-c", "print('there')"), said.append) as program:
            program.attend()
    assert said == ["there"]
