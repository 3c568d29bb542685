import builtins
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from ps_cluster.config.tasks import Task
from ps_cluster.errors import UserError
from ps_cluster.runs import run_dir
from ps_cluster.runs.run_dir import OF_OPTIMIZER, RunDir, check_unused, log_line, log_pending_lines, residual_files


def test_a_folder_with_the_code_of_a_run_is_taken_and_one_with_more_is_not(tmp_path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "build.pickle").write_bytes(b"")
    assert RunDir.create(tmp_path).code == tmp_path / "code"
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="is not empty: choose another folder$"):
        check_unused(tmp_path)


def test_a_run_that_never_trained_blocks_no_name_and_one_that_has_names_resume(tmp_path):
    run = RunDir.create(tmp_path)
    check_unused(tmp_path)  # killed before it had a configuration
    run.config.write_text("")
    run.log(Task("chief", 0)).write_text("why it failed")
    check_unused(tmp_path)
    run.launcher_log.rename(tmp_path / "launcher.log")  # no run has left this
    with pytest.raises(UserError, match="is not empty"):
        check_unused(tmp_path)
    (tmp_path / "launcher.log").rename(run.launcher_log)
    run.journal(0, 1).parent.mkdir(parents=True)
    run.journal(0, 1).write_bytes(b"row")
    with pytest.raises(UserError, match="continue its run with --resume"):
        check_unused(tmp_path)


def test_a_model_without_states_and_journals_is_not_taken_for_a_run_that_never_trained(tmp_path):
    run = RunDir.create(tmp_path)
    run.config.write_text("")
    run.best_model.parent.mkdir()
    run.best_model.write_bytes(b"model")
    with pytest.raises(UserError, match="is not empty"):
        check_unused(tmp_path)


def test_what_a_full_disk_refused_is_said_once_there_is_room(monkeypatch, capsys):
    full = [True]
    real_print = builtins.print

    def print_if_there_is_room(*values, **options):
        if full[0]:
            raise OSError(28, "No space left on device")
        real_print(*values, **options)

    monkeypatch.setattr(run_dir, "print", print_if_there_is_room, raising=False)
    log_line("first")
    log_line("second")
    assert capsys.readouterr().out == ""
    full[0] = False
    log_pending_lines()
    log_line("third")
    assert capsys.readouterr().out == "first\nsecond\nthird\n"


def test_threads_that_speak_at_the_same_time_say_each_line_once(monkeypatch):
    said = []

    def print_slowly(line, **options):
        said.append(line)
        time.sleep(0.02)

    monkeypatch.setattr(run_dir, "print", print_slowly, raising=False)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(log_line, map(str, range(8))))  # raises what a thread has raised
    assert sorted(said) == [str(number) for number in range(8)]


def test_what_was_trained_before_is_set_aside_where_training_begins_anew(tmp_path):
    run = RunDir.create(tmp_path / "run")
    assert run.set_aside() is None and not list(run.root.glob("before-*"))
    for number in (1, 2):
        files = {
            run.checkpoints / "step-000000001-term-000001.safetensors",
            run.snapshots / "step-000000002-term-000001.safetensors",
            run.journal(0, 1),
            run.workspace(Task("worker", 3)) / OF_OPTIMIZER[1],
            run.workspace(Task("worker", 3)) / residual_files(0)[0],
        }
        for file in files:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(file.name)
        aside = run.set_aside()
        assert aside == run.root / f"before-{number}" and not any(file.exists() for file in files)
        kept = {
            "checkpoints-step-000000001-term-000001.safetensors",
            "snapshots-step-000000002-term-000001.safetensors",
            "journal-shard-0-term-000001.bin",
            "worker-3-local-state-1",
            "worker-3-local-left-out-0-0",
        }
        assert {file.name for file in aside.iterdir()} == kept
