"""Read the cluster of a task from TF_CONFIG or from a cluster file."""

from __future__ import annotations

import contextlib
import ipaddress
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from ps_cluster.config.modes import MODES
from ps_cluster.config.tasks import CHIEF, EVALUATOR, TRAINING_TYPES, Task
from ps_cluster.errors import UserError
from ps_cluster.files.json_files import parse_json
from ps_cluster.files.values import Malformed, first_error, one_line
from ps_cluster.files.yaml_files import read_yaml
from ps_cluster.launch.topology import OF_TF_CONFIG, ClusterTopology, Origin
from ps_cluster.notices import Notify, ignore
from ps_cluster.runs.rows import Row, TaskType
from ps_cluster.system.addresses import host_and_port

_ADDRESS = re.compile(r"(?:\[([0-9A-Fa-f:.]{2,45})\]|[A-Za-z0-9_.-]{1,253}):([1-9][0-9]{0,4})")
LAST_PORT = 65535
MASTER = "master"  # the name of the chief in the TF_CONFIG of older programs and of some platforms


def _is_address(text: str) -> str:
    match = _ADDRESS.fullmatch(text)
    if not match or int(match[2]) > LAST_PORT or (match[1] and not isinstance(_ip(match[1]), ipaddress.IPv6Address)):
        raise ValueError(f"is not host:port, with a port from 1 to {LAST_PORT}")
    return text


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host)
    return None


_Jobs = dict[str, Annotated[list[Annotated[str, AfterValidator(_is_address)]], Field(min_length=1)]]


class _GivenTask(Row):
    type: Annotated[TaskType, BeforeValidator(lambda given: CHIEF if given == MASTER else given)]
    index: int = Field(ge=0)


class _GivenConfig(Row):
    """The content of TF_CONFIG (https://www.tensorflow.org/guide/distributed_training#tf_config).

    Keys that TensorFlow does not know, e.g. "environment", are common, and are ignored.
    """

    cluster: _Jobs
    task: _GivenTask


def from_tf_config(text: str | None, notify: Notify = ignore) -> tuple[ClusterTopology, Task]:
    """Return the cluster that TF_CONFIG describes, without its evaluator, and the task of this process.

    `notify` gets a line about each part of the description that is ignored. Raises UserError if TF_CONFIG is not set
    or is invalid, or if no mode can train on the cluster that it describes.
    """
    if not text:
        raise UserError(
            "TF_CONFIG is not set: it has to describe the cluster, and to say which of its tasks this process is; set it, "
            "or give --cluster, --type and --index"
        )
    try:
        given = _GivenConfig.model_validate(parse_json(text))
    except Malformed as error:
        raise UserError(f"TF_CONFIG {error}") from error
    except ValidationError as error:
        raise UserError(first_error(error, "TF_CONFIG")) from error
    return _topology(given.cluster, Task(given.task.type, given.task.index), OF_TF_CONFIG, notify)


def from_file(path: Path, task: Task, notify: Notify) -> tuple[ClusterTopology, Task]:
    """Return the cluster that a YAML file describes (type → addresses), without its evaluator, and `task`.

    `task` is the task that the options --type and --index name. Notices and errors are as in `from_tf_config`.
    """
    origin = Origin(f"'{path}'", "", "--type", "--index")
    try:
        jobs = TypeAdapter(_Jobs, config=ConfigDict(strict=True)).validate_python(read_yaml(path))
    except ValidationError as error:
        raise UserError(first_error(error, origin.name)) from error
    return _topology(jobs, task, origin, notify)


def _topology(given: _Jobs, task: Task, origin: Origin, notify: Notify) -> tuple[ClusterTopology, Task]:
    if EVALUATOR in given:
        notify(
            f"{origin.field(EVALUATOR)}: the evaluator is left out of the cluster: it only scores checkpoints, "
            "and TensorFlow would wait for it forever"
        )
    cluster = _cluster(given, origin)
    counts = {name: len(addresses) for name, addresses in cluster.items()} | {EVALUATOR: 1}
    if task.type not in counts:
        raise UserError(f"{origin.type}: got {task.type!r}; it must be one of {', '.join(counts)}")
    if task.index >= counts[task.type]:
        raise UserError(f"{origin.index}: got {task.index}; the cluster has {counts[task.type]} of type {task.type}")
    return ClusterTopology(cluster, evaluator=task.type == EVALUATOR, origin=origin), task


def _cluster(given: Mapping[str, list[str]], origin: Origin) -> dict[str, list[str]]:
    if {CHIEF, MASTER} <= given.keys():
        raise UserError(f"{origin.field(MASTER)}: there is a chief too, which is the same as a master: keep only one")
    members = {CHIEF if kind == MASTER else kind: addresses for kind, addresses in given.items() if kind != EVALUATOR}
    cluster = {kind: members[kind] for kind in TRAINING_TYPES if kind in members}
    if tuple(cluster) not in {mode.cluster.types for mode in MODES} or len(cluster) < len(members):
        raise UserError(
            f"{origin.field()}: got {one_line(', '.join(members), 300) or 'nothing'}; a cluster has either chief, ps "
            "and worker, or chief and worker, or only worker, or only chief"
        )
    if len(cluster.get(CHIEF, [""])) != 1:
        raise UserError(f"{origin.field(CHIEF)} must be one address, got {len(cluster[CHIEF])}")
    (address, times), *_ = Counter(address for addresses in cluster.values() for address in addresses).most_common(1)
    if times > 1:
        raise UserError(f"{origin.field()}: {address!r} appears twice")
    _check_ports_of_this_machine(cluster, origin)
    return cluster


def _check_ports_of_this_machine(cluster: Mapping[str, list[str]], origin: Origin) -> None:
    """Raise UserError if two tasks on loopback addresses have the same port."""
    taken: dict[int, str] = {}
    for address in (address for addresses in cluster.values() for address in addresses):
        host, port = host_and_port(address)
        ip = _ip(host)
        is_here = host == "localhost" if ip is None else ip.is_loopback
        if is_here and (other := taken.setdefault(port, address)) != address:
            raise UserError(
                f"{origin.field()}: {other!r} and {address!r} have the same port on the same machine, where "
                "TensorFlow listens on all addresses: give each task there a different port"
            )
