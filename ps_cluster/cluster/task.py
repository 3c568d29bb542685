"""The entry of every child process: `python -m ps_cluster.cluster.task --run-dir DIR --type worker --index 0`.

Exit codes: 0 the task is done · 1 it failed · 2 the user's input was bad · 98 its port is taken · 130, 143, 129 told
twice to stop, the second time by SIGINT, SIGTERM, SIGHUP.
The error is written to `RunDir.error(type, index)`.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import math
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

from ps_cluster.catalogue.imports import find
from ps_cluster.catalogue.task_types import EVALUATOR, Task
from ps_cluster.cluster import workspace
from ps_cluster.cluster.topology import ClusterTopology, from_tf_config
from ps_cluster.config import RunConfig, load_config
from ps_cluster.data.packed import PackedDataset, load_pointed
from ps_cluster.errors import RunFailed, UserError
from ps_cluster.files import locks
from ps_cluster.files.plain_text import one_line
from ps_cluster.files.writing import write_json
from ps_cluster.processes import environment
from ps_cluster.processes.lifeline import die_with_launcher
from ps_cluster.processes.quiet_import import without_first_lines
from ps_cluster.processes.stop_requests import stop_signals
from ps_cluster.run.rows.cluster import TaskError
from ps_cluster.run.run_dir import RunDir, say, say_the_rest

FAILED, BAD_INPUT, PORT_TAKEN = 1, 2, 98

# TensorFlow 2.21's only message for a taken port; ps, worker and chief raise the same UnknownError.
_NO_SERVER = "Could not start gRPC server"
_MESSAGE_CHARACTERS = 500


def main(arguments: list[str] | None = None, *, trainer: Callable[..., None] | None = None) -> NoReturn:
    """Do one task of a run.

    Args:
      arguments: of the command line; None: those of this process.
      trainer: what the task that leads does, in place of what its mode says (`Mode.trainer`).
    """
    die_with_launcher()
    parser = argparse.ArgumentParser(prog="python -m ps_cluster.cluster.task")
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--type", required=True)
    parser.add_argument("--index", type=int, required=True)
    parser.add_argument("--cores", help="Of this machine, that the task keeps to: numbers with commas.")
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args(arguments)
    if options.cores:
        os.sched_setaffinity(0, map(int, options.cores.split(",")))
    run_dir, task = RunDir(options.run_dir.resolve()), Task(options.type, options.index)

    def body() -> None:
        topology, member = from_tf_config(os.environ.get("TF_CONFIG"))
        config = load_config(run_dir.config)
        dataset = load_pointed(run_dir.dataset).holding_out(config.evaluation.validation_examples)
        run_task(config, run_dir, dataset, topology, member, resume=options.resume, index=task.index, trainer=trainer)

    leave(carry_out(body, run_dir, task))


def carry_out(body: Callable[[], None], run_dir: RunDir, task: Task) -> int:
    """Run `body`; return the exit code for `leave`."""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    try:
        body()
    except BaseException as error:
        return _record(error, run_dir, task)
    return 0


def leave(code: int) -> NoReturn:
    """End the process at once with this exit code."""
    say_the_rest()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    # TensorFlow's threads may keep the interpreter from ending for ever.
    os._exit(code)


def run_task(
    config: RunConfig,
    run_dir: RunDir,
    dataset: PackedDataset,
    topology: ClusterTopology,
    task: Task,
    *,
    resume: bool,
    index: int | None = None,
    stopped: Callable[[int], NoReturn] | None = None,
    trainer: Callable[..., None] | None = None,
) -> None:
    """Run the body of `task`. Only the leader and the evaluator ever return.

    Args:
      task: as TensorFlow names it.
      index: the task's index in the run, used in files and rows; None where it is the same.
      stopped: ends the process; called with the number of the signal that stops the task (for the leader, the second).
    """
    # The evaluator is left out of a TF_CONFIG that came from outside: TensorFlow would wait for its answer.
    os.environ.update(environment.for_tensorflow(os.environ), TF_CONFIG=topology.tf_config(task))
    drain = _drain_on_signal(stopped or _stop_at_once) if task == topology.leader else None
    if drain is None and stopped is not None:
        _hear_stop_signals(stopped)
    elif drain is None:
        # Python's own handler would wait for TensorFlow to return.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    locks.share(run_dir.alive)
    locks.share_folder(dataset.directory)  # a worker maps its files anew in every step
    named = task if index is None else Task(task.type, index)
    workspace.enter(run_dir, named, dataset, computes_gradients=topology.computes_gradients(task))
    if task.type == EVALUATOR:
        from ps_cluster.evaluation.evaluator import evaluate

        # The launcher limits the wait.
        evaluate(run_dir.checkpoints, patience_s=math.inf, notify=say, nice=True)
    elif task.type == topology.leader.type:
        with without_first_lines():
            train = trainer or find(config.mode_kind.trainer)
        train(config, run_dir, dataset, topology.cluster, task.index, resume=resume, drain=drain)
    else:
        from ps_cluster.cluster.server import serve

        serve(config, topology.cluster, task.type, task.index)


def _stop_at_once(number: int) -> NoReturn:
    os._exit(128 + number)


def _drain_on_signal(stopped: Callable[[int], NoReturn] = _stop_at_once) -> threading.Event:
    """Return an event that the first stop signal sets; the second one calls `stopped`."""
    drain = threading.Event()

    def hear(number: int) -> None:
        if drain.is_set():
            stopped(number)
        drain.set()

    _hear_stop_signals(hear)
    return drain


def _hear_stop_signals(hear: Callable[[int], None]) -> None:
    """Call `hear` with the number of each stop signal.

    A separate thread calls it, because Python runs signal handlers in the main thread, which may be inside TensorFlow.
    Blocking the signals for a `sigwait` does not work: numpy's threads already run and would take them.
    """
    heard, told = os.pipe()
    os.set_blocking(told, False)
    signal.set_wakeup_fd(told)
    numbers = stop_signals()
    for number in numbers:
        signal.signal(number, lambda *_: None)
        signal.siginterrupt(number, False)

    def listen() -> None:
        while True:
            if (number := os.read(heard, 1)[0]) in numbers:
                hear(number)

    threading.Thread(target=listen, name="signals", daemon=True).start()


def _record(error: BaseException, run_dir: RunDir, task: Task) -> int:
    """Write the error that ended the task; return its exit code."""
    bad_input, told_in_a_line = isinstance(error, UserError), isinstance(error, (UserError, RunFailed))
    lines = one_line(str(error))
    with contextlib.suppress(OSError):  # the disk may be full
        if told_in_a_line:
            print(f"Error: {lines}", file=sys.stderr)
        else:
            traceback.print_exception(error)
    message = lines if told_in_a_line else f"{type(error).__name__}: {lines}"[:_MESSAGE_CHARACTERS]
    content = TaskError(
        time=time.time(),
        type=task.type,
        index=task.index,
        pid=os.getpid(),
        message=message,
        traceback="".join(traceback.format_exception(error)),
        user_error=bad_input,
        final=told_in_a_line,
    )
    try:
        write_json(run_dir.error(task.type, task.index), content.model_dump())
    except OSError as full:
        say(f"the error could not be written down: {full}")
    if bad_input:
        return BAD_INPUT
    return PORT_TAKEN if is_taken_port(error) else FAILED


def is_taken_port(error: BaseException) -> bool:
    """Return whether a TensorFlow server failed because another program has its port."""
    return any(_NO_SERVER in str(cause) for cause in _causes(error))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


if __name__ == "__main__":
    main()
