"""What a person sees while a run goes on, on a terminal and in a log."""

import contextlib
import io
import os
import pty
import re
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from ps_cluster.config import build_config
from ps_cluster.config.tasks import Task
from ps_cluster.report.live_view import draw
from ps_cluster.report.progress import LiveView, PlainView, make_view
from ps_cluster.report.run_state import RunState, TaskState, clock_text
from ps_cluster.runs.result_rows import EvaluationRow, ProgressRow
from ps_cluster.runs.run_dir import RunDir
from tests.helpers.data import only_named
from tests.helpers.real_cluster import start_in_session
from tests.helpers.rows import progress_row, score_row

REAL = only_named("cifar10", Path("/data"), 50_000, 10_000)
SYNTHETIC = only_named("synthetic", Path("/data"), 50_000, 10_000)
RUN_DIR = RunDir(Path("/runs/one"))
TASKS = [
    TaskState(Task("chief", 0), 10, "running"),
    TaskState(Task("ps", 0), 11, "running"),
    *(TaskState(Task("worker", index), 20 + index, "running") for index in range(3)),
    TaskState(Task("evaluator", 0), None, "starting"),
]


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def config(**changes):
    usual = {
        "model.precision": "bfloat16", "training.steps": 1000, "training.batch_size_per_worker": 128,
        "schedule.image_scales": [],
    }  # fmt: skip
    return build_config(None, usual | changes)


def row(applied: int, phase: str = "training", **changes) -> ProgressRow:
    """A row of 1,000 updates, of which the last of three workers makes half."""
    workers = [{"index": i, "pid": 20 + i, "updates": applied // 4 * (1 + (i == 2))} for i in range(3)]
    fields = {
        "total": 1000, "examples": applied * 128, "examples_per_second": 1280.0, "epoch": 0.1, "loss": 1.234,
        "accuracy": 0.5, "learning_rate": 0.2, "staleness_mean": 1.98, "workers": workers,
    }  # fmt: skip
    return progress_row(applied, phase, **fields | changes)


def score(step: int, accuracy: float, best: bool) -> EvaluationRow:
    return score_row(step, accuracy, best=best)


def plain(dataset=REAL, settings=None):
    now, output = Clock(), io.StringIO()
    view = make_view(output, now)
    assert isinstance(view, PlainView)
    view.start(settings or config(), RUN_DIR, dataset)
    return view, now, output


def drawn(state: RunState, width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(draw(state, width, 65.0))
    return console.file.getvalue()


def state(dataset=REAL, **changes) -> RunState:
    return RunState(config(), RUN_DIR, dataset, tasks=TASKS, **changes)


def test_log_gets_a_line_every_few_seconds_and_one_for_each_phase():
    view, now, output = plain()
    for tenth in range(120):
        now.seconds = tenth / 10
        view.progress(row(tenth, "building" if tenth < 10 else "training"))
    lines = [line for line in output.getvalue().splitlines() if "updates (" in line]
    assert [line.split(" · ")[1] for line in lines] == [
        "0/1,000 updates (0%)", "10/1,000 updates (1%)", "60/1,000 updates (6%)", "110/1,000 updates (11%)"
    ]  # fmt: skip


def test_line_of_progress_holds_every_measure_and_the_time_left():
    view, _, output = plain()
    view.progress(row(200))
    assert output.getvalue().splitlines()[-1] == (
        "[ 0:00] training · 200/1,000 updates (20%) · 1,280 images/s · training loss 1.234 · "
        "training accuracy 50.0% · staleness 1.98 · learning rate 0.2 · epoch 0.10 · 1:20 left"
    )


def test_a_training_that_diverged_shows_it_in_place_of_the_loss_known_last():
    view, _, output = plain()
    view.progress(row(100))
    view.progress(row(300, phase="draining", loss=None, diverged=True))
    assert "loss nan" in output.getvalue().splitlines()[-1]


def test_every_score_and_notice_is_a_line():
    view, _, output = plain()
    view.notice("worker 1 was killed")
    view.evaluation(score(10, 0.5, True))
    view.evaluation(score(20, 0.4, False))
    assert output.getvalue().splitlines()[-3:] == [
        "[ 0:00] worker 1 was killed",
        "[ 0:00] step 10: test accuracy 50.00%, loss 0.900, best so far",
        "[ 0:00] step 20: test accuracy 40.00%, loss 0.900",
    ]


def test_where_images_are_held_out_lines_and_view_begin_with_the_score_that_chooses_the_best():
    view, _, output = plain()
    held_out = {"validation_loss": 1.1}
    rows = [
        score_row(10, 0.5, validation_accuracy=0.6, best=True, **held_out),
        score_row(20, 0.7, validation_accuracy=0.55, **held_out),
    ]
    run = state(row=row(500))
    for one in rows:
        view.evaluation(one)
        run.score(one)
    assert output.getvalue().splitlines()[-2:] == [
        "[ 0:00] step 10: validation accuracy 60.00%, loss 1.100, best so far · test accuracy 50.00%, loss 0.900",
        "[ 0:00] step 20: validation accuracy 55.00%, loss 1.100 · test accuracy 70.00%, loss 0.900",
    ]
    shown = "validation accuracy 55.00% at step 20 · best accuracy 60.00% at step 10 · test accuracy 70.00%"
    assert shown in drawn(run, 120)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"cluster.workers": 3}, "0.02: found by a sweep for async with 3 workers and batches of 128"),
        (
            {"cluster.workers": 2},
            "0.02: the rate of tutorial_cnn for all modes, because no rate was found for async with 2 workers and batches "
            "of 128 (rates were found for these pairs of workers x batch size: 3 x 128, 3 x 384)",
        ),
        ({"optimizer.learning_rate": 0.5}, "0.5: as given"),
        ({"optimizer.learning_rate": 0.5, "optimizer.momentum": 0.5}, "0.5: as given"),
        (
            {"mode.name": "sync", "optimizer.momentum": 0.5},
            "0.02: the rate of tutorial_cnn for all modes, because the rate for sync with 3 workers and batches of "
            "128 was found with other settings",
        ),
        (
            {"staleness.method": "inverse"},
            "0.02: the rate of tutorial_cnn for all modes, because the rate for async with 3 workers and batches of "
            "128 was found with other settings",
        ),
        ({"model.name": "dlrm"}, "0.005: the default of dlrm"),
        ({"optimizer.rule": "adam"}, "0.001: the usual rate for adam"),
        ({"mode.name": "layers"}, "0.004: the rate of tutorial_cnn for modes that divide the network"),
    ],
)
def test_the_first_lines_name_where_the_learning_rate_is_from(settings, says):
    _, _, output = plain(settings=build_config(None, {"model.name": "tutorial_cnn"} | settings))
    assert f"[ 0:00] learning rate {says}" in output.getvalue().splitlines()


