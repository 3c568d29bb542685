"""Import TensorFlow and all other modules that tasks need, once, and then fork tasks for the launcher.

    python -m ps_cluster.launch.fork_server_program CHANNEL RUN_DIR

RUN_DIR is an argument only so that the list of processes shows it.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterable

from ps_cluster.config.datasets import DATA_FORMATS
from ps_cluster.config.objectives import OBJECTIVES
from ps_cluster.config.registry import Named, Registry
from ps_cluster.config.sections import CHOICES
from ps_cluster.quiet_import import import_tensorflow
from ps_cluster.system.fork_server import serve
from ps_cluster.system.lifetime import die_with_launcher

ARGV = (sys.executable, "-m", __name__)


def import_tasks() -> None:
    """Import what the tasks of all types and modes need, and compute the digest of this package once for all tasks."""
    import_tensorflow()
    import ps_cluster.evaluation.evaluator
    import ps_cluster.training.all_reduce
    import ps_cluster.training.chief  # noqa: F401
    from ps_cluster.training.agreement import digest_of_this_package

    digest_of_this_package()
    registries: Iterable[Registry[Named]] = (*(choice.kinds for choice in CHOICES), DATA_FORMATS, OBJECTIVES)
    for registry in registries:
        tuple(registry)


if __name__ == "__main__":
    die_with_launcher()
    with socket.socket(fileno=int(sys.argv[1])) as launcher:
        serve(launcher, import_tasks)
