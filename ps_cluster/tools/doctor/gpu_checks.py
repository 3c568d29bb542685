"""Check the GPUs of this machine: whether TensorFlow sees them and multiplies correctly on each."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from pydantic import BaseModel, ValidationError

from ps_cluster.installation import finding_this_package, how_to_install_cuda
from ps_cluster.system import environment
from ps_cluster.system.gpus import usable_gpus
from ps_cluster.tools.doctor.finding import Finding, fail, ok, warn

MULTIPLY_S = 160.0  # TensorFlow may compile for a new GPU at its first use
_ARGV = (sys.executable, "-m", "ps_cluster.tools.doctor.multiply", "GPU")
_LARGEST_ERROR = 1e-3  # of float32, relative to the largest value; TF32 has a few times 1e-4


class _Product(BaseModel):
    """A line that `multiply` prints about a device."""

    name: str
    model: str
    ms: float
    error: float


def gpus(there: Sequence[str] | None = None, argv: Sequence[str] = _ARGV, timeout_s: float = MULTIPLY_S) -> Finding:
    """Multiply a matrix on each GPU, in a separate process. `there` names the GPUs; None means those of this machine."""
    there = usable_gpus(os.environ) if there is None else there
    if not there:
        return ok("none: training is on the processors")
    count = f"{len(there)} GPU{'s' * (len(there) > 1)}"
    env = environment.for_tensorflow(finding_this_package(os.environ), on_gpus=True)
    try:
        ended = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=timeout_s, env=env)
    except subprocess.TimeoutExpired:
        return fail(f"{count}: no product within {timeout_s:g} s", "see what else uses them (nvidia-smi)")
    try:
        products = [_Product.model_validate_json(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    except ValidationError:
        products = []
    if ended.returncode:
        last = ended.stderr.strip().splitlines()[-1:] or [f"exit code {ended.returncode}"]
        return fail(f"{count}: {last[0]}", "see whether driver and CUDA fit TensorFlow (nvidia-smi)")
    if not products:
        return warn(f"{count}, and TensorFlow sees none: training is on the processors", how_to_install_cuda())
    each = "; ".join(f"{one.name} {one.model}".strip() + f" multiplies in {one.ms:.1f} ms" for one in products)
    if wrong := [one.name for one in products if not one.error <= _LARGEST_ERROR]:
        return fail(
            f"{each}; the product of {', '.join(wrong)} is wrong", "do not use it: the GPU or its driver is broken"
        )
    if len(products) < len(there):
        return warn(
            f"{count}, of which TensorFlow sees {len(products)}: {each}", "see whether the others work (nvidia-smi)"
        )
    return ok(f"{each}; run --gpus auto uses them")
