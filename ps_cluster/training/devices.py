"""Name the devices of a cluster's tasks, and choose the device that computes the network on a worker.

All other operations of a worker's graphs are placed on its processor. Otherwise TensorFlow would use a visible GPU for every
operation that has a GPU kernel. It would then place the worker's variables on the GPU, where the next leader would not
free them. It would also copy the whole memory-mapped data set to the GPU, to gather the rows of a batch there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

from ps_cluster.config import RunConfig
from ps_cluster.config.lazy import tf
from ps_cluster.config.tasks import Task
from ps_cluster.errors import UserError
from ps_cluster.installation import how_to_install_cuda
from ps_cluster.system.gpus import VISIBLE_GPUS

CPU, FIRST_GPU = "CPU:0", "GPU:0"
RunDispatch: TypeAlias = "Callable[[tf.Tensor, tf.Tensor], tf.Tensor]"
"""A function that runs a dispatch. It has the arguments of `worker.DispatchGraph`, and returns a tensor."""


def task_name(task: Task) -> str:
    """Return TensorFlow's name of a task, which is the prefix of the names of its devices."""
    return f"/job:{task.type}/replica:0/task:{task.index}"


def device_name(task: Task, device: str = CPU) -> str:
    """Return the full name of a task's device. `device`: its short name, e.g. "CPU:0"."""
    return f"{task_name(task)}/device:{device}"


def processor_beside(device: str) -> str:
    """Return the full name of the processor of the task that has `device`. `device`: the full name of a device."""
    return f"{device.rpartition('/device:')[0]}/device:{CPU}"


def accelerator_of(config: RunConfig) -> str | None:
    """Return the device that computes the network, or None for the processor.

    Workers that do not have this device use their processor.
    """
    return FIRST_GPU if config.cluster.on_gpus else None


def on_device(device: str | None) -> AbstractContextManager[Any]:
    """Return a scope that places operations of a graph on this device of the worker. None: the scope has no effect."""
    return nullcontext() if device is None else tf.device(f"/device:{device}")


def graph_of_dispatch(config: RunConfig, what: tf.TensorSpec, dispatch: RunDispatch) -> RunDispatch:
    """Return a `worker.DispatchGraph` that runs `dispatch`. `what`: shape and dtype of the graph's first argument."""

    def run(what: tf.Tensor, scheduled: tf.Tensor) -> tf.Tensor:
        with on_device(CPU if accelerator_of(config) else None):
            return dispatch(what, scheduled)

    as_graph: RunDispatch = tf.function(run, autograph=False, input_signature=[what, tf.TensorSpec([], tf.float64)])
    return as_graph


def check_gpus(environment: Mapping[str, str]) -> None:
    """Raise UserError if TensorFlow sees no GPU, for example because it was installed without CUDA."""
    if not tf.config.list_physical_devices("GPU"):
        visible = environment.get(VISIBLE_GPUS)
        of_them = "the GPUs" if visible is None else f"{VISIBLE_GPUS}={visible}"
        raise UserError(
            f"cluster.gpus: got 'auto', but TensorFlow sees none of {of_them}: leave --gpus out, or install the package with "
            f"CUDA: {how_to_install_cuda()}"
        )