@pytest.mark.parametrize(
    ("examples", "settings", "says"),
    [
        (180, {"training.epochs": 10}, "an epoch has 1.4 updates: try --batch-size 16"),
        (180, {"training.epochs": 10, "training.batch_size_per_worker": 16}, None),
        (5, {"training.epochs": 10}, "an epoch has 0.039 updates: train for more --epochs"),
        (180, {"mode.name": "sync", "cluster.workers": 2}, "an epoch has 0.7 updates: try --batch-size 8"),
        (50_000, {"training.steps": 20}, None),
    ],
)
def test_a_training_of_few_updates_is_told_what_to_try(examples, settings, says):
    chosen = build_config(None, {"model.name": "tutorial_cnn"} | settings)
    assert chosen.few_updates(examples) == says
    _, _, output = plain(replace(REAL, train_examples=examples), chosen)
    told = [line for line in output.getvalue().splitlines() if "an epoch has" in line]
    assert told == ([f"[ 0:00] {says}"] if says else [])


def test_synthetic_data_cannot_be_missed_and_real_ones_are_not_called_so():
    assert "!!!!" in plain(SYNTHETIC)[2].getvalue() and "SYNTHETIC" in plain(SYNTHETIC)[2].getvalue()
    assert "SYNTHETIC" not in plain()[2].getvalue()
    assert "SYNTHETIC" in drawn(state(SYNTHETIC), 100) and "SYNTHETIC" not in drawn(state(), 100)


@pytest.mark.parametrize("width", [40, 80, 200])
def test_live_view_fits_the_terminal(width):
    for dataset in (REAL, SYNTHETIC):
        run = state(dataset, row=row(500))
        run.score(score(10, 0.5, True))
        text = drawn(run, width)
        assert max(len(line) for line in text.splitlines()) <= width


