"""Run tasks that use a second logical processor in place of a GPU, and log the device of each operation.

python -m tests.helpers.second_processor_task RUN_DIR KEY=VALUE…     (the launcher; its tasks have more arguments)
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

from ps_cluster.config import parse_assignment
from ps_cluster.launch import task
from tests.helpers.changed_tasks import launch, task_argv

DEVICE = "CPU:1"


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
    settings = {"training.steps": 30, "cluster.gpus": "auto"} | dict(map(parse_assignment, sys.argv[2:]))
    sys.exit(launch(Path(sys.argv[1]), task_argv("second_processor_task"), settings))
