"""Start the containers of manifests as processes of this machine."""

import json
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import portpicker

from ps_cluster.config.tasks import Task
from tests.helpers.manifests import pods_of

PROJECT = Path(__file__).resolve().parents[2]
# Variables that describe the system. A real pod has those of its image.
OF_THE_IMAGE = ("PATH", "OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")


class LocalPods:
    """Starts containers with exactly their commands and environments, but other names for hosts and folders.

    A claim is a folder for all pods. An emptyDir is a new folder for each pod. All pods use the cache of the tests, so
    that the same data is not packed again.
    """

    def __init__(self, documents, root):
        self._roles = {pods.role: pods for pods in pods_of(documents)}
        self._root = root
        self._ports = defaultdict(lambda: f"127.0.0.1:{portpicker.pick_unused_port()}")
        self._started = 0
        (self._config,) = [one["data"] for one in documents if one["kind"] == "ConfigMap"]
        self._programs = root / "bin"
        self._programs.mkdir()
        program = self._programs / "ps-cluster"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{PROJECT}/cli.py" "$@"\n')
        program.chmod(0o755)
        (root / "cache").mkdir()
        (root / "cache" / "ps_cluster").symlink_to(os.environ["PS_CLUSTER_CACHE"])

    @property
    def tasks(self):
        return [Task(role, index) for role, pods in self._roles.items() for index in range(pods.count)]

    def claim(self, name):
        return self._root / "claims" / name

    def start(self, task):
        """Start the pod of a task."""
        self._started += 1
        pods, pod = self._roles[task.type], self._root / f"{self._started}-{task}"
        volumes = {one["name"]: self._folder(one, pod) for one in pods.template["spec"]["volumes"]}
        places = {mount["mountPath"]: volumes[mount["name"]] for mount in pods.container["volumeMounts"]}
        environment = {name: os.environ[name] for name in OF_THE_IMAGE if name in os.environ}
        environment |= {name: self._here(value, places) for name, value in pods.environment(task.index).items()}
        environment["PATH"] = f"{self._programs}{os.pathsep}{environment['PATH']}"
        command = [self._here(word, places) for word in pods.container["command"]]
        program = shutil.which(command[0], path=environment["PATH"])
        with (pod / "output").open("w") as output:
            return subprocess.Popen(
                [program, *command[1:]], cwd=pod, start_new_session=True,
                env=environment, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def outputs(self):
        """Return the last lines that each pod has written, for the message of a test that fails."""
        return "\n".join(
            f"{file.parent.name}: {line}"
            for file in sorted(self._root.glob("*/output"))
            for line in file.read_text().splitlines()[-4:]
        )

    def _folder(self, volume, pod):
        if "persistentVolumeClaim" in volume:
            folder = self.claim(volume["persistentVolumeClaim"]["claimName"])
        else:
            folder = (self._root if volume["name"] == "cache" else pod) / volume["name"]
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self._config.items() if "configMap" in volume else ():
            (folder / name).write_text(content)
        return folder

    def _here(self, text, places):
        """Return a value of the manifest, with folders and addresses of this machine."""
        for place, folder in places.items():
            if text == place or text.startswith(f"{place}/"):
                return f"{folder}{text.removeprefix(place)}"
        if text.startswith("{"):  # TF_CONFIG
            content = json.loads(text)
            content["cluster"] = {
                kind: [self._ports[address] for address in addresses] for kind, addresses in content["cluster"].items()
            }
            return json.dumps(content)
        return text
