"""The child entry: how a task ends, and what TensorFlow does when a port is taken."""

import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ps_cluster.config import build_config
from ps_cluster.config.modes import MODES
from ps_cluster.config.tasks import Task
from ps_cluster.errors import BAD_INPUT, FAILED, RETRY, SUPERSEDED, LostTask, RunFailed, UserError
from ps_cluster.files.writing import write_json
from ps_cluster.launch import task
from ps_cluster.launch.topology import ClusterTopology
from ps_cluster.runs.checkpoints import StatesUnreadable
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.system.lifetime import die_with_parent
from tests.helpers import processes
from tests.helpers.data import pack_images

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).parents[2]

# A body in place of training or serving, inside the real frame of a task.
FRAMED = """
import os, signal, sys, threading, time
from pathlib import Path
from ps_cluster.launch import task
from ps_cluster.config.tasks import Task
from ps_cluster.runs.run_dir import RunDir
from tests.helpers.data import only_named
def body():
{body}
task.leave(task.carry_out(body, RunDir(Path(sys.argv[1])), Task("chief", 0)))
"""


@pytest.fixture
def run_dir(tmp_path):
    run_dir = RunDir.create(tmp_path / "run")
    yield run_dir
    processes.assert_none_left(run_dir.root, within_s=0)


@pytest.fixture
def framed(run_dir):
    """framed(body) → the started process of a task whose work is the code `body`."""
    with contextlib.ExitStack() as stack:

        def start(body: str) -> subprocess.Popen:
            code = FRAMED.format(body="\n".join(f"    {line}" for line in body.splitlines()))
            argv, pipe = [sys.executable, "-c", code, str(run_dir.root)], subprocess.PIPE
            process = stack.enter_context(
                subprocess.Popen(argv, cwd=PROJECT, stdout=pipe, stderr=subprocess.STDOUT, text=True)
            )
            stack.callback(process.kill)
            return process

        yield start


def of_network():
    error = ValueError("indices [[{{node own_computation/words/Gather}}]]")
    error.error_code = 3
    return error


@pytest.mark.parametrize(
    ("error", "exit_code", "message"),
    [
        (ValueError("no\n  good"), 1, "ValueError: no good"),
        (UserError("no checkpoint"), 2, "no checkpoint"),
        (RunFailed("no room"), 1, "no room"),
        (of_network(), 2, "the network's own computation failed (in 'words'): indices"),
        (RuntimeError("Could not start gRPC server"), 98, "RuntimeError: Could not start gRPC server"),
    ],
)
def test_what_ended_a_task_is_written_down(run_dir, capfd, error, exit_code, message):
    def body():
        raise error

    assert task.carry_out(body, run_dir, Task("chief", 0)) == exit_code
    in_a_line = exit_code == 2 or message == "no room"
    assert ("Traceback" in "".join(capfd.readouterr())) is not in_a_line
    written = json.loads(run_dir.error(Task("chief", 0)).read_text())
    assert (written["type"], written["index"], written["pid"]) == ("chief", 0, os.getpid())
    assert written["message"] == message and "Traceback" in written["traceback"]
    assert written["user_error"] is (exit_code == 2) and written["final"] is in_a_line
    assert written["computation"] is message.startswith("the network's own computation")


def test_a_leader_whose_work_a_newer_one_has_ended_says_that_and_writes_nothing(framed, run_dir):
    claims = """from ps_cluster.files.writing import set_fence
from ps_cluster.runs.leaders import claim
set_fence(claim(RunDir(Path(sys.argv[1]))).check)
claim(RunDir(Path(sys.argv[1])))
raise RuntimeError('the queue is gone')"""
    process = framed(claims)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == SUPERSEDED and "a newer leader (term 2) has taken over" in output
    assert "the queue is gone" not in output and not run_dir.error(Task("chief", 0)).exists()


# Sorting keeps the main thread outside the interpreter, as TensorFlow does, so that no Python handler can run.
BUSY = """drain = task._drain_on_signal(kept=False)
threading.Thread(target=lambda: (drain.wait(), print('draining', flush=True)), daemon=True).start()
print('up', flush=True)
__import__('numpy').sort(__import__('numpy').random.rand(4_000_000))
time.sleep({then_s})
print('ended')"""


# The first SIGTERM is in the test after this one.
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_first_stop_signal_asks_the_chief_to_drain_even_while_its_main_thread_is_busy(framed, number):
    process = framed(BUSY.format(then_s=0))
    assert process.stdout.readline() == "up\n"
    process.send_signal(number)
    assert process.communicate(timeout=30)[0] == "draining\nended\n" and process.returncode == 0


