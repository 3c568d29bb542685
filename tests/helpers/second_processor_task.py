"""Run tasks that use a second logical processor in place of a GPU, and log the device of each operation.

python -m tests.helpers.second_processor_task RUN_DIR KEY=VALUE…     (the launcher; its tasks have more arguments)
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

from ps_cluster.config import build_config, parse_assignment
from ps_cluster.launch import task
from ps_cluster.launch.gpu_choice import with_gpus_found
from ps_cluster.launch.launcher import run_local
from ps_cluster.launch.local_run import complete_config, resolve_data
from ps_cluster.report.progress import make_view
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.system.gpus import usable_gpus

SETTINGS = {
    "data.dataset": "synthetic", "model.name": "mlp", "model.precision": "float32", "training.steps": 30,
    "training.batch_size_per_worker": 8, "cluster.gpus": "auto",
}  # fmt: skip
DEVICE = "CPU:1"


def run(root: Path, assignments: list[str]) -> int:
    view, run_dir = make_view(), RunDir.create(root)
    settings = build_config(overrides=SETTINGS | dict(map(parse_assignment, assignments)))
    dataset = resolve_data(settings.data, notify=view.notice)
    config = with_gpus_found(complete_config(settings, dataset), usable_gpus(os.environ), view.notice)
    argv = (sys.executable, "-m", "tests.helpers.second_processor_task")
    return run_local(config, run_dir, dataset, resume=False, view=view, task_argv=argv)


def do_task(arguments: list[str]) -> None:
    import tensorflow as tf

    from ps_cluster.training import devices

    print(f"sees CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']}", flush=True)
    devices.FIRST_GPU, task.check_gpus = DEVICE, lambda environment: None
    # The first setting is for the server of a task, the second for the devices of a task without a server.
    two = {"CPU": 2}
    tf.compat.v1.ConfigProto = partial(tf.compat.v1.ConfigProto, device_count=two, log_device_placement=True)
    (processor,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(processor, [tf.config.LogicalDeviceConfiguration()] * two["CPU"])
    tf.debugging.set_log_device_placement(True)
    task.main(arguments)


if __name__ == "__main__":
    if sys.argv[1].startswith("--"):
        do_task(sys.argv[1:])
    sys.exit(run(Path(sys.argv[1]), sys.argv[2:]))
