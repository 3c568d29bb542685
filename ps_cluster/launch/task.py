"""Run the process of a task: `python -m ps_cluster.launch.task --run-dir DIR --type worker --index 0`.

The exit code of the process is one of those in errors.py, or that of the second signal if it was asked to stop twice.
If the task fails, the error is written to `RunDir.error(task)`.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from ps_cluster.config import RunConfig, load_config
from ps_cluster.config.tasks import CHIEF, EVALUATOR, Task
from ps_cluster.data.packed import PackedDataset, load_pointed
from ps_cluster.errors import (
    BAD_INPUT,
    FAILED,
    PORT_IN_USE,
    RETRY,
    SUPERSEDED,
    FailedComputation,
    LostTask,
    RunFailed,
    TemporaryFailure,
    UserError,
)
from ps_cluster.files import locks, writing
from ps_cluster.files.values import one_line
from ps_cluster.files.writing import set_fence, write_json
from ps_cluster.launch.cluster_files import from_tf_config
from ps_cluster.launch.gpu_choice import is_on_gpus
from ps_cluster.launch.serving import serve
from ps_cluster.launch.task_arguments import TaskArguments
from ps_cluster.launch.task_failures import MESSAGE_CHARACTERS, as_failure, as_loss, is_taken_port
from ps_cluster.launch.topology import ClusterTopology
from ps_cluster.launch.workspace import enter
from ps_cluster.models.failures import reason_of
from ps_cluster.notices import ignore
from ps_cluster.process_variables import LIFE, TF_CONFIG, set_log_task, set_tf_config
from ps_cluster.quiet_import import import_tensorflow
from ps_cluster.runs import logs
from ps_cluster.runs.leaders import Claim, LeaderStart, Superseded, claim
from ps_cluster.runs.logs import ERROR, ERROR_PREFIX
from ps_cluster.runs.rows import TaskError
from ps_cluster.runs.run_dir import RunDir, log_line, log_pending_lines
from ps_cluster.system import environment
from ps_cluster.system.connections import give_up_lost_connections
from ps_cluster.system.lifetime import die_with_launcher
from ps_cluster.system.port_guard import guard_port
from ps_cluster.system.stop_signals import Drain, stop_signals
from ps_cluster.system.usage import return_large_blocks
from ps_cluster.training.devices import check_gpus
from ps_cluster.training.job import TrainingJob

TASK_ARGV = (sys.executable, "-m", __name__)
"""The command that runs one task. Only modules that import this module may use it.

