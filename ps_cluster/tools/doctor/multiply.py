"""Multiply a matrix on each device of a kind: `python -m ps_cluster.tools.doctor.multiply GPU`.

It prints a line of JSON for each device: its name, its model, the milliseconds of a product, and its largest relative error.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np

from ps_cluster.quiet_import import import_tensorflow

SIDE, TIMES = 1024, 5


def main(kind: str) -> None:
    """Multiply on each device, one after the other. The first product of a device does not count, as it loads libraries."""
    import_tensorflow()
    import tensorflow as tf

    draw = np.random.default_rng(0)
    left, right = (draw.standard_normal((SIDE, SIDE), np.float32) for _ in range(2))
    expected = left.astype(np.float64) @ right
    for physical, device in zip(tf.config.list_physical_devices(kind), tf.config.list_logical_devices(kind)):
        with tf.device(device.name):
            factors = tf.constant(left), tf.constant(right)
            product = tf.linalg.matmul(*factors).numpy()
            began = time.perf_counter()
            for _ in range(TIMES):
                last = tf.linalg.matmul(*factors)
            last.numpy()
        milliseconds = 1000 * (time.perf_counter() - began) / TIMES
        error = float(np.abs(product - expected).max() / np.abs(expected).max())
        model = tf.config.experimental.get_device_details(physical).get("device_name", "")
        print(
            json.dumps(
                {"name": f"{kind}:{device.name.rpartition(':')[2]}", "model": model, "ms": milliseconds, "error": error}
            )
        )


if __name__ == "__main__":
    main(sys.argv[1])