def test_live_view_shows_each_worker_and_its_share():
    lines = drawn(state(row=row(400)), 100).splitlines()
    shares = [line.split() for line in lines if line.startswith("worker")]
    assert [(name, pid, status, updates, share) for _, name, pid, status, updates, _, share, _ in shares] == [
        ("0", "20", "running", "100", "25%"), ("1", "21", "running", "100", "25%"), ("2", "22", "running", "200", "50%")
    ]  # fmt: skip


def test_live_view_shows_how_often_a_task_was_started_again():
    tasks = [TaskState(Task("worker", index), 20 + index, "running", restarts=index) for index in range(3)]
    lines = drawn(replace(state(row=row(400)), tasks=tasks), 100).splitlines()
    found = [re.search("running(, [0-9]+ restarts?)?", line)[0] for line in lines if line.startswith("worker")]
    assert found == ["running", "running, 1 restart", "running, 2 restarts"]


def test_live_view_never_shows_a_training_accuracy_as_that_of_the_test_set():
    run = state(row=row(500))
    text = drawn(run, 100)
    assert "training accuracy 50.0%" in text and "no checkpoint has been scored on the test set yet" in text
    run.score(score(10, 0.25, True))
    text = drawn(run, 100)
    assert "training accuracy 50.0%" in text and "test accuracy 25.00% at step 10" in text and "scored on" not in text


def test_work_of_a_worker_that_was_started_again_is_summed():
    workers = [{"index": 0, "pid": pid, "updates": 50, "examples": 6400} for pid in (20, 30)]
    lines = drawn(state(row=row(100, workers=workers)), 100).splitlines()
    assert [line.split()[4:6] for line in lines if line.startswith("worker 0")] == [["100", "12,800"]]


def in_mode(mode, tasks=TASKS, **changes) -> RunState:
    settings = {"mode.name": mode, "optimizer.rule": "sgd", **changes}
    return RunState(config(**settings), RUN_DIR, REAL, tasks=tasks)


@pytest.mark.parametrize(
    ("mode", "crew"), [("async", "3 workers + 1 ps"), ("sync", "3 workers"), ("single", "1 process")]
)
def test_headline_names_the_mode_and_the_processes_that_it_has(mode, crew):
    assert in_mode(mode).headline.split(" · ")[-2:] == [mode, crew]


def test_the_second_line_says_what_is_learned_by_which_rule_and_how_long():
    own = {"optimizer.rule": "sgd", "schedule.kind": "constant", "training.label_smoothing": 0.0}
    run = RunState(config(**own, **{"optimizer.learning_rate": 0.02}), RUN_DIR, REAL)
    line = "10 classes · sgd, learning rate 0.02 (constant) · batch 128 · 1,000 updates"
    assert run.task_line == line and line in drawn(run, 100)
    smoothed = RunState(config(**{"training.steps": None, "training.epochs": 2.5}), RUN_DIR, REAL)
    assert smoothed.task_line.endswith(" · 2.5 epochs · label smoothing 0.2")
    once = RunState(config(**{"training.steps": None, "training.epochs": 1}), RUN_DIR, REAL)
    assert once.task_line.endswith(" · 1 epoch · label smoothing 0.2")
    smaller = {"schedule.image_scales": [{"scale": 0.5, "until": 0.25}, {"scale": 0.75, "until": 0.75}]}
    assert in_mode("async", **smaller).task_line.endswith(
        " · images 16x16 until 25%, 24x24 until 75% (scores are of images in full size)"
    )


@pytest.mark.parametrize(
    ("mode", "tasks", "rows"),
    [
        ("single", [0, -1], [["chief", "10", "running", "400", "51,200", "100%"], ["evaluator", "–", "starting"]]),
        ("async", [0, 1], [["chief", "10", "running"], ["ps", "0", "11", "running"]]),
        ("sync", [2, -1], [["worker", "0", "20", "running", "400", "51,200", "100%"], ["evaluator", "–", "starting"]]),
    ],
)
def test_live_view_has_a_row_for_each_process_and_shows_the_work_of_those_that_train(mode, tasks, rows):
    run = in_mode(mode, tasks=[TASKS[index] for index in tasks])
    run.row = row(400, workers=[{"index": 0, "pid": 10, "updates": 400, "examples": 51_200}])
    lines = drawn(run, 100).splitlines()
    begins = next(number for number, line in enumerate(lines) if line.startswith("task")) + 1
    table = lines[begins : lines.index("", begins)]
    assert [line.replace("━", "").split() for line in table] == rows


