"""A stand-in for Slurm: `srun` that starts a step here, `scontrol` that knows the nodes, and a way to run a batch script."""

import os
import subprocess

SRUN = """#!/bin/bash
# Takes the options that the script gives, and runs the command in place of itself, so that signals reach it.
while [[ ${1:-} == --* ]]; do
    case $1 in --output=*) output=${1#*=} ;; esac
    shift
done
exec "$@" >> "$output" 2>&1 < /dev/null
"""
SCONTROL = """#!/bin/bash
echo "$*" >> "$SLURM_STAND_IN/scontrol"
if [ "$1 $2" = "show hostnames" ]; then tr , '\\n' <<< "$3"; fi
"""


class SlurmStandIn:
    """Runs a script as Slurm does on the first node, with every node on this machine."""

    def __init__(self, folder, script, nodes, room):
        """`nodes`: their names, as in SLURM_JOB_NODELIST. `room`: for how many tasks each has room, as Slurm writes it."""
        self._folder, self._nodes, self._room = folder, nodes, room
        self._script = folder / "job.sbatch"
        self._script.write_text(script)
        programs = folder / "bin"
        programs.mkdir()
        for name, content in (("srun", SRUN), ("scontrol", SCONTROL)):
            (programs / name).write_text(content)
            (programs / name).chmod(0o755)

    def start(self):
        """Start the script, with the variables that Slurm sets for it."""
        slurm = {
            "PATH": f"{self._folder / 'bin'}:{os.environ['PATH']}",
            "SLURM_STAND_IN": str(self._folder),
            "SLURM_JOB_ID": "17",
            "SLURM_JOB_NODELIST": ",".join(self._nodes),
            "SLURM_CPUS_PER_TASK": "1",
            "SLURM_TASKS_PER_NODE": self._room,
        }
        return subprocess.Popen(
            ["bash", self._script], cwd=self._folder, env=os.environ | slurm, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    @property
    def was_requeued(self):
        return "requeue 17" in (self._folder / "scontrol").read_text().splitlines()
