"""Tasks on three hosts, each restarted when it ends, and disturbed: one training, with a test for each fault."""

import json
import random
from dataclasses import replace

import pytest

from ps_cluster.config.tasks import ON_DEATH
from ps_cluster.launch.stages import RunLimits
from ps_cluster.tools.chaos.chaos_run import run_chaos
from ps_cluster.tools.chaos.hosts import Host
from ps_cluster.tools.chaos.kind import SHORTEST_PAUSE_S, make_fault
from ps_cluster.tools.chaos.kinds import FAULTS
from ps_cluster.tools.chaos.kinds.between_hosts import HostLink, HostVanishes
from ps_cluster.tools.chaos.runner import ChaosBounds
from ps_cluster.tools.chaos.settings import ChaosSettings
from tests.helpers.on_hosts import skip_without_hosts
from tests.helpers.processes import assert_none_left
from tests.helpers.real_cluster import unhurried

pytestmark = [pytest.mark.cluster, pytest.mark.exhaustive]

# The command's take longer.
SHORT = {kind.name: kind for kind in (HostVanishes(4), HostLink("cut off worker", "worker", 5, Host.cut))}
INJECTED = ("host vanishes", "cut off worker", "kill ps+chief")


@pytest.fixture(scope="module")
def disturbed(tmp_path_factory):
    """(exit code, report, lines, folder) of one run that was hit by all of INJECTED."""
    skip_without_hosts()
    folder = tmp_path_factory.mktemp("hosts") / "chaos"
    options = tuple(map(str, (*unhurried(workers=2), "--set", "evaluation.draw_results=false")))
    settings = ChaosSettings(
        hosts=3, workers=2, model="mlp", faults=len(INJECTED), lost_after_seconds=4, more_options=options
    )
    source, tasks = random.Random(0), settings.topology.tasks
    kinds = [SHORT.get(name) or FAULTS[name] for name in INJECTED]
    faults = [replace(make_fault(kind, source, tasks, ON_DEATH), pause_s=SHORTEST_PAUSE_S) for kind in kinds]
    lines = []
    # On a busy machine a worker that falls silent may do so while another one is taken in. Then training stands still until
    # the leader's task ends it, and begins again.
    bounds = ChaosBounds(whole_cluster_spacing_s=0, recovery_s=RunLimits.standstill_s + ChaosBounds.recovery_s)
    code = run_chaos(settings, folder, faults=faults, bounds=bounds, notify=lines.append)
    return code, json.loads((folder / "chaos.json").read_text()), lines, folder


@pytest.mark.timeout(600)  # the first one trains for all; a minute, and more beside other tests
@pytest.mark.parametrize("number", range(len(INJECTED)), ids=INJECTED)
def test_training_recovers_by_itself_from(disturbed, number):
    _, report, lines, _ = disturbed
    assert len(report["faults"]) > number, (report["problems"], lines)
    fault = report["faults"][number]
    assert fault["kind"] == INJECTED[number]
    assert fault["recovery_s"] is not None, (report["problems"], lines)


def test_after_all_faults_the_ledger_is_exact_and_no_more_is_lost_than_was_unsaved(disturbed):
    code, report, _, folder = disturbed
    assert code == 0 and report["passed"], report["problems"]
    assert report["updates"]["scheduled"] == report["updates"]["applied"] > 0
    assert report["updates"]["duplicated"] == report["updates"]["lost"] == 0
    assert report["hosted"]["rolled_back_seconds"] <= report["hosted"]["unsaved_seconds"] > 0
    assert_none_left(folder)