@pytest.mark.parametrize(
    ("mode", "images_per_update"), [("async", 128), ("sync", 3 * 128), ("single", 128), ("elastic", 4 * 128)]
)
def test_time_left_counts_the_images_of_an_update_in_its_mode(mode, images_per_update):
    run = in_mode(mode)  # elastic takes 4 local steps
    run.row = row(0, examples_per_second=1000 * 128.0)
    assert run.seconds_left == pytest.approx(images_per_update / 128)
    run.row = row(400, examples=400 * 200, examples_per_second=600 * 128.0)
    assert run.seconds_left == pytest.approx(200 / 128), "those that it had so far, once there are some"
    limited = in_mode(mode, **{"training.max_seconds": 50.0})
    limited.row = row(400, examples=400 * 200, examples_per_second=128.0, train_seconds=49.5)
    assert limited.seconds_left == 0.5
    assert limited.progress_line.startswith("training · 400 updates (99%) · ")


def test_time_left_counts_that_later_images_are_larger():
    run = in_mode("async", **{"schedule.image_scales": [{"scale": 0.5, "until": 0.25}, {"scale": 0.75, "until": 0.75}]})
    seconds = {}
    for applied in (0, 250, 500, 750, 1000):
        run.row = row(applied, examples_per_second=128.0)
        seconds[applied] = run.seconds_left
    # 250 steps of the size now, 500 of (3/4)^2 / (1/2)^2 of its pixels, and 250 of four times
    assert seconds[0] == pytest.approx(250 + 500 * 9 / 4 + 250 * 4)
    assert seconds[250] == pytest.approx(500 + 250 * 16 / 9) and seconds[500] == pytest.approx(250 + 250 * 16 / 9)
    assert (seconds[750], seconds[1000]) == (250, 0)


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (3599, "59:59"), (3600, "1:00:00")])
def test_durations_are_written_as_on_a_clock(seconds, text):
    assert clock_text(seconds) == text


def test_reader_that_leaves_does_not_end_the_run():
    script = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from ps_cluster.report.progress import make_view
view = make_view()
for number in range(1000):
    view.notice("line " + "x" * 200)
view.close()
print("more for nobody")
"""
    process = start_in_session([sys.executable, "-c", script], stderr=subprocess.PIPE)
    process.stdout.readline()
    process.stdout.close()
    assert (process.stderr.read(), process.wait(timeout=30)) == ("", 0)


def test_encoding_without_the_signs_gets_plain_ones():
    output = io.TextIOWrapper(io.BytesIO(), encoding="ascii", newline="\n")
    make_view(output, Clock()).notice("a · b – c 全")
    assert output.buffer.getvalue() == b"[ 0:00] a | b - c ?\n"


class Terminal:
    """A pseudo-terminal that reads all along, as a real one does."""

    def __init__(self):
        self._reader, writer = pty.openpty()
        self.stream = os.fdopen(writer, "w", encoding="utf-8")
        self._shown = b""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # how Linux says that the other end is closed
            while part := os.read(self._reader, 65536):
                self._shown += part

    def close(self) -> str:
        """All that was written to `stream`."""
        self.stream.close()
        self._thread.join(timeout=10)
        return self._shown.decode()


@pytest.fixture
def terminal():
    terminal = Terminal()
    yield terminal
    terminal.close()
    os.close(terminal._reader)


@pytest.mark.parametrize(("term", "kind"), [("xterm-256color", LiveView), ("dumb", PlainView)])
def test_only_a_terminal_that_can_gets_the_live_view(terminal, monkeypatch, term, kind):
    monkeypatch.setenv("TERM", term)
    assert isinstance(make_view(terminal.stream), kind)


@pytest.mark.parametrize("no_color", [False, True])
def test_live_view_draws_and_leaves_the_terminal_as_it_was(terminal, monkeypatch, no_color):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("LINES", "30")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    view = make_view(terminal.stream)
    view.start(config(), RUN_DIR, REAL)
    view.tasks(TASKS)
    view.progress(row(500))
    view.evaluation(score(10, 0.5, True))
    view.close()
    view.close()
    written = terminal.close()
    assert "500/1,000" in written and "step 10: test accuracy 50.00%" in written
    assert written.rfind("\x1b[?25h") > written.rfind("\x1b[?25l")  # the cursor is shown again
    assert ("\x1b[36m" in written or "\x1b[1;36m" in written) is not no_color
