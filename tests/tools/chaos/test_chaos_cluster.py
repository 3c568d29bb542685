"""A real cluster, disturbed."""

import json
import random
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ps_cluster.config import user_code
from ps_cluster.config.tasks import ON_DEATH
from ps_cluster.tools.chaos.chaos_run import run_chaos
from ps_cluster.tools.chaos.kind import make_fault
from ps_cluster.tools.chaos.kinds import FAULTS
from ps_cluster.tools.chaos.runner import ChaosBounds
from ps_cluster.tools.chaos.settings import ChaosSettings
from tests.helpers.finished_runs import last_arrays
from tests.helpers.processes import assert_none_left, wait_until
from tests.helpers.real_cluster import finish, start, unhurried

pytestmark = pytest.mark.cluster


TOY = str(Path(__file__).parents[2] / "doors" / "toy_fault.py:Toy")  # one that the package knows nothing of
INJECTED = (
    TOY,
    "kill worker",
    "disk full at the last checkpoint",  # also resumes, as a hang up does
)


@pytest.mark.exhaustive
@pytest.mark.timeout(600)  # a minute, and more beside other tests
def test_faults_leave_an_exact_ledger_and_the_same_weights(tmp_path):
    """Synchronous updates of two workers do not depend on the order of arrival: equal runs are equal bit for bit."""
    user_code.trust(user_code.parse(TOY).file)
    source, tasks = random.Random(0), ChaosSettings(workers=2).topology.tasks
    faults = [replace(make_fault(FAULTS[name], source, tasks, ON_DEATH), pause_s=0.5) for name in INJECTED]
    options = ("--precision", "float32", "--set", "evaluation.draw_results=false", *unhurried(workers=2))
    settings = ChaosSettings(
        faults=len(faults),
        mode="sync-ps",
        model="mlp",
        workers=2,
        least_cool_down=20,
        # Steps that wait cost little: the undisturbed run repeats all that the disturbed one did meanwhile.
        more_options=tuple(map(str, options)),
    )
    lines = []
    code = run_chaos(
        settings, tmp_path / "chaos", faults=faults, bounds=ChaosBounds(whole_cluster_spacing_s=0), notify=lines.append
    )
    assert_none_left(tmp_path)
    report = json.loads((tmp_path / "chaos" / "chaos.json").read_text())
    assert code == 0 and report["passed"], (report, lines)
    assert [fault["kind"] for fault in report["faults"]] == [name for name in INJECTED if name not in report["skipped"]]
    assert set(INJECTED) - report["skipped"].keys() >= {"kill worker"}
    assert all(0 <= fault["recovery_s"] < 60 for fault in report["faults"])
    assert report["updates"]["scheduled"] == report["updates"]["applied"] > 0
    assert report["updates"]["duplicated"] == report["updates"]["lost"] == 0
    assert [report["accuracy"]["disturbed"]] == report["accuracy"]["undisturbed"]
    disturbed, undisturbed = (last_arrays(tmp_path / "chaos" / name) for name in ("disturbed", "undisturbed"))
    assert np.array_equal(disturbed["weights"], undisturbed["weights"])


@pytest.mark.exhaustive
def test_ctrl_c_ends_the_run_and_leaves_no_process(tmp_path):
    root = tmp_path / "chaos"
    process = start("chaos", "--run-dir", root, "--workers", 1, "--model", "mlp")
    wait_until((root / "disturbed" / "cluster.json").exists)
    process.send_signal(signal.SIGINT)
    finish(process, expected=130)
    assert_none_left(root)
    assert json.loads((root / "chaos.json").read_text())["problems"] == ["stopped before the end"]
