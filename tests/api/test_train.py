"""`ps_cluster.train` with a stand-in for the launcher."""

import os
import signal
import sys
import threading
from pathlib import Path

import pytest

import ps_cluster
from ps_cluster.api.compare_arms import compare
from ps_cluster.api.train import train
from ps_cluster.config import build_config
from tests.helpers.bad_input import refusal
from tests.helpers.processes import assert_none_left
from tests.helpers.users import SOMEBODY, SOMEBODY_ELSE, as_user, common  # noqa: F401
from tests.test_imports import imported_by

FAKE = Path(__file__).with_name("fake_launcher.py")
ONE = {"workers": 1, "steps": 20, "data": "synthetic", "model": "tutorial_cnn"}


@pytest.fixture
def call(tmp_path):
    """call(what, …) → the result of a fake training."""

    def call(what, **options):
        return train(run_dir=tmp_path / "run", command=(sys.executable, str(FAKE), what), **(ONE | options))

    yield call
    assert_none_left(tmp_path / "run")


def test_the_lines_of_the_program_are_printed_and_the_result_is_what_it_left(call, tmp_path, capsys):
    result = call("completed")
    assert capsys.readouterr().out.splitlines() == ["begins", "the last line has no end"]
    assert result.run_dir == tmp_path / "run" and result.outcome == "completed"
    assert [row["step"] for row in result.history] == [10, 20]


UNGUARDED = """
import ps_cluster

def build(examples):
    return None

ps_cluster.{function}(run_dir={folder!r}) if "{function}" == "train" else ps_cluster.compare(output={folder!r})
"""


@pytest.mark.parametrize("function", ["train", "compare"])
def test_a_script_that_starts_a_run_when_a_run_imports_it_is_refused_and_starts_nothing(call, function, tmp_path):
    (tmp_path / "my.py").write_text(UNGUARDED.format(function=function, folder=str(tmp_path / "another")))
    told = refusal(call, "completed", model=f"{tmp_path}/my.py:build")
    assert f"my.py:build': the file can't be run: {function}: it was called by a process of a run" in told
    assert 'under if __name__ == "__main__":' in told
    assert not (tmp_path / "another").exists()


def test_no_process_that_a_launcher_has_started_trains(call, monkeypatch):
    monkeypatch.setenv("PS_CLUSTER_LAUNCHER_PID", "1")
    with pytest.raises(
        ps_cluster.UserError, match="train: it was called by a process of a run, which imports your code"
    ):
        call("completed")


def test_callbacks_get_every_row_in_the_order_in_which_it_was_written(call):
    seen = []
    call("completed", on_progress=lambda row: seen.append(row.applied), on_evaluation=lambda row: seen.append(row))
    assert [row if isinstance(row, int) else f"score {row.step}" for row in seen] == [10, "score 10", 20, "score 20"]


def test_a_callback_that_returns_stop_ends_the_training_early_and_is_not_called_again(call):
    seen = []

    def enough(row):
        seen.append(row.applied)
        return ps_cluster.STOP if row.applied >= 5 else None

    assert call("until_stopped", on_progress=enough).outcome == "stopped"
    assert seen == [1, 2, 3, 4, 5]


def test_an_error_in_a_callback_is_raised_when_the_run_is_drained(call, tmp_path):
    with pytest.raises(ZeroDivisionError):
        call("until_stopped", on_progress=lambda row: 1 / 0)
    assert ps_cluster.Result(tmp_path / "run").outcome == "stopped"


def test_ctrl_c_is_raised_when_the_run_is_drained(call, tmp_path):
    def interrupt_soon(row):
        if row.applied == 1:
            threading.Timer(0.1, signal.raise_signal, [signal.SIGINT]).start()

    with pytest.raises(KeyboardInterrupt):
        call("until_stopped", on_progress=interrupt_soon)
    assert ps_cluster.Result(tmp_path / "run").outcome == "stopped"


