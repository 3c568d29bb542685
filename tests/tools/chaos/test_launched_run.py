"""Runs that a launcher watches, and that end before they train."""

import os
import subprocess
import sys

from ps_cluster.tools.chaos import launched_run
from ps_cluster.tools.chaos.launched_run import OF_RUN, LaunchedRun
from tests.helpers.processes import wait_until


def test_the_run_is_of_this_package_whatever_is_in_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "ps_cluster").mkdir()
    (tmp_path / "ps_cluster" / "__init__.py").write_text("raise SystemExit('another one')")
    monkeypatch.chdir(tmp_path)
    run = LaunchedRun(tmp_path / "run", tmp_path / "output", ("--workers", "0"), tools=tmp_path)
    try:
        wait_until(lambda: run.exit_code is not None)
    finally:
        run.stop()
    assert run.exit_code == 2 and "--workers" in run.last_line


def test_a_process_of_the_run_is_left_behind_and_a_shell_that_somebody_opened_in_its_folder_is_not(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(launched_run, "GONE_S", 0.0)
    run = LaunchedRun(tmp_path / "run", tmp_path / "output", ["--workers", "none"], tools=tmp_path)
    wait_until(lambda: run.exit_code is not None)
    (folder := run.files.root / "logs").mkdir(parents=True)
    command = [sys.executable, "-S", "-c", "import time; print(flush=True); time.sleep(60)"]
    titled = f"import setproctitle; setproctitle.setproctitle('a task of --run-dir {run.files.root}'); {command[-1]}"
    own, others = dict(os.environ) | {OF_RUN: str(run.files.root)}, dict(os.environ) | {OF_RUN: str(tmp_path)}
    started = [
        subprocess.Popen([*command, str(run.files.root)], cwd=folder, env=env, stdout=subprocess.PIPE)
        for env in (own, others, None)
    ]
    started.append(subprocess.Popen([sys.executable, "-c", titled], cwd=folder, env=own, stdout=subprocess.PIPE))
    try:
        for process in started:
            process.stdout.readline()  # it has its environment
        assert sorted(run.left_behind()) == sorted(f"pid {started[index].pid}" for index in (0, 3))
    finally:
        for process in started:
            process.kill()
            process.communicate()
