"""Connect the chief to the tasks, compare versions and settings, and tell the tasks how training ended."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ps_cluster.config.lazy import tf
from ps_cluster.config.tasks import CHIEF, PS, WORKER, Task
from ps_cluster.errors import UserError
from ps_cluster.files.values import Malformed
from ps_cluster.private_names import PartlyConnectedStrategy, replace_failure_handler
from ps_cluster.runs.leader_messages import MESSAGE_FILE, LeaderMessage
from ps_cluster.runs.leaders import LeaderStart
from ps_cluster.runs.result_rows import TrainingOutcome
from ps_cluster.runs.run_dir import AGREEMENT
from ps_cluster.server.leftovers import free_leftovers
from ps_cluster.system.addresses import check_is_free
from ps_cluster.system.probes import working
from ps_cluster.system.stop_signals import Drain
from ps_cluster.training.agreement import CompatibilityFingerprint
from ps_cluster.training.devices import device_name
from ps_cluster.training.membership import Membership

Coordinator: TypeAlias = "tf.distribute.coordinator.ClusterCoordinator"

CONNECT_EVERY_S = 0.2
TELL_WITHIN_S = 10.0
# A server keeps the resources of a leader for this many seconds after the leader's last sign of life. Without a launcher,
# servers outlive leaders, and each leader creates new weights and slots. With TensorFlow's 600 s, a server would hold the
# weights and slots of several leaders.
KEEP_S = 120


@dataclass(frozen=True)
class TaskAdmission:
    """The check that admits a new task only if its versions, settings, files and data equal those of the leader.

    The check also sends the leader's term number to the task. In an admitted task, it frees the variables and other
    resources that earlier leaders left in memory. Under a launcher, every task is admitted, and nothing is compared,
    sent or freed.

    Attributes:
      leading: how the leader was started.
      fingerprint: the versions, settings, files and data of the leader.
    """

    leading: LeaderStart
    fingerprint: CompatibilityFingerprint

    def __call__(self, task: Task) -> str | None:
        """Return why a task can't take part, on one line; None if it can. Raises tf.errors.OpError if the task is gone."""
        if not self.leading.alone:
            return None
        with tf.device(device_name(task)):
            text = tf.io.read_file(AGREEMENT).numpy()
        try:
            reason = self.fingerprint.difference(CompatibilityFingerprint.from_json(text), at=str(task))
        except Malformed as error:
            reason = f"its {AGREEMENT} {error}"
        if reason is None:
            free_leftovers(device_name(task), self.leading.term)
        tell(task, LeaderMessage(term=self.leading.term, refused=reason))
        return reason


def connect(
    cluster: Mapping[str, list[str]],
    leading: LeaderStart = LeaderStart(),
    reason_to_refuse: Callable[[Task], str | None] = lambda task: None,
) -> tuple[Coordinator, Membership]:
    """Connect to the parameter servers and the available workers. Create variables and Keras objects only afterwards.

    Waits until all parameter servers and `leading.least_workers` workers are available. The program that started this process
    limits the wait.

    Args:
      reason_to_refuse: returns why a task can't take part; None if it can.

    Raises:
      UserError: one of the tasks can't take part.
      OSError: another program uses the chief's port.
    """
    check_is_free(cluster[CHIEF][0])  # before a wait that may be long
    present = _wait_for(cluster, leading.least_workers)
    spec = tf.train.ClusterSpec({CHIEF: cluster[CHIEF], PS: cluster[PS], WORKER: present})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, rpc_layer="grpc", task_type=CHIEF, task_id=0)
    # The strategy has a place for every worker that may ever join, and is connected to the workers that are present.
    keep_s = KEEP_S if leading.alone else None
    strategy = PartlyConnectedStrategy(resolver, all_workers=len(cluster[WORKER]), keep_s=keep_s)
    lost_after_s = leading.lost_after_s if leading.alone else math.inf  # a launcher ends silent tasks
    membership = Membership(
        dict(enumerate(cluster[WORKER])), present, reason_to_refuse, keep_s=keep_s, lost_after_s=lost_after_s
    )
    check_all_admitted(
        [*(Task(PS, index) for index in range(len(cluster[PS]))), *membership.tasks], cluster, reason_to_refuse
    )
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    replace_failure_handler(membership, coordinator)
    return coordinator, membership


def check_all_admitted(
    tasks: Sequence[Task], cluster: Mapping[str, list[str]], reason_to_refuse: Callable[[Task], str | None]
) -> None:
    """Raise UserError, with the task's address and the reason, if one of these tasks can't take part."""
    for task in tasks:
        if reason := reason_to_refuse(task):
            raise UserError(f"{task} ({cluster[task.type][task.index]}) can't take part: {reason}")


def _wait_for(cluster: Mapping[str, list[str]], least_workers: int | None) -> dict[int, str]:
    """Wait for `least_workers` workers (None: all) and all servers. Return the available workers, index → address."""
    servers, workers = dict(enumerate(cluster[PS])), dict(enumerate(cluster[WORKER]))
    least = len(workers) if least_workers is None else least_workers
    while True:
        available = working(workers)
        if len(available) >= least and working(servers) == servers.keys():
            return {index: workers[index] for index in sorted(available)}
        time.sleep(CONNECT_EVERY_S)


def tell(task: Task, message: LeaderMessage) -> None:
    """Write a message into a task's workspace. Raises tf.errors.OpError if the task can't be reached."""
    with tf.device(device_name(task)):
        tf.io.write_file(MESSAGE_FILE, message.model_dump_json())


def tell_end(leading: LeaderStart, tasks: Sequence[Task], outcome: TrainingOutcome, drain: Drain) -> None:
    """Tell tasks that have no launcher how the training has ended, unless another leader will continue the training."""
    if leading.alone and (outcome != "stopped" or drain.for_good):
        _tell_all(tasks, LeaderMessage(term=leading.term, ended=outcome))


def ask_to_start_again(leading: LeaderStart, workers: Sequence[int], why: str) -> None:
    """Ask workers to exit, so that they are started again. `why`: the reason, on one line."""
    _tell_all([Task(WORKER, worker) for worker in workers], LeaderMessage(term=leading.term, start_again=why))


def _tell_all(tasks: Sequence[Task], message: LeaderMessage) -> None:
    """Send a message to all tasks at once. Do not wait for tasks that take longer than `TELL_WITHIN_S`."""

    def tell_one(task: Task) -> None:
        with contextlib.suppress(tf.errors.OpError):
            tell(task, message)

    threads = [threading.Thread(target=tell_one, args=(task,), daemon=True) for task in tasks]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + TELL_WITHIN_S
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