def test_a_failure_names_task_reason_and_log(call, tmp_path):
    with pytest.raises(ps_cluster.TrainingFailed, match="worker-1 ended with exit code 1: no luck") as error:
        call("failed")
    assert error.value.task == "worker-1" and error.value.log == tmp_path / "run" / "logs" / "worker-1.log"


def test_a_launcher_that_is_killed_is_a_failure_of_no_task(call, tmp_path):
    with pytest.raises(ps_cluster.TrainingFailed, match="SIGKILL") as error:
        call("killed")
    assert error.value.task is None and error.value.log == tmp_path / "run" / "logs" / "launcher.log"


def test_bad_input_that_only_the_launcher_sees_is_its_line_and_leaves_no_code(call, tmp_path):
    with pytest.raises(ps_cluster.UserError, match=r"^training.epochs: got -1$"):
        call("refused", model=lambda: None)
    assert not (tmp_path / "run" / "code").exists()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"workers": 0}, "cluster.workers: got 0"),
        ({"workerz": 2}, "workerz: there is no such argument: did you mean 'workers'"),
        ({"epochs": 1, "steps": 2}, "--epochs and --steps both set the length of the training"),
        ({"mode": "asynk"}, "did you mean 'async'"),
        ({"settings": {"training.sed": 1}}, "training.sed"),
        (
            {"sample_weight": []},
            "sample_weight: Keras has this argument, but it is unknown here: give weights with the",
        ),
        (
            {"resume": "runs/none"},
            "data: a run is resumed with its own data and settings, in its own folder, and without",
        ),
        ({"run_dir": "gs://bucket/run"}, "run_dir: 'gs://bucket/run' is the address of a remote store"),
        ({"data": {"x_train": [[1], [2]]}}, "data: y_train is missing"),
        ({"model": 7}, "model: got int: give a name, a path, a function or a Keras model"),
        ({"model": "no_such_file.py:build"}, "there is no file"),
        ({"settings": ["a"]}, "settings: got ['a']: give a mapping"),
        ({"run_dir": 5}, "run_dir: 5 is not a path: give a folder that can be written"),
        ({"run_dir": "x" * 300}, "x' is too long a name: give a folder"),
        ({"run_dir": "/dev/null/x"}, "run_dir: '/dev/null/x' can't be written: a file is in the way"),
        ({"run_dir": "a\0b"}, "run_dir: 'a\\x00b' has a null character in its name: give"),
    ],
)
def test_bad_input_is_one_line_before_anything_is_started(tmp_path, options, told):
    assert told in refusal(train, **({"run_dir": tmp_path / "run", "command": ("/no/such/program",)} | ONE | options))
    assert not (tmp_path / "run").exists()


def test_a_folder_that_holds_something_is_not_taken(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ps_cluster.UserError, match="is not empty"):
        train(run_dir=tmp_path, command=("/no/such/program",), **ONE)
    assert os.listdir(tmp_path) == ["mine.txt"]


def test_a_folder_of_another_user_is_refused_before_anything_is_written(common, monkeypatch):  # noqa: F811
    monkeypatch.setenv("PS_CLUSTER_CACHE", str(common / "cache"))
    for call in (
        lambda: train(run_dir=theirs, command=("/no/such/program",), **ONE),
        lambda: compare(["async"], output=theirs, command=("/no/such/program",), **ONE),
    ):
        theirs = common / "theirs"
        theirs.mkdir(exist_ok=True)
        os.chown(theirs, SOMEBODY_ELSE, SOMEBODY_ELSE)
        os.chmod(theirs, 0o777)
        with as_user(SOMEBODY), pytest.raises(ps_cluster.UserError, match="belongs to"):
            call()
        assert list(theirs.iterdir()) == []


