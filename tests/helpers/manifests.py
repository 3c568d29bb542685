"""Render manifests, and read the pods in them as Kubernetes does."""

import re
from typing import Any, NamedTuple

import yaml

from ps_cluster.config import build_config
from ps_cluster.launch.cluster_files import from_tf_config
from ps_cluster.launch.topology import ClusterTopology
from ps_cluster.tools.deploy.kubernetes import KINDS, Deployment
from ps_cluster.tools.deploy.roles import roles_of

SETTINGS = {"data.dataset": "synthetic", "model.name": "tutorial_cnn", "model.precision": "float32"}
SIZE = {"cluster.workers": 2, "cluster.parameter_servers": 2}


class Pods(NamedTuple):
    """The pods of one role: their template, and how many there are."""

    role: str
    count: int
    template: dict[str, Any]

    @property
    def container(self):
        (container,) = self.template["spec"]["containers"]
        return container

    @property
    def command(self):
        return self.container["command"]

    def environment(self, index):
        """Return the environment of a pod's container, with references replaced as Kubernetes does."""
        found = {}
        for variable in self.container["env"]:
            value = variable.get("value", str(index))  # the only value from a field is the pod's index
            found[variable["name"]] = re.sub(r"\$\((\w+)\)", lambda name: found[name[1]], value)
        return found


def deployment(changes=None, *, name="mine", **more):
    """Return a small deployment."""
    config = build_config(None, SETTINGS | (SIZE if changes is None else changes))
    fields = {"namespace": "lab", "image": "me/ps-cluster:1", "run_volume": "runs", "data_volume": "data"}
    return Deployment(name=name, config=config, **fields | {"roles": roles_of(config)} | more)


def rendered(kind, asked):
    """Return the documents of a kind of manifest as kubectl reads them. `asked`: the deployment."""
    return list(yaml.safe_load_all(KINDS[kind].manifests(asked)))


def pods_of(documents):
    """Return the pods that Kubernetes or an operator creates for a manifest, role after role."""
    return [
        pods
        for document in documents
        if document["kind"] in _READERS
        for pods in _READERS[document["kind"]](document["spec"])
    ]


def cluster_of(tf_config):
    """Return the cluster and the task of a pod, as `task` reads them."""
    found: tuple[ClusterTopology, Any] = from_tf_config(tf_config, lambda line: None)
    return found


def _replicated(spec):
    return [Pods(one["name"], one["replicas"], one["template"]["spec"]["template"]) for one in spec["replicatedJobs"]]


def _job(spec):
    role = spec["template"]["metadata"]["labels"]["app.kubernetes.io/component"]
    return [Pods(role, spec["completions"], spec["template"])]


_READERS = {
    "JobSet": _replicated,
    "TrainingRuntime": lambda spec: _replicated(spec["template"]["spec"]),
    "Job": _job,
}
