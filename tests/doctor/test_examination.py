"""Checks one after the other: each is answered in its time, whatever it meets."""

import json
import threading

from click.testing import CliRunner

from ps_cluster.cli.main import main
from ps_cluster.tools.doctor import checks as doctor_checks
from ps_cluster.tools.doctor.checks import Check, Status, all_checks, as_json, examine, ok, warn


def raises():
    raise OSError("the disk is gone")


def test_a_check_that_raises_or_hangs_has_failed_and_the_others_have_their_turn():
    never = threading.Event()
    checks = [Check("raises", raises), Check("hangs", never.wait, 0.05), Check("fine", lambda: ok("all well"))]
    found = list(examine(checks))
    never.set()
    assert [one.status for one in found] == [Status.FAIL, Status.FAIL, Status.OK]
    assert "the disk is gone" in found[0].says and "no answer within 0.05 s" in found[1].says
    assert all(one.todo for one in found[:2])


def test_the_worst_answer_decides_and_a_warning_is_no_failure():
    fine, doubtful = Check("fine", lambda: ok("well")), Check("doubtful", lambda: warn("slow", "wait"))
    assert as_json([])["status"] == "ok" and as_json(list(examine([doubtful, fine])))["status"] == "warn"
    assert as_json(list(examine([Check("raises", raises), fine])))["status"] == "fail"


def test_every_check_has_a_name_of_its_own_and_a_limit(tmp_path):
    checks = all_checks(tmp_path, tmp_path, None, cluster=True)
    assert len({check.name for check in checks}) == len(checks) == 11
    assert all(0 < check.limit_s <= 180 for check in checks)


def test_the_command_prints_each_check_and_what_to_do_or_json(tmp_path, monkeypatch):
    monkeypatch.setenv("PS_CLUSTER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    quick = all_checks(tmp_path, tmp_path, None, cluster=False)[:-1]  # without the import of TensorFlow
    monkeypatch.setattr(doctor_checks, "all_checks", lambda *places, cluster: quick)
    told = CliRunner().invoke(main, ["doctor", "--no-cluster"])
    lines = told.stdout.splitlines()
    assert told.exit_code == 0 and lines[0].startswith("ok    python      3.")
    data = next(number for number, line in enumerate(lines) if line.startswith("warn  data"))
    assert "data fetch cifar10" in lines[data + 1]
    found, same = (json.loads(CliRunner().invoke(main, ["doctor", "--json", *to]).stdout) for to in ([], ["-"]))
    assert [one["name"] for one in same["checks"]] == [one["name"] for one in found["checks"]]
    assert found["status"] == "warn" and [one["name"] for one in found["checks"]] == [one.name for one in quick]


def test_a_check_that_has_failed_is_the_exit_code(monkeypatch):
    monkeypatch.setattr(doctor_checks, "all_checks", lambda *places, cluster: [Check("raises", raises)])
    told = CliRunner().invoke(main, ["doctor"])
    assert told.exit_code == 1 and "to do: " in told.stdout
