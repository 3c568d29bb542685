"""The script for Slurm, run with small stand-ins for `srun`, `scontrol` and the task."""

import itertools
import subprocess
import sys
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from ps_cluster.config import build_config
from ps_cluster.config.tasks import Task
from ps_cluster.tools.deploy.roles import roles_of
from ps_cluster.tools.deploy.slurm import SlurmJob
from tests.helpers.manifests import SETTINGS, SIZE, cluster_of
from tests.helpers.processes import assert_none_left, wait_until
from tests.helpers.slurm_stand_in import SlurmStandIn

pytestmark = pytest.mark.slow

NODES = ["10.0.0.1", "10.0.0.2"]
# Ends at once with the next code of its plan. At "stay" it waits for SIGTERM, and then ends with the code after that.
TASK = """#!/bin/bash
name=$(sed -E 's/.*"type": "([a-z]+)", "index": ([0-9]+).*/\\1-\\2/' <<< "$TF_CONFIG")
trap 'echo "$name" >> "{here}/stopped"; exit ${{plan[number]}}' TERM
read -r -a plan <<< "$(cat "{here}/$name.plan" 2>/dev/null || echo stay 143)"
number=$(($(cat "{here}/$name.started" 2>/dev/null | wc -l) + 1))
echo "$TF_CONFIG" > "{here}/$name.tf_config"
echo "$*" >> "{here}/$name.started"
while [ "${{plan[number - 1]}}" = stay ]; do sleep 0.02; done
exit "${{plan[number - 1]}}"
"""


@pytest.fixture
def slurm(tmp_path):
    """Return a function that starts the script, e.g. slurm({"chief-0": "75 0"}) with this plan for the chief."""
    here, started = tmp_path / "here", []
    here.mkdir()
    task = here / "task"
    task.write_text(TASK.format(here=here))
    task.chmod(0o755)

    def start(plans, nodes=NODES, room="3(x2)", programs=None, **changes):
        for name, plan in plans.items():
            (here / f"{name}.plan").write_text(plan)
        started.append(SlurmStandIn(here, job(here / "run", task, **changes).script(), nodes, room, programs or {}))
        process = started[-1].start()
        process.here, process.slurm = here, started[-1]
        return process

    yield start
    assert_none_left(here)


def job(run_dir, program, **changes):
    config = build_config(None, SETTINGS | SIZE)
    asked = SlurmJob(
        name="mine", run_dir=PurePosixPath(run_dir), program=str(program), config=config, roles=roles_of(config),
        time="1:00:00", cpus=1, memory_per_cpu="1G", tasks_per_node=3, restarts=2, steady_s=600, first_port=2222,
    )  # fmt: skip
    return replace(asked, **changes)


def starts(process, name):
    file = process.here / f"{name}.started"
    return file.read_text().splitlines() if file.exists() else []


def finish(process):
    output, _ = process.communicate(timeout=20)
    return process.returncode, output


