"""Run tasks with one mistake in them, which the proof has to find.

python -m tests.helpers.mutated_task MISTAKE RUN_DIR     (the launcher; what it starts has more arguments)
"""

from __future__ import annotations

import sys
from pathlib import Path

from ps_cluster.cluster import task
from ps_cluster.cluster.launcher import run_local
from ps_cluster.cluster.local_run import complete_config, resolve_data
from ps_cluster.config import build_config
from ps_cluster.reporting.progress import make_view
from ps_cluster.run.run_dir import RunDir

STEPS = 120
SETTINGS = {
    "data.dataset": "synthetic", "model.name": "tutorial_cnn", "model.precision": "float32", "training.steps": STEPS,
    "training.batch_size_per_worker": 8, "cluster.evaluator": False, "cluster.workers": 2, "cluster.parameter_servers": 2,
}  # fmt: skip


def run(mistake: str, root: Path) -> int:
    view, run_dir = make_view(), RunDir.create(root)
    settings = build_config(overrides=SETTINGS)
    dataset = resolve_data(settings.data, notify=view.notice)
    config = complete_config(settings, dataset)
    argv = (sys.executable, "-m", "tests.helpers.mutated_task", mistake)
    return run_local(config, run_dir, dataset, resume=False, view=view, task_argv=argv)


if __name__ == "__main__":
    mistake, *arguments = sys.argv[1:]
    if len(arguments) == 1:
        sys.exit(run(mistake, Path(arguments[0])))
    from tests.helpers.mistakes import MISTAKES  # imports TensorFlow, which only the tasks may

    MISTAKES[mistake]()
    task.main(arguments)
