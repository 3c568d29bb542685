"""The commands `runs`, `runs page`, `runs show` and `runs rm`. They train nothing and run no code of a run."""

import fcntl
import json
import os
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner

from ps_cluster.cli.main import main
from ps_cluster.files import locks
from ps_cluster.files.json_rows import append_row
from ps_cluster.report.run_list import age
from ps_cluster.runs.run_dir import RunDir
from tests.helpers.bad_input import assert_one_line
from tests.helpers.fake_runs import Fake, write_run
from tests.helpers.real_cluster import PROJECT
from tests.helpers.rows import progress_row


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Return a folder runs/ with three runs: one has completed, one has failed, and one was killed."""
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "runs/good", Fake({"mode.name": "async"}))
    write_run(tmp_path / "runs/bad", Fake({"mode.name": "sync"}, outcome="failed"))
    killed = RunDir(write_run(tmp_path / "runs/killed", Fake({"mode.name": "single"})))
    killed.summary.unlink()
    for number, name in enumerate(("killed", "bad", "good")):  # the newest is last
        os.utime(tmp_path / "runs" / name / "config.yaml", (1000 + number, 1000 + number))
    (tmp_path / "runs/no-run").mkdir()
    return tmp_path / "runs"


def run(*arguments: str, **options):
    return CliRunner().invoke(main, ["runs", *arguments], **options)


def listed(*arguments: str) -> dict:
    return json.loads(run("--json", "-", *arguments).stdout)


def test_the_newest_run_comes_first_with_its_state_and_score():
    rows = listed()["runs"]
    assert [(os.path.basename(row["root"]), row["state"], row["mode"]) for row in rows] == [
        ("good", "completed", "async"), ("bad", "failed", "sync"), ("killed", "unknown", "single"),
    ]  # fmt: skip
    assert rows[2]["test_accuracy"] == 0.6 and rows[2]["step"] == 2, "from its rows"


def test_a_run_in_which_a_command_works_is_running_with_its_progress(folder):
    append_row(RunDir(folder / "good").progress, progress_row(20, total=80))
    with locks.sole_use(folder / "good", "run directory", print):
        assert "running 25%" in run().stdout
        assert listed()["runs"][0]["state"] == "running"
        shown = run("show", "runs/good")
        assert shown.exit_code == 0 and "running 25%" in shown.stdout
    assert listed()["runs"][0]["state"] == "completed"


def test_a_damaged_run_is_passed_over_with_a_notice(folder):
    (folder / "bad/summary.json").write_text("{")
    (folder / "killed/config.yaml").write_text("a: [")
    told = run()
    assert told.exit_code == 0 and "good" in told.stdout and "bad" not in told.stdout
    assert told.stderr.count("passed over: ") == 2 and "bad/summary.json" in told.stderr


@pytest.mark.parametrize("width", ["60", "80", "160"])
def test_the_list_fits_the_terminal(width):
    lines = run(env={"COLUMNS": width}).stdout.splitlines()
    assert len(lines) >= 4 and max(map(len, lines)) <= int(width)


def test_in_a_pipe_no_name_is_broken(folder, monkeypatch):
    name = "20261127-183757-async-a_network_with_a_long_name-and-a-data-set-with-one-too"
    (folder / "good").rename(folder / name)
    monkeypatch.delenv("COLUMNS", raising=False)
    assert name in run().stdout.split()


def test_without_a_folder_there_are_no_runs_but_a_folder_that_is_named_has_to_be_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path / "runs/no-run")
    told = run()
    assert told.exit_code == 0 and "there are no runs in 'runs'" in told.stdout
    nowhere = run("nowhere")
    assert_one_line(nowhere.exit_code, nowhere.stderr, ["FOLDER", "nowhere"])


def test_a_run_is_not_listed_but_its_command_is_named():
    told = run("runs/good")
    assert_one_line(told.exit_code, told.stderr, ["FOLDER", "runs show runs/good"])


def test_show_prints_the_closing_table_again():
    told = run("show", "runs/good")
    assert told.exit_code == 0 and "60.00% at step 2" in told.stdout and "run directory" in told.stdout
    assert "was killed" in run("show", "runs/killed").stdout


def test_show_with_page_draws_the_results_and_says_where_they_are(folder):
    told = run("show", "runs/good", "--page")
    page = folder / "good/results/results.html"
    assert told.exit_code == 0 and str(page) in told.stdout and "completed" in told.stdout
    assert "Accuracy over time" in page.read_text() and "No predictions" in page.read_text()


def test_the_page_of_all_runs_is_written_once_when_none_trains(folder):
    told = run("page")
    page = (folder.parent / "runs.html").read_text()
    assert (told.exit_code, told.stdout) == (0, "written: runs.html\n")
    assert all(f">{name}</span>" in page for name in ("good", "bad", "killed")) and 'http-equiv="refresh"' not in page


def test_without_runs_no_page_is_written(folder):
    told = run("page", "runs/no-run", "--output", "empty.html")
    assert (told.exit_code, told.stdout) == (0, "there are no runs in 'runs/no-run'\n")
    assert not (folder.parent / "empty.html").exists()


def test_the_page_is_kept_up_while_a_run_trains_until_ctrl_c_and_then_refreshes_itself_no_more(folder):
    page = folder.parent / "runs.html"
    with locks.sole_use(folder / "good", "run directory", print):
        once = run("page", "--once")
        assert (
            once.exit_code == 0 and 'http-equiv="refresh"' not in page.read_text() and ">running<" in page.read_text()
        )
        command = subprocess.Popen(
            [sys.executable, PROJECT / "cli.py", "runs", "page"], stdout=subprocess.PIPE, text=True
        )
        try:
            told = command.stdout.readline() + command.stdout.readline()
            assert 'http-equiv="refresh"' in page.read_text()
            command.send_signal(signal.SIGINT)
            command.communicate(timeout=60)
        finally:
            command.kill()
            command.wait(10)
    assert command.returncode == 130 and "until no run trains or you press Ctrl-C" in told
    assert 'http-equiv="refresh"' not in page.read_text()


def test_rm_asks_and_removes_nothing_without_a_yes(folder):
    told = run("rm", "runs/good", "runs/bad", input="n\n")
    assert told.exit_code == 0 and "Remove these 2 runs?" in told.stdout and "nothing was removed" in told.stdout
    silent = run("rm", "runs/good", input="")
    assert_one_line(silent.exit_code, silent.stderr.lstrip("\n"), ["--yes", "nothing was removed"])
    assert {path.name for path in folder.iterdir()} == {"good", "bad", "killed", "no-run"}


def test_rm_removes_the_runs_that_are_named_and_no_other(folder):
    assert run("rm", "runs/good", "runs/killed", "runs/good", input="y\n").exit_code == 0
    assert {path.name for path in folder.iterdir()} == {"bad", "no-run"}


@pytest.mark.parametrize(
    ("name", "says"),
    [("runs/no-run", "config.yaml"), ("runs", "config.yaml"), ("link", "is a link"), ("other", "logs/launcher.log")],
)
def test_rm_refuses_a_folder_that_is_no_run_and_then_removes_nothing(folder, name, says):
    (folder.parent / "link").symlink_to(folder / "good")
    (folder.parent / "other").mkdir()
    (folder.parent / "other/config.yaml").write_text("of another program: true\n")
    told = run("rm", "runs/bad", name, "--yes")
    assert_one_line(told.exit_code, told.stderr, [name, says])
    assert (folder / "bad").is_dir() and (folder / "good").is_dir() and (folder.parent / "other/config.yaml").exists()


def test_rm_refuses_a_run_that_goes_on(folder):
    with locks.sole_use(folder / "good", "run directory", print):
        told = run("rm", "runs/bad", "runs/good", "--yes")
    assert_one_line(told.exit_code, told.stderr, ["runs/good", "in use"])
    assert (folder / "bad").is_dir() and (folder / "good").is_dir()


def test_rm_refuses_a_run_with_a_task_left_and_then_removes_nothing(folder):
    with (folder / "good/.alive").open("w") as task:
        fcntl.flock(task, fcntl.LOCK_SH)
        told = run("rm", "runs/bad", "runs/good", "--yes")
    assert_one_line(told.exit_code, told.stderr, ["runs/good", "tasks of its run are still alive"])
    assert (folder / "bad").is_dir() and (folder / "good").is_dir()
    assert run("rm", "runs/bad", "runs/good", "--yes").exit_code == 0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-3, "0 s"), (89, "89 s"), (90, "2 min"), (5399, "90 min"), (7200, "2 h"), (172_799, "48 h"), (260_000, "3 d")],
)
def test_an_age_is_told_in_its_largest_unit(seconds, text):
    assert age(seconds) == text
