"""Run a fork server that stops itself (SIGSTOP) between a fork and its answer if FILE exists.

python -m tests.helpers.stopping_fork_server CHANNEL RUN_DIR FILE [empty]    empty: import nothing beforehand
"""

import os
import signal
import socket
import sys

from ps_cluster.launch import fork_server_program
from ps_cluster.system import fork_server
from ps_cluster.system.lifetime import die_with_launcher

fork = fork_server._fork_for_the_launcher


def fork_and_stop(*arguments):
    pid = fork(*arguments)
    if os.path.exists(sys.argv[3]):
        os.unlink(sys.argv[3])
        os.kill(os.getpid(), signal.SIGSTOP)
    return pid


if __name__ == "__main__":
    die_with_launcher()
    fork_server._fork_for_the_launcher = fork_and_stop
    import_tasks = (lambda: None) if sys.argv[4:] == ["empty"] else fork_server_program.import_tasks
    with socket.socket(fileno=int(sys.argv[1])) as launcher:
        fork_server.serve(launcher, import_tasks)