def test_nobody_else_may_write_to_what_is_written(call, tmp_path):
    before = os.umask(0)
    try:
        call("completed", model=lambda examples: None)
        assert os.umask(0) == 0, "the caller's own is as it was"
    finally:
        os.umask(before)
    code = [tmp_path / "run", *(tmp_path / "run" / "code").rglob("*")]
    assert len(code) > 2 and not any(path.stat().st_mode & 0o022 for path in code)


def build(examples):
    """A network that is only sent."""


def another(examples):
    """Another network."""
    return examples


@pytest.fixture
def again(call, tmp_path):
    """again(model, …) → the result and the arguments of a run that is resumed; it was begun with `build`."""
    call("completed", model=build)
    name = build_config(tmp_path / "run" / "code" / "settings.yaml").model.name
    (tmp_path / "run" / "config.yaml").write_text(f"model: {{name: '{name}'}}\n")

    def again(model=None, **options):
        command = (sys.executable, str(FAKE), "resumed")
        result = train(model, resume=tmp_path / "run", command=command, **options)
        return result, (tmp_path / "run" / "arguments.txt").read_text().split("\n")

    yield again
    assert_none_left(tmp_path / "run")


def test_a_run_is_resumed_with_the_network_that_is_given_again_and_its_earlier_rows_are_not_told(again, tmp_path):
    seen = []
    keywords = {"epochs": 4, "max_seconds": 60, "ps": 2, "workers": None}
    result, arguments = again(build, **keywords, on_evaluation=lambda row: seen.append(row.step))
    code = next((tmp_path / "run" / "code").glob("*.pickle"))
    changes = ["--epochs=4", "--max-seconds=60", "--ps=2"]
    assert arguments == ["run", "--resume", str(tmp_path / "run"), *changes, "--code", str(code)]
    assert seen == [30] and result.run_dir == tmp_path / "run"


@pytest.mark.parametrize(
    ("model", "options", "told"),
    [
        (None, {}, "is your code, '{run}/code/build-{digest}.pickle:build': give it again, as model=…"),
        (another, {}, "was begun with another network, '{run}/code/build-{digest}.pickle:build': give that one, or"),
        (
            build,
            {"workers": 3},
            "workers: a run is resumed with its own settings; only ps, epochs, steps, max_seconds, isolation may change",
        ),
        (build, {"epoch": 3}, "epoch: there is no such argument: did you mean 'epochs'"),
    ],
)
def test_a_run_is_resumed_only_as_it_was(again, tmp_path, model, options, told):
    (code,) = (tmp_path / "run" / "code").glob("*.pickle")
    before = code.read_bytes()
    expected = told.format(run=tmp_path / "run", digest=code.stem.removeprefix("build-"))
    assert expected in refusal(again, model, **options)
    assert list((tmp_path / "run" / "code").glob("*.pickle")) == [code] and code.read_bytes() == before


def test_code_in_the_folder_of_a_run_is_replaced_by_what_the_caller_gives(again, tmp_path):
    (code,) = (tmp_path / "run" / "code").glob("*.pickle")
    before = code.read_bytes()
    code.write_bytes(b"somebody else's")
    again(build)
    assert code.read_bytes() == before


def test_every_public_name_is_there_and_belongs_to_the_api():
    assert {name: getattr(ps_cluster, name).__class__ for name in ps_cluster.__all__}
    assert set(ps_cluster.__all__) == set(ps_cluster._HOMES) <= set(dir(ps_cluster))
    assert not hasattr(ps_cluster, "trains")


def test_the_import_of_the_package_imports_nothing_that_takes_time():
    assert not imported_by("import ps_cluster") & {"numpy", "pydantic", "click", "tensorflow", "keras"}


def test_the_api_trains_without_tensorflow_in_the_callers_process():
    loaded = imported_by("import ps_cluster; ps_cluster.train, ps_cluster.compare, ps_cluster.Result")
    assert "ps_cluster.launch.local_run" in loaded and not loaded & {"tensorflow", "keras", "matplotlib"}
