"""Run a launcher and tasks without TensorFlow. Each task listens on every interface, as a TensorFlow server does.

listening_cluster.py launch RUN_DIR DATA_DIR SETTING         keep the cluster running until the standard input ends
listening_cluster.py task --run-dir … --type … --index …     write the file `reached-…` once all tasks have answered
"""

import json
import os
import socket
import sys
import threading
import time
from pathlib import Path

from ps_cluster.errors import UserError
from ps_cluster.system.lifetime import die_with_launcher


def launch(root: str, data_dir: str, setting: str) -> None:
    from ps_cluster.config import build_config
    from ps_cluster.launch.launcher import LocalCluster
    from ps_cluster.runs.run_dir import RunDir
    from ps_cluster.system.private_network import network_for
    from ps_cluster.system.supervisor import Supervisor

    run_dir = RunDir(Path(root))
    config = build_config(None, {"cluster.workers": 2})
    task_argv = (sys.executable, __file__, "task")
    with network_for(setting, run_dir.root, Path(data_dir), lambda line: print(line, file=sys.stderr)) as network:
        cluster = LocalCluster(
            config, run_dir, Supervisor(popen=network.popen), network, resume=False, task_argv=task_argv, notify=print
        )
        cluster.start()
        try:
            sys.stdin.read()
        finally:
            cluster.stop_all(grace_s=1)


def task(*options: str) -> None:
    die_with_launcher()
    config = json.loads(os.environ["TF_CONFIG"])
    kind, index = config["task"]["type"], config["task"]["index"]
    if kind in config["cluster"]:
        server = listen_everywhere(int(config["cluster"][kind][index].split(":")[1]))
        threading.Thread(target=answer, args=(server,), daemon=True).start()
    for address in sum(config["cluster"].values(), []):
        reach(address)
    Path(f"reached-{kind}-{index}").touch()
    time.sleep(60)


def listen_everywhere(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def answer(server: socket.socket) -> None:
    while True:
        server.accept()[0].close()


def reach(address: str) -> None:
    host, port = address.split(":")
    while True:
        try:
            return socket.create_connection((host, int(port)), timeout=5).close()
        except ConnectionRefusedError:
            time.sleep(0.02)  # the task may still be starting


if __name__ == "__main__":
    try:
        {"launch": launch, "task": task}[sys.argv[1]](*sys.argv[2:])
    except UserError as error:
        sys.exit(str(error))
