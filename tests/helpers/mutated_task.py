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
from ps_cluster.launch.launcher import run_local
from ps_cluster.launch.local_run import complete_config, resolve_data
from ps_cluster.launch.one_task import TaskOptions, run_one_task
from ps_cluster.report.progress import make_view
from ps_cluster.runs.run_dir import RunDir

STEPS = 60
SETTINGS = {
    "data.dataset": "synthetic", "model.name": "mlp", "model.precision": "float32", "training.steps": STEPS,
    "training.batch_size_per_worker": 8,
}  # fmt: skip


def run(mistake: str, root: Path) -> int:
    view, run_dir = make_view(), RunDir.create(root)
    settings = build_config(overrides=SETTINGS | {"cluster.workers": 1, "cluster.parameter_servers": 2})
    dataset = resolve_data(settings.data, notify=view.notice)
    config = complete_config(settings, dataset)
    argv = (sys.executable, "-m", "tests.helpers.mutated_task", mistake)
    return run_local(config, run_dir, dataset, resume=False, view=view, task_argv=argv)


def run_alone(mistake: str, root: Path) -> None:
    topology, own = from_tf_config(os.environ["TF_CONFIG"])
    code = run_one_task(
        build_config(overrides=SETTINGS | {"mode.name": "single"}), root, topology, own,
        options=TaskOptions("never", 60.0), view=make_view(), notify=print,
        task_argv=(sys.executable, "-m", "tests.helpers.mutated_task", mistake),
    )  # fmt: skip
    sys.exit(code)


if __name__ == "__main__":
    mistake, *arguments = sys.argv[1:]
    if len(arguments) == 1:
        sys.exit(run(mistake, Path(arguments[0])))
    if arguments[1:] == ["alone"]:
        run_alone(mistake, Path(arguments[0]))
    from tests.helpers.mistakes import MISTAKES  # imports TensorFlow, which only tasks may import

    with MISTAKES[mistake.replace("_", " ")]():
        task.main(arguments)
