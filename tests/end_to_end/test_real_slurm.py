"""A training under a real Slurm: what ends tasks and jobs there, and a ledger that is exact in the end."""

import json
import sys

import pytest
from click.testing import CliRunner

from ps_cluster.cli.main import main
from tests.helpers.processes import assert_none_left, wait_until
from tests.helpers.real_cluster import PROJECT, rows
from tests.helpers.real_slurm import real_slurm, skip_without_slurm

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400), pytest.mark.exhaustive]
FEW = 8  # updates after which a training is surely at work
TRAINING = (
    "--dataset", "synthetic", "--model", "mlp", "--precision", "float32", "--batch-size", "8", "--workers", "1",
    "--ps", "1", "--no-evaluator", "--set", "evaluation.draw_results=false",
    "--set", "checkpoints.snapshot_every_seconds=0.5", "--set", "cluster.steps_per_dispatch=1",
)  # fmt: skip


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    skip_without_slurm()
    with real_slurm(tmp_path_factory.mktemp("slurm")) as running:
        yield running


class Job:
    """A rendered script that was submitted."""

    def __init__(self, slurm, folder, steps, *options):
        self.run_dir, self.steps, self._slurm = folder / "run", steps, slurm
        self._output, self._hurry = folder / "output", folder / "hurry"
        program = folder / "ps-cluster"
        program.write_text(
            f'#!/bin/bash\n[ ! -e "{self._hurry}" ] || export PS_CLUSTER__CLUSTER__STRAGGLER=none\n'
            f'exec "{sys.executable}" "{PROJECT}/cli.py" "$@"\n'
        )
        program.chmod(0o755)
        script = folder / "job.sbatch"
        words = ("--run-dir", self.run_dir, "--program", program, "--output", script, "--mem-per-cpu", "500M")
        size = ("--set", f"training.steps={steps}")
        result = CliRunner().invoke(main, ("slurm", "render", *map(str, words), *size, *TRAINING, *options))
        assert result.exit_code == 0, result.output
        self._number = slurm.submit(script, f"--output={self._output}")

    def is_in(self, *states):
        return self._told("JobState") in states

    @property
    def nodes(self):
        return self._slurm.ask("scontrol", "show", "hostnames", self._told("NodeList")).split()

    @property
    def restarts(self):
        """How often Slurm has started the job again."""
        return int(self._told("Restarts") or 0)

    def trains(self):
        """Wait until there are FEW updates more than in the rows so far."""
        seen = len(rows(self.run_dir))

        def moves():
            new = [row["applied"] for row in rows(self.run_dir)[seen:] if row["phase"] == "training"]
            return new and new[-1] >= new[0] + FEW

        self.wait_for(moves, every_s=0.1)

    def wait_for(self, condition, every_s=0.5):
        """Wait until `condition` holds. Most of them ask Slurm, which starts a program each time."""
        try:
            wait_until(condition, every_s=every_s)
        except AssertionError:
            logs = sorted(self.run_dir.with_name("run.slurm").glob("*.log"))
            told = "\n".join(f"{log}:\n{log.read_text()[-2000:]}" for log in [self._output, *logs])
            raise AssertionError(told) from None

    def goes_on(self, restarts):
        """Wait until the job has been put back into the queue so often, and runs again; then it need not last any more."""
        self._hurry.touch()
        self.wait_for(lambda: self.restarts == restarts and self.is_in("RUNNING"))

    def ends(self):
        """Wait for the end, and check that every step has been applied, once."""
        self.wait_for(lambda: self.is_in("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"))
        assert (self._told("JobState"), self._told("ExitCode")) == ("COMPLETED", "0:0"), self._output.read_text()
        assert self.proof["updates"]["applied"] == self.proof["updates"]["scheduled"] == self.steps
        assert_none_left(self.run_dir)

    @property
    def proof(self):
        """The end of the training as its leader wrote it, if the ledger's proof holds."""
        ended = json.loads((self.run_dir / "metrics" / "training.json").read_text())
        assert ended["proof"]["holds"], ended["proof"]
        assert ended["updates"]["lost"] == ended["updates"]["duplicated"] == 0
        return ended

    def _told(self, name):
        return self._slurm.job(self._number).get(name, "")


def test_no_step_is_lost_where_a_node_ends_without_notice(slurm, tmp_path):
    """One of the job's nodes is set DOWN: Slurm puts the job back into its queue, and starts it on others."""
    job = Job(slurm, tmp_path, 100, "--cpus", "2", "--set", "cluster.straggler=0:+0.05s")
    job.trains()
    assert job.restarts == 0 and len(job.nodes) == 2
    down = job.nodes[-1]
    slurm.ask("scontrol", "update", f"NodeName={down}", "State=DOWN", "Reason=test")
    job.goes_on(restarts=1)
    assert down not in job.nodes
    slurm.ask("scontrol", "update", f"NodeName={down}", "State=RESUME")
    job.ends()