def test_the_script_is_sound_for_shellcheck(tmp_path):
    (tmp_path / "job.sh").write_text(job("/shared/a run", "/opt/it's/ps-cluster").script())
    checked = subprocess.run(
        [Path(sys.executable).with_name("shellcheck"), tmp_path / "job.sh"], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout


def test_every_task_gets_the_same_cluster_made_of_the_nodes_with_a_port_of_its_own(slurm):
    process = slurm({"chief-0": "stay 0"}, task_options=("--min-workers", "1"))
    wait_until(lambda: len(list(process.here.glob("*.started"))) == 6)
    process.terminate()
    code, output = finish(process)
    assert code == 0, output
    seen = [cluster_of(file.read_text()) for file in process.here.glob("*.tf_config")]
    expected = {Task(kind, index) for kind in ("ps", "worker") for index in (0, 1)}
    assert {task for _, task in seen} == {Task("chief", 0), Task("evaluator", 0), *expected}
    assert {str(topology.cluster) for topology, _ in seen} == {
        str({
            "chief": ["10.0.0.1:2222"], "ps": ["10.0.0.1:2223", "10.0.0.1:2224"],
            "worker": ["10.0.0.2:2225", "10.0.0.2:2226"],
        })
    }  # fmt: skip
    assert starts(process, "chief-0") == [
        f"task --run-dir {process.here}/run --config {process.here}/run.yaml --min-workers 1"
    ]
    assert build_config(process.here / "run.yaml") == build_config(None, SETTINGS | SIZE)
    assert not process.slurm.was_requeued


def test_a_task_is_run_again_after_a_failure_but_no_more_often_than_allowed(slurm):
    process = slurm({"chief-0": "75 137 stay 0", "worker-0": "1 1 1 1", "worker-1": "143 stay 143"})
    wait_until(lambda: len(starts(process, "chief-0")) == 3 and len(starts(process, "worker-0")) == 3, within_s=20)
    process.terminate()
    code, output = finish(process)
    assert code == 0, output
    assert len(starts(process, "worker-0")) == 3 and len(starts(process, "worker-1")) == 2
    assert "chief-0 has ended with exit code 75" in output


def test_restarts_are_counted_in_a_row_which_ends_with_a_task_that_ran_for_long(slurm):
    process = slurm({"chief-0": "75 75 75 75 0", "evaluator-0": "0"}, steady_s=0)
    code, output = finish(process)
    assert code == 0, output
    assert len(starts(process, "chief-0")) == 5


@pytest.mark.parametrize("code", [2, 3, 4])
def test_a_leader_that_must_not_be_retried_ends_the_job_with_its_code(slurm, code):
    process = slurm({"chief-0": str(code)})
    assert finish(process)[0] == code
    assert len(starts(process, "chief-0")) == 1 and not process.slurm.was_requeued


def test_a_task_that_refuses_its_input_or_its_port_ends_the_job(slurm):
    process = slurm({"chief-0": "stay 75", "ps-1": "2"})
    code, output = finish(process)
    assert code == 2 and "ps-1 has ended with exit code 2" in output
    assert not process.slurm.was_requeued and len(starts(process, "chief-0")) <= 1


def test_a_job_whose_time_is_over_stops_its_leader_first_and_goes_back_into_the_queue(slurm):
    process = slurm({"chief-0": "stay 75"})
    wait_until(lambda: len(list(process.here.glob("*.started"))) == 6)
    process.terminate()
    code, output = finish(process)
    assert code == 75, output
    stopped = (process.here / "stopped").read_text().split()
    assert stopped[0] == "chief-0" and set(stopped) >= {"chief-0", "ps-0", "ps-1", "worker-0", "worker-1"}
    assert process.slurm.was_requeued
    assert all(len(starts(process, name)) == 1 for name in stopped), "nothing is started again beside its successor"


def test_a_job_that_is_done_waits_for_the_evaluator_and_stops_what_is_left(slurm):
    process = slurm({"chief-0": "0", "evaluator-0": "1 0", "worker-0": "0"})
    wait_until(lambda: starts(process, "worker-1"))
    assert finish(process)[0] == 0
    assert len(starts(process, "evaluator-0")) == 2
    assert "worker-1" in (process.here / "stopped").read_text()


def test_tasks_go_where_slurm_has_room_for_them_with_ports_by_the_number_of_the_job(slurm):
    process = slurm({"chief-0": "stay 0"}, nodes=["a", "b", "c"], room="1,2,9", tasks_per_node=None, first_port=None)
    wait_until(lambda: starts(process, "chief-0"))
    process.terminate()
    assert finish(process)[0] == 0
    topology, _ = cluster_of((process.here / "chief-0.tf_config").read_text())
    first = 10_000 + 17 * 6  # 17 is the number of the job: two jobs on a node have ports of their own
    placed = {"chief": ["a"], "ps": ["b", "b"], "worker": ["c", "c"]}
    ports = itertools.count(first)
    assert topology.cluster == {kind: [f"{node}:{next(ports)}" for node in nodes] for kind, nodes in placed.items()}


def test_no_task_begins_with_a_configuration_that_could_not_be_written_whole(slurm, tmp_path):
    (tmp_path / "here" / "run.yaml").write_text("earlier")
    full = "#!/bin/bash\nhead -c 40\necho 'cat: write error: No space left on device' >&2\nexit 1\n"
    code, output = finish(slurm({}, programs={"cat": full}))
    assert (code, output) == (1, "cat: write error: No space left on device\n")
    assert {file.name: file.read_text() for file in (tmp_path / "here").glob("run.yaml*")} == {"run.yaml": "earlier"}
    assert not list((tmp_path / "here").glob("*.started"))


def test_too_little_room_is_told_in_one_line(slurm):
    code, output = finish(slurm({}, room="1(x2)"))
    assert code == 2
    assert output == "Error: SLURM_TASKS_PER_NODE: got '1(x2)': too few for chief:1 ps:2 worker:2 evaluator:1\n"


def test_slurm_is_asked_for_the_nodes_that_hold_all_tasks_and_for_the_time_that_the_leader_drains():
    lines = job("/shared/run", "ps-cluster", tasks_per_node=4, more=("--partition=long",)).script().splitlines()
    asked = dict(line.removeprefix("#SBATCH --").partition("=")[::2] for line in lines if line.startswith("#SBATCH"))
    assert (asked["nodes"], asked["ntasks-per-node"], asked["time"]) == ("2", "4", "1:00:00")
    assert asked["ntasks"] == "6", "not the 8 that two nodes have room for"
    assert "use-min-nodes" not in asked
    assert asked["signal"] == "B:TERM@150" and "requeue" in asked and asked["partition"] == "long"
    lines = job("/shared/run", "ps-cluster", tasks_per_node=None, cpus=4).script().splitlines()
    few = {"#SBATCH --ntasks=6", "#SBATCH --nodes=1-6", "#SBATCH --use-min-nodes", "#SBATCH --cpus-per-task=4"}
    assert few <= {*lines} and not any("ntasks-per-node" in line for line in lines), (
        "where nobody says how many fit on each"
    )
