"""Check the GPUs of this machine: whether TensorFlow sees them and multiplies correctly on each.

As a program, `python -m ps_cluster.tools.doctor.gpu_checks GPU`, it multiplies on each device of a type, and prints a
line of JSON for each device.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from ps_cluster.installation import environment_with_package, how_to_install_cuda
from ps_cluster.quiet_import import import_tensorflow
from ps_cluster.system import environment
from ps_cluster.system.failure_lines import last_error_line
from ps_cluster.system.gpus import usable_gpus
from ps_cluster.tools.doctor.finding import Finding, fail, ok, warn

MULTIPLY_S = 160.0  # TensorFlow may compile for a new GPU at its first use
_ARGV = (sys.executable, "-m", __name__, "GPU")
_SIDE, _TIMES = 1024, 5  # the side of the matrix; the number of products that are timed
_LARGEST_ERROR = 1e-3  # of float32, relative to the largest value; with TF32 it is a few times 1e-4


class Product(BaseModel):
    """The measurements of a matrix product on a device.

    Attributes:
      ms: the mean time of a product in milliseconds.
      error: the largest error of an element, relative to the largest element of the product.
    """

    model_config = ConfigDict(ser_json_inf_nan="constants")

    name: str
    model: str
    ms: float
    error: float


def gpus(devices: Sequence[str] | None = None, argv: Sequence[str] = _ARGV) -> Finding:
    """Multiply a matrix on each GPU, in a separate process. `devices`: the GPUs; None means those of this machine."""
    devices = usable_gpus(os.environ) if devices is None else devices
    if not devices:
        return ok("none, so training runs on the CPU")
    count = f"{len(devices)} GPU{'s' * (len(devices) > 1)}"
    env = environment.for_tensorflow(environment_with_package(os.environ), on_gpus=True)
    try:
        ended = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=MULTIPLY_S, env=env)
    except subprocess.TimeoutExpired:
        return fail(
            f"{count}, but no GPU multiplied a matrix within {MULTIPLY_S:g} s",
            "see which other programs use the GPUs (nvidia-smi)",
        )
    try:
        products = [Product.model_validate_json(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    except ValidationError:
        products = []
    if ended.returncode:
        return fail(f"{count}: {last_error_line(ended)}", "see whether the driver and CUDA fit TensorFlow (nvidia-smi)")
    if not products:
        return warn(f"{count}, and TensorFlow sees none: training runs on the CPU", how_to_install_cuda())
    each = "; ".join(f"{one.name} {one.model}".strip() + f" multiplies in {one.ms:.1f} ms" for one in products)
    if wrong := [one.name for one in products if not one.error <= _LARGEST_ERROR]:
        return fail(
            f"{each}; the product of {', '.join(wrong)} is wrong", "do not use it: the GPU or its driver is broken"
        )
    if len(products) < len(devices):
        return warn(
            f"{count}, of which TensorFlow sees {len(products)}: {each}", "see if the other GPUs work (nvidia-smi)"
        )
    return ok(f"{each}; run --gpus auto uses them")


def main(kind: str) -> None:
    """Multiply on each device of the type `kind`, and print the results.

    The first product of a device is not timed, because it loads libraries.
    """
    import_tensorflow()
    import tensorflow as tf

    draw = np.random.default_rng(0)
    left, right = (draw.standard_normal((_SIDE, _SIDE), np.float32) for _ in range(2))
    expected = left.astype(np.float64) @ right
    for physical, device in zip(tf.config.list_physical_devices(kind), tf.config.list_logical_devices(kind)):
        with tf.device(device.name):
            factors = tf.constant(left), tf.constant(right)
            product = tf.linalg.matmul(*factors).numpy()
            began = time.perf_counter()
            for _ in range(_TIMES):
                last = tf.linalg.matmul(*factors)
            last.numpy()
        done = Product(
            name=f"{kind}:{device.name.rpartition(':')[2]}",
            model=tf.config.experimental.get_device_details(physical).get("device_name", ""),
            ms=1000 * (time.perf_counter() - began) / _TIMES,
            error=float(np.abs(product - expected).max() / np.abs(expected).max()),
        )
        print(done.model_dump_json())


if __name__ == "__main__":
    main(sys.argv[1])
