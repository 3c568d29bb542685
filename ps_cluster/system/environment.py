"""Choose the environment variables of processes that import TensorFlow. They must be set before the import."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ps_cluster.installation import environment_with_package
from ps_cluster.process_variables import LAUNCHER_PID, LIFE
from ps_cluster.quiet_import import ERRORS_ONLY, LEVEL
from ps_cluster.system.gpus import HIDDEN, VISIBLE_GPUS
from ps_cluster.system.limits import Allowance, allowance
from ps_cluster.system.run_processes import life_of

_DEFAULTS = {  # unless the user has set them
    LEVEL: ERRORS_ONLY,
    # By default TensorFlow uses oneDNN only on processors with instructions for networks, such as AVX-512 VNNI (release
    # notes of 2.9). It is faster with AVX2 alone too (docs/results.md).
    "TF_ENABLE_ONEDNN_OPTS": "1",
}
_NO_GRPC_PROXY, _NO_PROXY = "no_grpc_proxy", "no_proxy"
_FIXED = {
    "PYTHONUNBUFFERED": "1",  # so that the last lines of a killed task are in its log
    "OMP_NUM_THREADS": "1",  # the tasks share the cores already
    "MALLOC_ARENA_MAX": "2",  # glibc would keep freed memory for each of many threads: 100 MB over all tasks
    "GRPC_FAIL_FAST": "use_caller",  # the loss of a ps or worker raises an error at once, without a wait
    # Keras 3 on TensorFlow, whatever keras.json or other programs of this user choose.
    "KERAS_BACKEND": "tensorflow",
    "KERAS_NNX_ENABLED": "0",
    "TF_USE_LEGACY_KERAS": "0",
    # With 1, TensorFlow refuses operations that read the time, and each row of the ledger has a time.
    "TF_DETERMINISTIC_OPS": "0",
}
_ON_GPUS = {
    # Else a task would reserve all memory of a GPU that tasks share. tf.distribute.Server ignores `set_memory_growth`.
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
}
# No TF32, unless the user has set it: with its ten bits the proof could not compare gradients.
_ON_GPUS_BY_DEFAULT = {"NVIDIA_TF32_OVERRIDE": "0"}
_YES = ("1", "true", "True")
# For each variable: the values that tasks can't follow (None: all values except that in `_FIXED`), and the reason.
_NOT_FOLLOWED: Mapping[str, tuple[Sequence[str] | None, str]] = {
    "KERAS_BACKEND": (None, "tasks compute with TensorFlow"),
    "KERAS_NNX_ENABLED": (_YES, "tasks compute with TensorFlow"),
    "TF_USE_LEGACY_KERAS": (_YES, "tasks use Keras 3"),
    "TF_DETERMINISTIC_OPS": (
        _YES,
        "with it, TensorFlow refuses operations that read the time, and every training step reads the time",
    ),
}
_KERAS_FILE = {"backend": "tensorflow", "floatx": "float32", "image_data_format": "channels_last"}


def for_child(given: Mapping[str, str], *, on_gpus: bool = False) -> dict[str, str]:
    """Return the environment of a child process that imports TensorFlow, based on the environment `given`.

    It contains the variables of `for_tensorflow`. Further variables tell the child where this package is, and which
    process is its launcher, so that the child ends when the launcher ends.
    """
    own = {LAUNCHER_PID: str(os.getpid()), LIFE: life_of(os.getpid())}
    return for_tensorflow(environment_with_package(given), on_gpus=on_gpus) | own


def for_tensorflow(
    given: Mapping[str, str], allowed: Allowance | None = None, *, on_gpus: bool = False
) -> dict[str, str]:
    """Return the environment `given` plus the variables that a task's TensorFlow needs.

    With `on_gpus` the process sees the GPUs that `given` allows. Otherwise it sees no GPU, because each task would reserve
    the memory of every GPU.
    """
    gpus = _ON_GPUS if on_gpus else {VISIBLE_GPUS: HIDDEN}
    defaults = {**_DEFAULTS, **(_ON_GPUS_BY_DEFAULT if on_gpus else {})}
    allowed = allowed or allowance()
    if allowed.quota_decides:  # with a thread per visible processor, the quota is used up early, and all threads wait
        defaults["TF_NUM_INTRAOP_THREADS"] = str(allowed.threads)
        # With a single thread, a worker connects, but never ends a step.
        defaults["TF_NUM_INTEROP_THREADS"] = str(max(2, allowed.threads))
    return {**defaults, **given, **_FIXED, **gpus}


def prepare_for_tensorflow() -> None:
    """Set the variables for a TensorFlow that is imported into this process later."""
    os.environ.update(for_tensorflow(os.environ))


def not_used(given: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each setting in the environment or in the user's keras.json that tasks do not follow."""
    for name, (values, why) in _NOT_FOLLOWED.items():
        value = given.get(name, "")
        if value and value != _FIXED[name] and (values is None or value in values):
            yield f"{name}={value} is not used: {why}"
    file = keras_home(given) / "keras.json"
    for name, value in _chosen_in(file).items():
        if value != _KERAS_FILE[name]:
            yield f"'{file}': {name}={value} is not used: tasks use {_KERAS_FILE[name]}"


def keras_home(given: Mapping[str, str]) -> Path:
    """Return the folder in which Keras keeps its settings and data sets."""
    if folder := given.get("KERAS_HOME"):
        return Path(os.path.expanduser(folder))
    home = os.path.expanduser("~")
    return Path(home if os.access(home, os.W_OK) else "/tmp", ".keras")  # as keras/src/backend/config.py finds it


def _chosen_in(file: Path) -> dict[str, str]:
    """Return the settings in keras.json, by name, that choose the backend, the float type and the image layout."""
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError):  # Keras refuses the file, or ignores it
        return {}
    return {name: str(content[name]) for name in _KERAS_FILE if name in content} if isinstance(content, dict) else {}


def bypassing_proxies(given: Mapping[str, str], hosts: Iterable[str]) -> dict[str, str]:
    """Return the environment `given`, changed so that gRPC connects to `hosts` directly even if a proxy is set.

    gRPC sends every connection through the proxy of `http_proxy` or `https_proxy`, even to this machine. A company's
    proxy does not know the tasks, so no connection between them would ever be made. Downloads still take the proxy.
    """
    listed = given.get(_NO_GRPC_PROXY, given.get(_NO_PROXY, ""))  # gRPC reads the second one only if the first is unset
    names = (*(name.strip() for name in listed.split(",")), *hosts)
    return {**given, _NO_GRPC_PROXY: ",".join(dict.fromkeys(filter(None, names)))}
