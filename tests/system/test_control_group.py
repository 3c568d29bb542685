"""Limits of control groups, in trees of files as the kernel shows them, and in a real group where one can be made."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ps_cluster.system import environment
from ps_cluster.system import limits as control_group
from ps_cluster.system.limits import Allowance, allowance
from ps_cluster.system.machine import describe

PROJECT = Path(__file__).parents[2]
GIB = 2**30


def limits(allowed):
    return allowed.cpus, allowed.memory_bytes


@pytest.fixture
def seen(tmp_path):
    """seen(membership, {file: content}) → the limits that a process has that sees these files."""

    def call(membership, files):
        for name, content in files.items():
            file = tmp_path / "groups" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{content}\n")
        (tmp_path / "membership").write_text(membership)
        return limits(allowance(tmp_path / "membership", tmp_path / "groups"))

    return call


LIMITS = {
    "version 2, in a namespace of its own as a container has it": (
        "0::/\n", {"cpu.max": "150000 100000", "memory.max": 2 * GIB}, (1.5, 2 * GIB),
    ),
    "version 2 without limits": ("0::/\n", {"cpu.max": "max 100000", "memory.max": "max"}, (None, None)),
    "the narrowest of the groups around counts": (
        "0::/machine.slice/job\n",
        {
            "cpu.max": "max 100000",
            "machine.slice/cpu.max": "400000 100000",
            "machine.slice/job/cpu.max": "max 100000",
            "machine.slice/memory.max": 8 * GIB,
            "machine.slice/job/memory.max": 16 * GIB,
            "other/cpu.max": "10000 100000",
        },
        (4.0, 8 * GIB),
    ),
    "version 1 has a folder for each controller": (
        "4:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc\n1:name=systemd:/docker/abc\n0::/\n",
        {
            "cpu,cpuacct/docker/abc/cpu.cfs_quota_us": 50000,
            "cpu,cpuacct/docker/abc/cpu.cfs_period_us": 100000,
            "memory/docker/abc/memory.limit_in_bytes": GIB,
            "memory/memory.limit_in_bytes": 9223372036854771712,
        },
        (0.5, GIB),
    ),
    "version 1 in a container that sees the host's path and only its own group": (
        "3:memory:/docker/abc\n2:cpu:/docker/abc\n",
        {"cpu/cpu.cfs_quota_us": 300000, "cpu/cpu.cfs_period_us": 200000, "memory/memory.limit_in_bytes": GIB},
        (1.5, GIB),
    ),
    "version 1 without limits": (
        "1:cpu:/\n",
        {"cpu/cpu.cfs_quota_us": -1, "cpu/cpu.cfs_period_us": 100000, "memory/memory.limit_in_bytes": 2**63 - 4096},
        (None, None),
    ),
}  # fmt: skip


@pytest.mark.parametrize("group", LIMITS)
def test_the_limits_of_a_control_group_are_read(seen, group):
    membership, files, expected = LIMITS[group]
    assert seen(membership, files) == expected


def test_a_system_that_tells_nothing_sets_no_limits(tmp_path):
    assert limits(allowance(tmp_path / "absent", tmp_path / "absent")) == (None, None)


@pytest.mark.parametrize(
    ("membership", "files"),
    [
        ("0::/\n", {"memory.max": 4 * GIB, "memory.current": 3 * GIB, "memory.stat": f"anon 7\ninactive_file {GIB}"}),
        (
            "4:memory:/\n",
            {
                "memory/memory.limit_in_bytes": 4 * GIB,
                "memory/memory.usage_in_bytes": 3 * GIB,
                "memory/memory.stat": f"inactive_file 5\ntotal_inactive_file {GIB}",
            },
        ),
    ],
)
def test_what_a_group_uses_is_no_room(seen, tmp_path, monkeypatch, membership, files):
    seen(membership, files)
    allowed = allowance(tmp_path / "membership", tmp_path / "groups")
    assert (allowed.memory_bytes, allowed.left_bytes) == (4 * GIB, 2 * GIB), "files that are only cached are dropped"
    monkeypatch.setattr(control_group, "allowance", lambda: allowed)
    assert control_group.free_memory().allowed_bytes == 2 * GIB


@pytest.mark.parametrize(
    ("cpus", "usable"), [(0.2, 1), (1.0, 1), (1.5, 2), (2.0, 2), (64.0, 64), (999.0, 64), (None, 64)]
)
def test_threads_are_as_many_as_the_quota_has_processors_for_and_no_more_than_there_are(cpus, usable):
    allowed = Allowance(64, cpus)
    assert allowed.threads == usable and allowed.quota_decides is (usable < 64)
    own = {"TF_NUM_INTRAOP_THREADS": str(usable), "TF_NUM_INTEROP_THREADS": str(max(2, usable))} if usable < 64 else {}
    set_ = environment.for_tensorflow({}, allowed)
    assert {name: set_[name] for name in set_ if name.startswith("TF_NUM")} == own


def test_threads_that_the_user_asks_for_stay():
    given = {"TF_NUM_INTRAOP_THREADS": "7"}
    assert environment.for_tensorflow(given, Allowance(64, 1.5))["TF_NUM_INTRAOP_THREADS"] == "7"


@pytest.mark.parametrize(("given", "used"), [({}, "1"), ({"TF_ENABLE_ONEDNN_OPTS": "0"}, "0")])
def test_onednn_is_used_unless_the_user_says_no(given, used):
    assert environment.for_tensorflow(given, Allowance(64, None))["TF_ENABLE_ONEDNN_OPTS"] == used


def test_the_summary_calls_the_machine_what_may_be_used_of_it(tmp_path):
    machine = describe(tmp_path / "absent", Allowance(64, 0.5, GIB // 2))
    assert (machine.cores, machine.cpu_limit) == (1, 0.5)
    assert (machine.memory_gb, machine.memory_limit_gb) == (0.5, 0.5)


@pytest.fixture
def group_of_half_a_processor():
    """A control group with a quota of 0.5 processors, or a skip where this user may not make one."""
    for mount, limits in (
        (Path("/sys/fs/cgroup/cpu"), {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "50000"}),
        (Path("/sys/fs/cgroup"), {"cpu.max": "50000 100000"}),
    ):
        group = mount / f"ps_cluster_test_{os.getpid()}"
        try:
            group.mkdir()
            for name, value in limits.items():
                (group / name).write_text(value)
        except OSError:
            if group.exists():
                group.rmdir()
            continue
        yield group
        group.rmdir()
        return
    pytest.skip("this user may not make a control group with a quota")


def test_a_real_group_with_a_quota_is_seen_from_inside(group_of_half_a_processor):
    code = (
        "import os, sys; from pathlib import Path; Path(sys.argv[1], 'cgroup.procs').write_text(str(os.getpid()))\n"
        "from ps_cluster.system import limits as control_group, machine\n"
        "allowed = control_group.allowance(); machine = machine.describe()\n"
        "print(allowed.cpus, allowed.threads, machine.cores, machine.cpu_limit)"
    )
    command = [sys.executable, "-c", code, str(group_of_half_a_processor)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["0.5", "1", "1", "0.5"], done.stderr
