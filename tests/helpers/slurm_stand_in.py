"""Stand in for Slurm: `srun` starts a step here, `scontrol` knows the nodes, and `slurmd` runs a batch script."""

import os
import subprocess
from types import MappingProxyType

SRUN = """#!/bin/bash
# Takes the options that the script gives, and runs the command. SIGTERM is not passed on: it kills the step.
while [[ ${1:-} == --* ]]; do
    case $1 in --output=*) output=${1#*=} ;; esac
    shift
done
trap 'kill -KILL "$task"' TERM
setsid "$@" >> "$output" 2>&1 < /dev/null &
task=$!
echo "$task" >> "$SLURM_STAND_IN/steps"
wait "$task"
while kill -0 "$task" 2>/dev/null; do wait "$task"; done
wait "$task"
"""
SCONTROL = """#!/bin/bash
echo "$*" >> "$SLURM_STAND_IN/scontrol"
if [ "$1 $2" = "show hostnames" ]; then tr , '\\n' <<< "$3"; fi
"""
# Starts the batch script, and passes SIGTERM on to it alone. When the script has ended, steps that are left get a
# SIGTERM.
SLURMD = """#!/bin/bash
trap 'kill -TERM "$script"' TERM
setsid bash "$1" &
script=$!
wait "$script"
while kill -0 "$script" 2>/dev/null; do wait "$script"; done
wait "$script"
code=$?
stopped=0
while pgrep --session "$script"; do # an srun that was just started has its step soon, and lives as long as that
    mapfile -t steps < "$SLURM_STAND_IN/steps"
    kill -TERM "${steps[@]:stopped}"
    stopped=${#steps[@]}
    sleep 0.02
done >/dev/null 2>&1
exit "$code"
"""


class SlurmStandIn:
    """Runs a script as Slurm does on the first node. All nodes are on this machine."""

    def __init__(self, folder, script, nodes, room, others=MappingProxyType({})):
        """Write the script and the programs that it calls.

        Args:
          nodes: the names of the nodes, as in SLURM_JOB_NODELIST.
          room: how many tasks fit on each node, in the form of SLURM_TASKS_PER_NODE.
          others: name → content of further programs that the script can call.
        """
        self._folder, self._nodes, self._room = folder, nodes, room
        self._script = folder / "job.sbatch"
        self._script.write_text(script)
        programs = folder / "bin"
        programs.mkdir()
        for name, content in {"srun": SRUN, "scontrol": SCONTROL, "slurmd": SLURMD, **others}.items():
            (programs / name).write_text(content)
            (programs / name).chmod(0o755)
        (folder / "steps").touch()

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
            [self._folder / "bin" / "slurmd", self._script], cwd=self._folder, env=os.environ | slurm, text=True,
            start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    @property
    def was_requeued(self):
        return "requeue 17" in (self._folder / "scontrol").read_text().splitlines()