In the process of a task, this module is `__main__`, so this command would not name it.
"""


def main(words: list[str] | None = None, *, trainer: Callable[[TrainingJob], None] | None = None) -> NoReturn:
    """Carry out one task of a run, and then end the process.

    Args:
      words: the command-line arguments, or None for those of this process.
      trainer: called instead of `Mode.train`, in each task that would call it: a chief, or a worker of a cluster
        without a chief.
    """
    die_with_launcher()
    arguments = TaskArguments.parse(words)
    if arguments.cores:
        os.sched_setaffinity(0, arguments.cores)
    run_dir, task, alone = RunDir(Path(os.path.realpath(arguments.run_dir))), arguments.task, arguments.alone
    set_log_task(str(task))
    if task.type in (CHIEF, EVALUATOR):
        return_large_blocks()

    def body() -> None:
        topology, _ = from_tf_config(os.environ.get(TF_CONFIG))
        files = run_dir.of_task(task) if alone else run_dir
        config = load_config(files.config)
        dataset = load_pointed(files.dataset).holding_out(config.evaluation.validation_examples)
        term = arguments.term
        if not term and task == topology.leader:  # without a launcher the command has made the claim
            term = claim(run_dir).term
        leading = LeaderStart(
            alone=alone,
            term=term,
            least_workers=arguments.least_workers,
            lost_after_s=config.cluster.lost_after_seconds,
            wait_s=arguments.wait_s,
            life=os.environ.get(LIFE),
        )
        if term:
            set_fence(Claim(run_dir.leaders, term).check)
        if alone:
            give_up_lost_connections(config.cluster.lost_after_seconds)
            # The command `task` has done this too. If the command is killed, this process lives a moment longer.
            guard_port(config.cluster.isolation, topology.port(task), topology.addresses, notify=ignore)
        run_task(config, run_dir, dataset, topology, task, resume=arguments.resume, leading=leading, trainer=trainer)

    leave(carry_out(body, run_dir, task, alone=alone))


def carry_out(body: Callable[[], None], run_dir: RunDir, task: Task, *, alone: bool = False) -> int:
    """Run `body`, record its error, and return the exit code for `leave`.

    A task without a launcher (`alone`) has to find out itself whether its error is due to the loss of another task.
    """
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    try:
        body()
    except BaseException as error:
        return _record(_superseded() or (as_loss(error) if alone else as_failure(error)), run_dir, task)
    return 0


def _superseded() -> Superseded | None:
    """Return the error if a newer leader has replaced this leader, which must not write any more; else None.

    A newer leader closes the queues at which graphs of this leader wait, so the graphs fail with errors of TensorFlow.
    """
    try:
        writing.check_fence()
    except Superseded as error:
        return error
    except OSError:  # a shared folder that can't be read just now
        pass
    return None


def leave(code: int) -> NoReturn:
    """End the process at once with this exit code."""
    log_pending_lines()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    # Threads of TensorFlow could prevent the interpreter from ever ending.
    os._exit(code)


def run_task(
    config: RunConfig,
    run_dir: RunDir,
    dataset: PackedDataset,
    topology: ClusterTopology,
    task: Task,
    *,
    resume: bool,
    leading: LeaderStart = LeaderStart(),
    trainer: Callable[[TrainingJob], None] | None = None,
) -> None:
    """Run the work of `task` in this process.

    With a launcher, this returns only in a chief, in the evaluator, and in a worker of a cluster without a chief. Other
    tasks serve until they are killed.
    """
    on_gpus = is_on_gpus(config, topology, task)
    own = environment.bypassing_proxies(environment.for_tensorflow(os.environ, on_gpus=on_gpus), topology.hosts)
    os.environ.update(own)
    # The evaluator is left out of a TF_CONFIG that came from outside: TensorFlow would wait for its answer.
    set_tf_config(topology.tf_config(task))
    if task == topology.leader:
        drain = _drain_on_signal(kept=leading.alone)
    else:
        drain = Drain()  # only the leader is ever asked to drain
        # Python's own handler would wait for TensorFlow to return.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    locks.share(run_dir.alive)
    locks.share(dataset.directory)  # a worker maps its files anew in every step
    enter(run_dir, task, config, dataset, computes_gradients=topology.computes_gradients(task))
    if on_gpus:
        import_tensorflow()
        check_gpus(os.environ)
    if task.type == EVALUATOR:
        import_tensorflow()
        from ps_cluster.evaluation.evaluator import OutOfPatience, evaluate  # no other task needs its imports

        try:
            evaluate(run_dir.checkpoints, patience_s=leading.wait_s, notify=log_line, nice=True)
        except OutOfPatience as error:
            raise LostTask(str(error)) from error
    elif task.type == topology.leader.type:
        import_tensorflow()
        train = trainer or config.chosen_mode.train
        train(TrainingJob(config, run_dir, dataset, topology.cluster, task.index, resume, drain, leading))
    else:
        workspace = run_dir.workspace(task) if leading.alone else None
        serve(config, topology, task, workspace=workspace)


def _drain_on_signal(*, kept: bool) -> Drain:
    """Return an event that the first stop signal sets. The second one ends this process, unless `kept` is True.

    With `kept`, only the parent process decides when to end this process.

    A separate thread reads the signals, because Python runs signal handlers in the main thread, which may be inside
    TensorFlow. Blocking the signals for a `sigwait` does not work, because a thread that a library has started earlier
    would take them.
    """
    drain = Drain()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    numbers = stop_signals()
    for number in numbers:
        signal.signal(number, lambda *_: None)
        signal.siginterrupt(number, False)

    def listen() -> None:
        while True:
            if (number := os.read(reader, 1)[0]) not in numbers:
                continue
            if not drain.is_set():
                drain.ask(number)
            elif not kept:
                os._exit(128 + number)

    threading.Thread(target=listen, name="signals", daemon=True).start()
    return drain


def _record(error: BaseException, run_dir: RunDir, task: Task) -> int:
    """Write the error that ended the task, and return the exit code of the task."""
    bad_input, is_one_line = isinstance(error, UserError), isinstance(error, (UserError, RunFailed))
    lines = one_line(str(error)) if is_one_line else reason_of(error)
    with contextlib.suppress(OSError):  # the disk may be full
        if is_one_line:
            print(logs.chosen().line(ERROR(lines), ERROR_PREFIX), file=sys.stderr)
        else:
            print(logs.chosen().failure(error), file=sys.stderr)
    if isinstance(error, Superseded):  # the files now belong to the newer leader
        return SUPERSEDED
    message = lines if is_one_line else f"{type(error).__name__}: {lines}"[:MESSAGE_CHARACTERS]
    content = TaskError(
        time=time.time(),
        type=task.type,
        index=task.index,
        pid=os.getpid(),
        message=message,
        traceback="".join(traceback.format_exception(error)),
        user_error=bad_input,
        final=is_one_line,
        computation=isinstance(error, FailedComputation),
    )
    try:
        write_json(run_dir.error(task), content.model_dump())
    except OSError as full:
        log_line(f"the error could not be written down: {full}")
    if bad_input:
        return BAD_INPUT
    if isinstance(error, TemporaryFailure):
        return RETRY
    return PORT_IN_USE if is_taken_port(error) else FAILED


if __name__ == "__main__":
    main()
