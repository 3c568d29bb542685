import subprocess

import pytest
from pydantic import ValidationError

from ps_cluster.runs.machine_rows import MachineRow
from ps_cluster.system.machine import UNKNOWN, commit_of, describe, fastest_precision, processor_of

CPUINFO = """processor\t: {core}
model name\t: Some EPYC 9B45
flags\t\t: fpu avx512f {flags}
bugs\t\t: avx512_bf16

"""


@pytest.fixture
def cpuinfo(tmp_path):
    """cpuinfo(flags) → a file like /proc/cpuinfo, of two cores with these flags."""

    def write(flags):
        path = tmp_path / "cpuinfo"
        path.write_text("".join(CPUINFO.format(core=core, flags=flags) for core in range(2)))
        return path

    return write


@pytest.mark.parametrize(
    ("flags", "precision"), [("avx512_bf16", "bfloat16"), ("amx_bf16", "bfloat16"), ("", "float32")]
)
def test_bfloat16_is_the_fastest_where_the_processor_has_instructions_for_it(cpuinfo, flags, precision):
    assert fastest_precision(cpuinfo(flags)) == precision


def test_a_processor_that_tells_nothing_computes_in_float32(tmp_path):
    assert fastest_precision(tmp_path / "absent") == "float32"
    assert describe(tmp_path / "absent").processor


def test_a_machine_is_described_by_what_speed_and_numbers_depend_on(cpuinfo):
    machine = describe(cpuinfo("avx512_bf16")).model_dump()
    known = {"processor": "Some EPYC 9B45", "avx512_bf16": True, "amx_bf16": False}
    assert {name: machine.pop(name) for name in known} == known
    assert machine.pop("cores") >= 1 and machine.pop("memory_gb") > 0.1
    limits = [machine.pop(name) for name in ("cpu_limit", "memory_limit_gb")]
    assert all(limit is None or limit > 0 for limit in limits)
    assert machine.pop("tensorflow").startswith("2.")
    machine.pop("commit")
    assert not machine


def test_a_machine_in_the_file_of_another_version_is_written_as_it_was_read():
    known = {"processor": "A Xeon", "amx_bf16": True, "memory_gib": 23.5}
    machine = MachineRow.model_validate(known)
    assert machine.model_dump() == known and processor_of(machine) == "A Xeon (amx_bf16)"
    assert processor_of(MachineRow()) == processor_of(None) == UNKNOWN
    with pytest.raises(ValidationError):
        MachineRow.model_validate({"memory_gib": [23.5]})


def test_the_commit_is_known_and_says_where_a_file_differs_from_it(tmp_path):
    def git(*words):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=b", "-C", tmp_path, *words], check=True)

    (tmp_path / "code.py").write_text("1")
    (record := tmp_path / "benchmarks" / "records" / "a.json").parent.mkdir(parents=True)
    record.write_text("1")
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "one")
    clean = commit_of(tmp_path)
    assert len(clean) == 12 and int(clean, 16)
    record.write_text("2")
    assert commit_of(tmp_path) == clean, "a study adds to its record"
    (tmp_path / "code.py").write_text("2")
    assert commit_of(tmp_path) == f"{clean}-dirty"
    (tmp_path / "copy").mkdir()
    assert commit_of(tmp_path / "copy") is None, "a folder inside another working copy"
