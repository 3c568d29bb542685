"""Start the containers of manifests as processes of this machine, and restart them as their JobSet says."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import portpicker

from ps_cluster.config.tasks import Task
from ps_cluster.tools.chaos.disturbed_runs import Restarter
from tests.helpers.manifests import pods_of
from tests.helpers.processes import wait_until

PROJECT = Path(__file__).resolve().parents[2]
OF_THE_IMAGE = ("PATH", "OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")  # the image has a system that fits its processor


class LocalPods:
    """Starts a pod's container: exactly its command and environment, with other names for hosts and folders.

    A claim is a folder for all pods, an emptyDir one that begins empty with each pod. The cache is that of the tests, to
    save the time of packing the same data.
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
        """Return the last lines of all pods, for the message of a test that fails."""
        return "\n".join(
            f"{file.parent.name}: {line}" for file in self.all_outputs() for line in file.read_text().splitlines()[-4:]
        )

    def all_outputs(self):
        """Return the file of each pod that ever was."""
        return sorted(self._root.glob("*/output"))

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
        """Return a value of the manifest with the names of this machine."""
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


def failing_codes(job):
    """Return the exit codes after which a Job fails at once."""
    fail, _ = job["podFailurePolicy"]["rules"]
    return fail["onExitCodes"]["values"]


def restarts_of(job):
    """Return the policy of a Job whose pods are not restarted where they are: exit code → how often one starts again."""
    limit = job.get("backoffLimitPerIndex", job.get("backoffLimit"))
    return lambda exit_code: 0 if exit_code in (0, *failing_codes(job)) else limit


class JobSet:
    """Does what the controller of JobSet does: counts Jobs that are complete, and follows the rules for those that failed.

    Attributes:
      outcome: "Completed" or "Failed"; None before.
      restarts: how often all Jobs were recreated.
    """

    def __init__(self, documents, root):
        self.pods = LocalPods(documents, root)
        (self._spec,) = [
            one["spec"]
            if one["kind"] == "JobSet"
            else one["spec"]["template"]["spec"]  # of which Trainer makes a JobSet
            for one in documents
            if one["kind"] in ("JobSet", "TrainingRuntime")
        ]
        self._jobs = {one["name"]: one["template"]["spec"] for one in self._spec["replicatedJobs"]}
        self._run(self._jobs)
        self.outcome, self.restarts = None, 0

    @property
    def is_over(self):
        return self.outcome is not None

    def look(self):
        for restarter in self.restarters.values():
            restarter.poll()
        failed = next(((task, code) for task, code in self.ended.items() if code), None)
        if failed:
            self._follow(self._action(*failed))
        elif self._targets() <= {task for task, code in self.ended.items() if code == 0}:
            self.stop_all()
            self.outcome = "Completed"

    def _targets(self):
        return {task for task in self.pods.tasks if task.type in self._spec["successPolicy"]["targetReplicatedJobs"]}

    def _action(self, task, code):
        reason = "PodFailurePolicy" if code in failing_codes(self._jobs[task.type]) else "BackoffLimitExceeded"
        for rule in self._spec["failurePolicy"]["rules"]:
            if reason not in rule.get("onJobFailureReasons", [reason]):
                continue
            if task.type in rule.get("targetReplicatedJobs", [task.type]):
                return rule["action"]
        return "RestartJobSet"

    def _follow(self, action):
        assert action in ("RestartJobSet", "FailJobSet"), "no test asks for more"
        self.restarts += action == "RestartJobSet"
        if action == "FailJobSet" or self.restarts > self._spec["failurePolicy"]["maxRestarts"]:
            self.stop_all()
            self.outcome = "Failed"
        else:
            self.stop_all()
            self._run(self._jobs)

    def _run(self, jobs):
        self.restarters = {
            role: Restarter(
                [task for task in self.pods.tasks if task.type == role], self.pods.start, restarts=restarts_of(job)
            )
            for role, job in jobs.items()
        }

    @property
    def ended(self):
        """Task → exit code, of those that are not started again."""
        return {task: code for one in self.restarters.values() for task, code in one.final.items()}

    @property
    def running(self):
        return {task: process for one in self.restarters.values() for task, process in one.running.items()}

    def wait_for(self, what, within_s):
        """Act as the operator until something is the case."""

        def looked():
            self.look()
            return what()

        try:
            wait_until(looked, within_s=within_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.ended}\n{self.pods.outputs()}") from error

    def stop_all(self, grace_s=30):
        """Delete all pods."""
        running = self.running.values()
        for process in running:
            process.terminate()
        for process in running:
            try:
                process.wait(timeout=grace_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
