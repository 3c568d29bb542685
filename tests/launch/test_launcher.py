"""The launcher against tasks that follow a script (tests/helpers/scripted_task.py) in place of TensorFlow.

They show that its actions happen to real processes. Its rules are tested in test_decisions.py. That it starts workers,
servers and the chief again, gives a worker up and drains, is shown with a real cluster in tests/end_to_end.
"""

import errno
import fcntl
import io
import json
import os
import signal
import subprocess
import sys
import termios
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from ps_cluster.config import build_config
from ps_cluster.config.tasks import Task
from ps_cluster.errors import RunFailed, UserError
from ps_cluster.files import locks
from ps_cluster.launch import fork_server_program, launcher
from ps_cluster.launch.launcher import run_local
from ps_cluster.launch.stages import RunLimits
from ps_cluster.launch.task import TASK_ARGV
from ps_cluster.report import summary
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.system.private_network import network_for
from ps_cluster.system.run_processes import life_of
from ps_cluster.system.stop_signals import StopRequests
from tests.helpers import processes, scripted_task
from tests.helpers.data import only_named

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).parents[2]
LIMITS = RunLimits(
    poll_interval_s=0.02,
    startup_s=20,
    standstill_s=20,
    drain_s=20,
    scoring_s=20,
    grace_s=1.0,
    port_attempts=3,
    restart_delays_s=(0.0, 0.01),
    frozen_s=0.3,
)


class FakeView:
    """Notes what it is told; `at_progress` is called once, with the first progress row."""

    def __init__(self, at_progress=lambda: None):
        self.notices, self.rows, self.scores, self.states = [], [], [], []
        self.closed = False
        self._at_progress = at_progress

    def start(self, config, run_dir, dataset, predicts):
        pass

    def notice(self, line):
        if not str(line).startswith("not isolated"):  # which depends on the machine
            self.notices.append(str(line))

    def tasks(self, tasks):
        self.states = tasks

    def progress(self, row):
        if not self.rows:
            self._at_progress()
        self.rows.append(row)

    def evaluation(self, row):
        self.scores.append(row)

    def close(self):
        self.closed = True


@pytest.fixture
def launch(tmp_path, capfd):
    """launch(view, chief="completes", …) → exit code; afterwards no process is left, whatever happened."""
    launch_root = tmp_path / "run"

    def call(
        view=None,
        *,
        limits=LIMITS,
        workers=2,
        evaluator="scores",
        resume=False,
        began=None,
        isolation="off",
        draws=False,
        task_argv=None,
        stop_requests=None,
        **behaviours,
    ) -> int:
        settings = {"cluster.evaluator": bool(evaluator), "data.dataset": "synthetic", "cluster.workers": workers}
        settings |= {"cluster.isolation": isolation, "evaluation.draw_results": draws, "model.precision": "float32"}
        config = build_config(None, settings)
        call.run_dir = RunDir.open(launch_root) if resume else RunDir.create(launch_root)
        dataset = only_named("synthetic", tmp_path, 100, 10)
        argv = (sys.executable, scripted_task.__file__, json.dumps({**behaviours, "evaluator": evaluator}))
        call.view = view or FakeView()
        given = {"resume": resume, "view": call.view, "began": began, "task_argv": task_argv or argv, "limits": limits}
        code = run_local(config, call.run_dir, dataset, stop_requests=stop_requests, **given)
        captured = capfd.readouterr()
        call.output, call.errors = captured.out, captured.err.splitlines()
        call.summary = json.loads(call.run_dir.summary.read_text())
        return code

    call.capfd = capfd
    before = signal.getsignal(signal.SIGINT)
    yield call
    assert signal.getsignal(signal.SIGINT) is before
    assert call.view.closed
    processes.assert_none_left(launch_root, within_s=0)


def interrupt(number=signal.SIGINT):
    os.kill(os.getpid(), number)


