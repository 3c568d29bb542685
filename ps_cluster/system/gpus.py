"""Count the GPUs of this machine, and choose which of them each task sees. Imports no TensorFlow.

CUDA, and so TensorFlow, sees the GPUs that CUDA_VISIBLE_DEVICES lists, and numbers them from 0. Without that variable it
sees all.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

VISIBLE_GPUS, HIDDEN = "CUDA_VISIBLE_DEVICES", "-1"
_DRIVER = Path("/proc/driver/nvidia/gpus")  # a folder for each GPU
_LIST_ARGV = ("nvidia-smi", "-L")  # prints a line for each GPU; used if the driver is not in this kernel (WSL)
_LIST_WITHIN_S = 10.0


def count_gpus(driver: Path = _DRIVER, list_argv: Sequence[str] = _LIST_ARGV) -> int:
    """Return the number of this machine's NVIDIA GPUs; 0 if neither the driver nor its program lists a GPU."""
    if driver.is_dir():
        return sum(1 for _ in driver.iterdir())
    if shutil.which(list_argv[0]) is None:
        return 0
    try:
        listed = subprocess.run(list_argv, capture_output=True, text=True, errors="replace", timeout=_LIST_WITHIN_S)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines()) if listed.returncode == 0 else 0


def usable_gpus(given: Mapping[str, str], count: Callable[[], int] = count_gpus) -> tuple[str, ...]:
    """Return the GPUs that a process with this environment may use, each as CUDA_VISIBLE_DEVICES names it.

    As in CUDA, the list in CUDA_VISIBLE_DEVICES ends at the first entry that is empty or negative, such as -1.
    """
    if VISIBLE_GPUS not in given:
        return tuple(map(str, range(count())))
    found: list[str] = []
    for name in map(str.strip, given[VISIBLE_GPUS].split(",")):
        if not name or name.startswith("-"):
            break
        found.append(name)
    return tuple(found)


def gpu_of_worker(worker: int, gpus: Sequence[str]) -> str:
    """Return a worker's value of CUDA_VISIBLE_DEVICES. Workers get the GPUs in turn, or HIDDEN if there are no GPUs."""
    return gpus[worker % len(gpus)] if gpus else HIDDEN
