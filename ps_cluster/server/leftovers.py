"""Name the resources that a leader creates on servers, and free the resources that earlier leaders have left there.

A leader is the process that directs a run, usually the chief. Another leader may take over, with a higher term number.
If each process is started separately with the command `task`, servers outlive their leaders, and a frozen leader may
wake up while its successor works. TensorFlow shares resources by name within a process: two leaders whose queue, lock
or variable has the same name use the same resource. So each such name begins with the leader's prefix, which contains
the leader's term number:

    term-000002-since-000001-5f0c…/shard-0/changed-0

Variables that a leader creates eagerly have no name. They can't be shared, and TensorFlow frees them with the leader. A
resource with a name stays until its process ends. Each process therefore keeps a list of the names that leaders have
created there, and the next leader closes and frees the resources of earlier leaders. A graph that waits for an older
leader's queue then fails and releases its thread. Without that, no graph of the new leader could run on a server with
two threads.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from typing import Any

from ps_cluster.config.lazy import tf

REGISTER = "ps_cluster/names made by leaders"
"""The only resource that all leaders of a server share: a list of "KIND NAME", string [k]."""
QUEUE, LOCK, VARIABLE = "queue", "lock", "variable"
QUEUE_CAPACITY = 2**31 - 1  # elements; an enqueue must never block, because it runs in a critical section
_TERM = re.compile(r"term-(\d+)-since-(\d+)-")


def new_leader_prefix(term: int = 0, since: int | None = None) -> str:
    """Return a new prefix for the names of resources. No other leader uses it.

    Args:
      term: the leader's term number (runs/leaders.py); 0 if the leader has none.
      since: the term number of the leader that began the training; None if this leader begins it.
    """
    return f"term-{term:06d}-since-{term if since is None else since:06d}-{uuid.uuid4().hex}"


def terms_of(name: str) -> tuple[int, int]:
    """Return the term number of the leader that created a resource, and that of the leader that began the training.

    Both are read from the resource's name. They are 0 if the name does not begin with a leader's prefix.
    """
    match = _TERM.match(name)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def note(kind: str, names: Sequence[str]) -> tf.Tensor:
    """Record names of resources of type `kind`, so that `free_leftovers` can free the resources later.

    The names are added to a list in the process of the current device. This works in a graph and eagerly. Returns a
    tensor on which later operations can depend.
    """
    register = _register()
    added = tf.constant([f"{kind} {name}" for name in names])
    is_there = tf.raw_ops.VarIsInitializedOp(resource=register)
    before = tf.cond(is_there, lambda: _read(register), lambda: tf.zeros([0], tf.string))
    entries = tf.concat([before, added], 0)
    return _assign(register, entries)


def free_leftovers(device: str, term: int) -> list[str]:
    """Free the named resources that leaders with a term number below `term` have left in the process of `device`.

    A queue is closed before it is freed. Returns the names of the resources.
    """
    with tf.device(device):
        register = _register()
        if not tf.raw_ops.VarIsInitializedOp(resource=register):
            return []
        entries = [entry.decode() for entry in _read(register).numpy()]
        kept, freed = [], []
        for entry in entries:
            kind, _, name = entry.partition(" ")
            if terms_of(name)[0] < term:
                _free(kind, name)
                freed.append(name)
            else:
                kept.append(entry)
        _assign(register, tf.constant(kept, tf.string, [len(kept)]))
    return freed


def queue_named(name: str) -> Any:
    """Return the queue with this name on the current device. It is created if there is none. Its elements are bool [].

    Outside of a graph, the public `tf.queue.FIFOQueue` replaces the name by a small number, so two leaders would share
    a queue.
    """
    handle = tf.raw_ops.FIFOQueueV2(component_types=[tf.bool], shapes=[[]], capacity=QUEUE_CAPACITY, shared_name=name)
    return tf.queue.QueueBase([tf.bool], [[]], None, handle)


def _free(kind: str, name: str) -> None:
    if kind == QUEUE:
        queue = queue_named(name)
        queue.close(cancel_pending_enqueues=True)
        handle = queue.queue_ref
    elif kind == LOCK:
        handle = tf.raw_ops.MutexV2(shared_name=name)
    else:
        handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[], shared_name=name)
    tf.raw_ops.DestroyResourceOp(resource=handle, ignore_lookup_error=True)


def _register() -> tf.Tensor:
    return tf.raw_ops.VarHandleOp(dtype=tf.string, shape=[None], shared_name=REGISTER)


def _read(register: tf.Tensor) -> tf.Tensor:
    return tf.ensure_shape(tf.raw_ops.ReadVariableOp(resource=register, dtype=tf.string), [None])


def _assign(register: tf.Tensor, entries: tf.Tensor) -> tf.Tensor:
    assigned = tf.raw_ops.AssignVariableOp(resource=register, value=entries)
    with tf.control_dependencies([] if assigned is None else [assigned]):
        return tf.size(entries)