def test_run_completes_is_scored_and_is_summed_up_with_the_life_and_the_pid_of_every_process(launch):
    """Its seconds count from when the command began."""
    assert launch(began=time.monotonic() - 100) == 0
    assert launch.summary["outcome"] == "completed" and launch.errors == []
    assert launch.summary["evaluation"]["test_accuracy"] == 0.5 and launch.summary["machine"]["cores"] > 0
    assert 100 < launch.summary["startup_seconds"] < launch.summary["wall_seconds"] < 160
    assert [row.applied for row in launch.view.rows] == [0, 1, 2] and len(launch.view.scores) == 1
    (own,) = [process for process in launch.summary["processes"] if process["type"] == "launcher"]
    assert own["pid"] == os.getpid() and own["peak_pss_bytes"] > 0
    assert launch.summary["peak_memory_bytes"] > own["peak_pss_bytes"]
    written = json.loads(launch.run_dir.cluster.read_text())
    assert written["launcher"] == {"pid": os.getpid(), "life": life_of(os.getpid())}
    assert {row.life for row in launch.view.rows} == {written["launcher"]["life"]}
    assert [(t["type"], t["index"]) for t in written["tasks"]] == [
        ("chief", 0), ("ps", 0), ("worker", 0), ("worker", 1), ("evaluator", 0)
    ]  # fmt: skip
    addresses = [task["address"] for task in written["tasks"]]
    assert addresses[-1] is None and all(a.startswith("127.0.0.1:") for a in addresses[:-1])
    assert len({task["pid"] for task in written["tasks"]}) == 5


def test_the_results_are_drawn_when_the_table_is_printed_and_then_named(launch):
    assert launch(draws=True) == 0
    numbers, page, places = launch.output.partition(f" results        {launch.run_dir.results_page}")
    assert "did the work" in numbers and page and "score it" in places
    assert json.loads(launch.run_dir.results_numbers.read_text())["curves"]["test"][0]["test_accuracy"] == 0.5


def test_a_run_whose_results_can_not_be_drawn_has_not_failed(launch):
    in_the_way = FakeView(at_progress=lambda: launch.run_dir.results.write_text("a file"))
    assert launch(in_the_way, draws=True) == 0
    (notice,) = launch.view.notices
    assert "the results can't be drawn" in notice and f"runs show {launch.run_dir.root} --page" in notice
    assert launch.summary["outcome"] == "completed" and " results " not in launch.output


def test_a_run_without_an_evaluator_ends_with_the_chief_and_says_that_it_has_no_results(launch):
    assert launch(evaluator=None, draws=True) == 0
    tasks = json.loads(launch.run_dir.cluster.read_text())["tasks"]
    assert {task["type"] for task in tasks} == {"chief", "ps", "worker"}
    assert launch.view.notices == ["no results: no checkpoint was scored"] and not launch.run_dir.results.exists()


def test_a_ledger_that_is_not_exact_fails_a_run_that_completed(launch):
    assert launch(chief="completes_with_a_mistake") == 1
    assert launch.errors == [
        "Error: the proof of this run fails: shard 0: 3 gradients were accepted, but there are 2 rows (details: "
        f"{launch.run_dir.summary})"
    ]
    assert launch.summary["outcome"] == "failed" and not launch.summary["proof"]["holds"]


class ClosedTerminal:
    encoding = "utf-8"

    def write(self, text):
        raise OSError(errno.EIO, "Input/output error")

    def flush(self):
        self.write("")

    def isatty(self):
        return True

    def fileno(self):
        raise io.UnsupportedOperation  # so that the test keeps its own


@pytest.mark.parametrize(("chief", "code"), [("completes", 0), ("completes_with_a_mistake", 1)])
def test_a_terminal_that_is_closed_changes_no_exit_code(launch, monkeypatch, chief, code):
    monkeypatch.setattr(sys, "stdout", ClosedTerminal())
    monkeypatch.setattr(sys, "stderr", ClosedTerminal())
    assert launch(chief=chief) == code