def test_second_stop_signal_ends_the_chief_at_once_with_the_code_of_that_signal(framed):
    process = framed(BUSY.format(then_s=60))
    assert process.stdout.readline() == "up\n"
    process.terminate()
    assert process.stdout.readline() == "draining\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=20) == 128 + signal.SIGINT


def test_sighup_that_is_ignored_stays_so(framed):
    """As under `nohup`."""
    process = framed(f"signal.signal(signal.SIGHUP, signal.SIG_IGN)\n{BUSY.format(then_s=0)}")
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGHUP)
    assert process.communicate(timeout=30)[0] == "ended\n" and process.returncode == 0


def test_sigusr1_dumps_the_stacks_and_the_task_goes_on(framed):
    process = framed("print('up', flush=True); time.sleep(0.5); print('still here')")
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGUSR1)
    output, _ = process.communicate(timeout=20)
    assert "most recent call first" in output and "still here" in output and process.returncode == 0


@pytest.mark.cluster
def test_taken_port_is_exit_code_98_for_a_server_and_the_chief(run_dir, tmp_path):
    images, labels = np.zeros([20, 32, 32, 3], np.uint8), np.zeros([20], np.uint8)
    dataset = pack_images(tmp_path / "data", "synthetic", tuple("abcdefghij"), (images, labels, images, labels))
    write_json(run_dir.dataset, {"directory": str(dataset.directory)})
    settings = {"data.dataset": "synthetic", "model.precision": "float32", "model.name": "mlp"}
    run_dir.config.write_text(build_config(None, settings).to_yaml())
    with contextlib.ExitStack() as stack:

        def taken_port() -> int:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            return listener.getsockname()[1]

        topology = ClusterTopology.local(MODES["async"].cluster.types, 1, 1, evaluator=False, pick_port=taken_port)
        tasks = [one for one in topology.tasks if one.type != "worker"]  # whose server is as that of a ps
        started = [_start(run_dir, topology, one) for one in tasks]
        for process in started:
            stack.callback(process.kill)
        assert [process.wait(timeout=200) for process in started] == [98, 98]
    for one in tasks:
        message = json.loads(run_dir.error(one).read_text())["message"]
        assert ("already in use" if one.type == "chief" else "Could not start gRPC server") in message


def _start(run_dir: RunDir, topology: ClusterTopology, which: Task) -> subprocess.Popen:
    argv = [sys.executable, "-m", "ps_cluster.launch.task", "--run-dir", str(run_dir.root)]
    with run_dir.log(which).open("wb") as log:
        return subprocess.Popen(
            [*argv, "--type", which.type, "--index", str(which.index)],
            cwd=PROJECT, env=os.environ | {"TF_CONFIG": topology.tf_config(which)}, stdout=log, stderr=log,
            preexec_fn=die_with_parent,  # nothing else would end it where the tests are killed
        )  # fmt: skip


# The real `run_task` of every task given, in forks of one process that take turns. A line that says what they would have
# found takes the place of training and serving.
DISPATCHED = """
import json, os, signal, struct, sys, types
from pathlib import Path
from ps_cluster.config import build_config
from ps_cluster.config.modes import MODES
from ps_cluster.config.tasks import Task
from ps_cluster.launch import task
from ps_cluster.launch.topology import ClusterTopology
from ps_cluster.runs.run_dir import RunDir
from tests.helpers.data import only_named
def stand_in(by):
    def told(job, *arguments, **_):
        found = {
            "by": by,
            "given": [each for one in arguments if isinstance(one, Task) for each in (one.type, one.index)] or [job.index],
            "dies_of_sigterm": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,
            "files": sorted(os.listdir()),
            "cluster": list(json.loads(os.environ["TF_CONFIG"])["cluster"]),
            "checked": len(checked),
        }
        if os.path.exists("identity"):
            index, pid = struct.unpack("<2q", open("identity", "rb").read())
            found["identity"] = index if pid == os.getpid() else "of another process"
        print(json.dumps(found), flush=True)
    return told
for by in ("chief", "all_reduce"):
    module = sys.modules[f"ps_cluster.training.{by}"] = types.ModuleType(by)
    module.train = stand_in(by)
task.serve = stand_in("server")
task.import_tensorflow = lambda: None  # nothing here uses it
checked = []
task.check_gpus = checked.append
dataset = only_named("synthetic", Path("/data"), 100, 10)
def body(root, mode, kind, index):
    topology = ClusterTopology.local(MODES[mode].cluster.types, 2, 1, evaluator=True)
    config = build_config(None, {"mode.name": mode, "model.precision": "float32", "cluster.gpus": "auto"})
    task.run_task(config, RunDir(Path(root)), dataset, topology, Task(kind, index), resume=False)
for root, mode, kind, index in json.loads(sys.argv[1]):
    if child := os.fork():
        assert os.waitpid(child, 0)[1] == 0
    else:
        task.leave(task.carry_out(lambda: body(root, mode, kind, index), RunDir(Path(root)), Task(kind, index)))"""

