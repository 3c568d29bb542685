"""CPU seconds and memory of the processes of a run, with invented numbers and with real processes."""

import subprocess
import sys
import time

import pytest

from ps_cluster.config.tasks import Task
from ps_cluster.system.run_processes import age_seconds
from ps_cluster.system.usage import MEMORY_EVERY_S, Usage, cpu_seconds, pss_bytes
from tests.helpers.processes import wait_until

MB = 2**20
CHIEF, WORKER, EVALUATOR = Task("chief", 0), Task("worker", 0), Task("evaluator", 0)


class ProcessCalls:
    """The CPU seconds and memory of each pid so far. A pid that is not in a table can't be read."""

    def __init__(self):
        self.now, self.cpu, self.pss, self.pss_reads = 0.0, {}, {}, 0

    def usage(self):
        return Usage(clock=lambda: self.now, read_cpu=lambda pid: self.cpu.get(pid), read_pss=self.read_pss)

    def read_pss(self, pid):
        self.pss_reads += 1
        return self.pss.get(pid)


@pytest.fixture
def machine():
    return ProcessCalls()


def row(report, pid):
    (found,) = [process for process in report.processes if process.pid == pid]
    return found


def test_seconds_are_the_last_ones_seen_and_those_of_a_process_that_ended_stay(machine):
    usage = machine.usage()
    for machine.cpu in ({1: 1.0, 2: 2.0}, {1: 1.5, 2: 4.0}, {9: 0.5}):
        usage.poll({1: CHIEF, 2: WORKER} | ({9: WORKER} if 9 in machine.cpu else {}))
    assert usage.report().cpu_seconds == 6.0 and row(usage.report(), 2).cpu_seconds == 4.0
    assert [(process.index, process.pid) for process in usage.report().processes] == [(0, 1), (0, 2), (0, 9)]


def test_evaluator_is_among_the_processes_and_in_the_memory_but_not_in_the_seconds(machine):
    usage = machine.usage()
    machine.cpu, machine.pss = {1: 1.0, 2: 10.0}, {1: 100, 2: 50}
    usage.poll({1: WORKER, 2: EVALUATOR})
    assert usage.report().cpu_seconds == 1.0 and usage.report().peak_memory_bytes == 150
    assert row(usage.report(), 2).model_dump() == {
        "type": "evaluator", "index": 0, "pid": 2, "cpu_seconds": 10.0, "peak_pss_bytes": 50
    }  # fmt: skip


def test_peak_of_the_sum_is_not_the_sum_of_the_peaks(machine):
    usage = machine.usage()
    for machine.now, machine.pss in ((0.0, {1: 100, 2: 10}), (10.0, {1: 20, 2: 80}), (20.0, {1: 30, 2: 30})):
        usage.poll({1: CHIEF, 2: WORKER})
    assert usage.report().peak_memory_bytes == 110
    assert [process.peak_pss_bytes for process in usage.report().processes] == [100, 80]


def test_memory_is_read_now_and_then_and_seconds_at_each_look(machine):
    usage = machine.usage()
    for tenth in range(21):
        machine.now, machine.cpu = tenth * MEMORY_EVERY_S / 10, {1: tenth / 10}
        usage.poll({1: CHIEF})
    assert machine.pss_reads == 3 and usage.report().cpu_seconds == 2.0


def test_what_can_not_be_read_is_null_and_a_look_at_nothing_does_not_use_up_the_turn_of_the_memory(machine):
    usage = machine.usage()
    usage.poll({})
    usage.poll({1: CHIEF})
    assert machine.pss_reads == 1 and usage.report().model_dump() == {
        "cpu_seconds": 0.0, "peak_memory_bytes": None,
        "processes": [{"type": "chief", "index": 0, "pid": 1, "cpu_seconds": None, "peak_pss_bytes": None}],
    }  # fmt: skip


BURNS = "import time; begun = time.process_time()\nwhile time.process_time() < begun + 0.3: pass"


def test_seconds_of_a_real_process_can_be_read_until_its_end_was_looked_at():
    with subprocess.Popen([sys.executable, "-c", BURNS]) as process:
        wait_until(
            lambda: subprocess.run(["ps", "-o", "stat=", str(process.pid)], capture_output=True).stdout[:1] == b"Z"
        )
        assert 0.25 < cpu_seconds(process.pid) < 5, "what the process counted itself, in whole ticks"
        process.wait()
        assert cpu_seconds(process.pid) is None and pss_bytes(process.pid) is None


def test_the_age_of_a_process_counts_from_its_start():
    before = time.monotonic()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert -0.02 <= age_seconds(process.pid) <= time.monotonic() - before + 0.02, "it is told in hundredths"
        time.sleep(0.3)
        assert 0.28 <= age_seconds(process.pid) <= time.monotonic() - before + 0.02


SHARES = """
import os, sys
block = bytearray(os.urandom(2**20) * 64)
child = os.fork()
if child:
    print(child, flush=True)
    sys.stdin.read()
    os.kill(child, 9)
else:
    sys.stdin.read()
"""


def test_pages_that_two_processes_share_are_counted_once():
    with subprocess.Popen([sys.executable, "-c", SHARES], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        child = int(process.stdout.readline())
        sizes = [pss_bytes(pid) for pid in (process.pid, child)]
        process.stdin.close()
    assert all(32 * MB < size < 60 * MB for size in sizes) and 64 * MB < sum(sizes) < 100 * MB