def test_what_failed_first_is_told_though_the_summary_can_not_be_written(launch, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(summary, "write_summary", full)
    with pytest.raises(RunFailed, match="summary.json' can't be written: No space left on device"):
        launch(limits=replace(LIMITS, startup_s=0.3), chief="serves")
    told = launch.capfd.readouterr().err
    assert "training did not begin" in told
    assert "chief-0 running, ps-0 running, worker-0 running, worker-1 running, evaluator-0 running" in told


def test_a_second_stop_is_at_once_with_the_code_of_its_signal(launch):
    view = FakeView(interrupt)
    view.notice = lambda line: interrupt(signal.SIGTERM) if "Ctrl-C again" in str(line) else None
    assert launch(view, limits=replace(LIMITS, grace_s=60), chief="ignores_sigterm") == 128 + signal.SIGTERM
    assert launch.summary["outcome"] == "stopped" and launch.summary["wall_seconds"] < 30


def test_the_caller_learns_of_a_request_to_stop_that_came_too_late_to_change_the_run(launch):
    class View(FakeView):
        def close(self):
            super().close()
            interrupt()

    requests = StopRequests()
    assert launch(View(), stop_requests=requests) == 0 and launch.summary["outcome"] == "completed"
    assert requests.count == 1


def test_a_stop_is_heard_while_the_process_that_tasks_are_forked_from_begins(launch, monkeypatch):
    stops_and_waits = "import os, signal, time; os.kill(os.getppid(), signal.SIGTERM); time.sleep(60)"
    monkeypatch.setattr(fork_server_program, "ARGV", (sys.executable, "-c", stops_and_waits))
    began = time.monotonic()
    assert launch(task_argv=TASK_ARGV) == 128 + signal.SIGTERM
    assert time.monotonic() - began < 50, "it was waited for"
    assert launch.errors == ["Error: stopped at once, before training began"]
    assert launch.summary["outcome"] == "stopped"


def test_a_server_that_dies_every_time_is_given_up_with_its_first_cause_on_one_line(launch):
    assert launch(workers=1, chief="ignores_sigterm", worker="killed_while_training") == 1
    (line,) = launch.errors
    assert line.startswith("Error: worker-0 (pid ") and line.endswith("(given up after 5 restarts)")
    assert f"ended with SIGKILL, its last line: the last words (log: {launch.run_dir.log(Task('worker', 0))})" in line
    assert launch.summary["outcome"] == "failed" and launch.summary["restarts"]["worker-0"] == 5


def test_bad_input_found_by_a_task_is_the_users_error(launch):
    with pytest.raises(UserError, match="^no checkpoint to resume from$"):
        launch(chief="finds_bad_input")


def test_taken_port_starts_the_cluster_again_on_other_ports(launch):
    assert launch(worker="finds_its_port_taken_once", chief="connects_second_time", workers=1) == 0
    assert "took the port of worker-0" in launch.view.notices[0]


def test_training_that_stands_still_is_ended_and_started_again(launch):
    launch(
        limits=replace(LIMITS, standstill_s=1.0), chief="completes_second_time"
    )  # a busy machine may stand still again
    assert (
        "training stands still" in launch.view.notices[0] and "stack traces are in the logs" in launch.view.notices[0]
    )
    assert "chief-0" in launch.view.notices[1] and launch.summary["restarts"]["worker-1"] >= 1


def test_summary_counts_what_every_process_took(launch):
    assert launch(worker="killed_once", chief="completes_after_restart_of_a_worker", workers=1) == 0
    rows = launch.summary["processes"]
    assert sorted((row["type"], row["index"]) for row in rows) == [
        ("chief", 0), ("evaluator", 0), ("launcher", 0), ("ps", 0), ("worker", 0), ("worker", 0)
    ]  # fmt: skip
    assert len({row["pid"] for row in rows}) == 6
    # A worker that lives shortly may be looked at only as it starts, when the kernel has counted no tick of it yet.
    assert all(row["cpu_seconds"] >= 0 if row["type"] == "worker" else row["cpu_seconds"] > 0 for row in rows)
    training = [row["cpu_seconds"] for row in rows if row["type"] not in ("evaluator", "launcher")]
    assert launch.summary["cpu_seconds"] == pytest.approx(sum(training))
    peaks = [row["peak_pss_bytes"] or 0 for row in rows]
    assert max(peaks) <= launch.summary["peak_memory_bytes"] <= sum(peaks)


REFUSES = (sys.executable, "-c", "import sys; sys.exit('private network: unshare: Operation not permitted')")


def test_an_open_network_is_told_first_last_and_in_the_summary_in_the_same_words(launch, monkeypatch):
    class EveryNotice(FakeView):
        def notice(self, line):
            self.notices.append(str(line))

    monkeypatch.setattr(launcher, "network_for", partial(network_for, namespace_argv=REFUSES))
    assert launch(EveryNotice(), isolation="auto") == 0
    first = launch.view.notices[0]
    assert first.startswith("not isolated") and "Operation not permitted" in first
    assert "whoever reaches them can run code as you" in first
    assert launch.summary["network"] == {"private": False, "notice": first}
    assert "".join(first.split()) in "".join(launch.output.split())


def test_resume_passes_over_what_the_run_wrote_before(launch):
    assert launch() == 0
    assert launch(resume=True) == 0
    assert len(launch.view.rows) == 3 and len(launch.view.scores) == 1


LAUNCHER = """
import sys
from pathlib import Path
from ps_cluster.launch.launcher import run_local
from ps_cluster.config import build_config
from ps_cluster.files.locks import sole_use
from ps_cluster.report.progress import make_view
from ps_cluster.process_variables import LIFE
from ps_cluster.runs.run_dir import RunDir
from tests.helpers.data import only_named
root = Path(sys.argv[1])
with sole_use(root, "run directory", print):
    sys.exit(run_local(
        build_config(None, {"data.dataset": "synthetic", "model.precision": "float32"}), RunDir.create(root),
        only_named("synthetic", root, 1, 1), resume=False, view=make_view(),
        task_argv=(sys.executable, sys.argv[2], sys.argv[3]),
    ))
"""


def start_launcher(root, chief, **options):
    """A launcher in a process of its own whose run trains already."""
    environment = os.environ | {"PYTHONPATH": str(PROJECT)}
    argv = [sys.executable, "-c", LAUNCHER, str(root), scripted_task.__file__, json.dumps({"chief": chief})]
    process = subprocess.Popen(argv, env=environment, **options)
    processes.wait_until((root / "metrics/progress.jsonl").exists)
    return process


def own_the_terminal():
    """What a login shell does: this process leads a session whose terminal is its standard input."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def test_closing_the_terminal_drains_the_run(tmp_path):
    ours, theirs = os.openpty()
    on_terminal = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
    process = start_launcher(tmp_path / "run", "trains_until_drained", preexec_fn=own_the_terminal, **on_terminal)
    os.close(theirs)
    os.close(ours)
    assert process.wait(timeout=30) == 0
    assert json.loads((tmp_path / "run/summary.json").read_text())["outcome"] == "stopped"
    processes.assert_none_left(tmp_path / "run", within_s=0)


def test_killed_launcher_leaves_no_process_behind(tmp_path):
    process = start_launcher(tmp_path / "run", "ignores_sigterm", stdout=subprocess.DEVNULL)
    processes.wait_until(lambda: len(processes.of_run(tmp_path / "run")) == 7)
    process.kill()
    process.wait()
    with locks.sole_use(tmp_path / "run", "run directory", pytest.fail):
        processes.assert_none_left(tmp_path / "run")