DATA = ["agreement.json", "identity", "train_image.uint8", "train_target.uint8"]
IN_ITS_MODE = [  # mode, task; what is called with which arguments, whether it leads, and as which worker it computes
    (("async", "chief", 0), ("chief", [0], True, None)),
    (("async", "ps", 0), ("server", ["ps", 0], False, None)),
    (("async", "worker", 1), ("server", ["worker", 1], False, 1)),
    (("sync", "worker", 0), ("all_reduce", [0], True, 0)),
    (("sync", "worker", 1), ("all_reduce", [1], False, 1)),
    (("single", "chief", 0), ("chief", [0], True, 0)),
]


def test_a_task_does_what_it_is_there_for_in_its_mode(tmp_path):
    roots = [RunDir.create(tmp_path / str(number)).root for number in range(len(IN_ITS_MODE))]
    asked = json.dumps([[str(root), *which] for root, (which, _) in zip(roots, IN_ITS_MODE, strict=True)])
    argv = [sys.executable, "-c", DISPATCHED, asked]
    env = os.environ | {"CUDA_VISIBLE_DEVICES": "0"}
    ended = subprocess.run(argv, cwd=PROJECT, env=env, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    for line, (which, (by, given, leads, identity)) in zip(ended.stdout.splitlines(), IN_ITS_MODE, strict=True):
        found = json.loads(line)
        assert (found["by"], found["given"]) == (by, given), which
        assert found["dies_of_sigterm"] is not leads, "only the leader is asked to drain"
        assert found["files"] == (DATA[:1] if identity is None else DATA), which
        assert found.get("identity") == identity, which
        assert found["checked"] == (identity is not None), "TensorFlow has to see the GPU of who computes gradients"
        assert found["cluster"] == {"sync": ["worker"], "single": ["chief"]}.get(which[0], ["chief", "ps", "worker"])


@pytest.mark.parametrize(
    ("kind", "number", "code"),
    [
        (UserError, errno.ESTALE, RETRY),
        (UserError, errno.EIO, RETRY),
        (UserError, errno.EACCES, BAD_INPUT),
        (UserError, errno.EROFS, BAD_INPUT),
        (StatesUnreadable, errno.ESTALE, RETRY),
        (StatesUnreadable, errno.EACCES, FAILED),
        (OSError, errno.ESTALE, RETRY),
        (OSError, errno.EACCES, FAILED),
    ],
)
def test_a_task_whose_shared_folder_is_away_for_a_moment_is_to_be_started_again(run_dir, capfd, kind, number, code):
    def body():
        try:
            raise OSError(number, os.strerror(number))
        except OSError as refused:
            if kind is OSError:
                raise
            raise kind("'ended.json' can't be read") from refused

    assert task.carry_out(body, run_dir, Task("evaluator", 0), alone=True) == code
    assert ("run the same command again" in capfd.readouterr().err) == (code == RETRY)


class Unavailable(Exception):
    """Such an error as TensorFlow raises when a worker of an all-reduce was lost."""

    error_code = 14


def test_a_lost_task_is_told_with_the_reason_and_without_the_stack_of_the_graph():
    lost = task.as_loss(
        Unavailable(
            "Graph execution error:\n\nDetected at node CollectiveReduceV2 defined at (most recent call last):\n"
            '  File "task.py", line 1, in main\n\n  File "trainer.py", line 2, in train\n\n'
            "recvmsg:Connection reset by peer while calling /job:worker/replica:0/task:1"
        )
    )
    assert isinstance(lost, LostTask) and str(lost).startswith("worker-1 was lost; start this task again")
    assert str(lost).endswith("(recvmsg:Connection reset by peer while calling /job:worker/replica:0/task:1)")
