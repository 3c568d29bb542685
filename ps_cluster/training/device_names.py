"""The names that TensorFlow gives to the tasks of a cluster and to their devices."""

from __future__ import annotations

from ps_cluster.config.tasks import Task

CPU = "CPU:0"


def task_name(task: Task) -> str:
    """Return the name of a task in TensorFlow, with which the names of its devices begin."""
    return f"/job:{task.type}/replica:0/task:{task.index}"


def device_name(task: Task, device: str = CPU) -> str:
    """Return the full name of a device of a task, e.g. "CPU:0"."""
    return f"{task_name(task)}/device:{device}"


def processor_beside(device: str) -> str:
    """Return the full name of the processor in the same task as `device`, which is a full name too."""
    return f"{device.rpartition('/device:')[0]}/device:{CPU}"
