"""Run tasks that make a mistake, which the proof has to find.

python -m tests.helpers.mutated_task MISTAKE RUN_DIR           (the launcher; its tasks have more arguments)
python -m tests.helpers.mutated_task MISTAKE RUN_DIR alone     (one task of the cluster that TF_CONFIG describes)
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ps_cluster.config import build_config
from ps_cluster.launch import task
from ps_cluster.launch.cluster_files import from_tf_config
from ps_cluster.launch.one_task import TaskOptions, run_one_task
from ps_cluster.report.progress import make_view
from tests.helpers.changed_tasks import SETTINGS, launch, task_argv

STEPS = 60


def run_alone(root: Path, argv: tuple[str, ...]) -> int:
    topology, own = from_tf_config(os.environ["TF_CONFIG"])
    return run_one_task(
        build_config(overrides=SETTINGS | {"training.steps": STEPS, "mode.name": "single"}), root, topology, own,
        options=TaskOptions("never", 60.0), view=make_view(), notify=print, task_argv=argv,
    )  # fmt: skip


if __name__ == "__main__":
    mistake, *arguments = sys.argv[1:]
    argv = task_argv("mutated_task", mistake)
    if len(arguments) == 1:
        settings = {"training.steps": STEPS, "cluster.workers": 1, "cluster.parameter_servers": 2}
        sys.exit(launch(Path(arguments[0]), argv, settings))
    if arguments[1:] == ["alone"]:
        sys.exit(run_alone(Path(arguments[0]), argv))
    from tests.helpers.mistakes import MISTAKES  # imports TensorFlow, which only tasks may import

    with MISTAKES[mistake.replace("_", " ")]():
        task.main(arguments)
