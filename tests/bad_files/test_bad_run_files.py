"""Damaged files of a run, but for checkpoints: one line and exit code 2, or passed over with a notice."""

import json
import os

import numpy as np
import pytest

from ps_cluster.launch.endings import training_result
from ps_cluster.report.summary import EndedRun, write_summary
from ps_cluster.runs.machine_rows import MachineRow
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.tools.compare.records import read_record
from tests.bad_files.damage import (
    CALIBRATE,
    CHECK,
    COMPARE,
    EVALUATE,
    GIB,
    MOST_BYTES,
    RESUME,
    assert_told_in_one_line,
    changed,
    folder,
    gone,
    huge,
    invoke,
    parametrized,
    peak_of_memory,
    pipe,
    summary,
    text,
)  # fmt: skip
from tests.bad_files.run_files import SCORE, STEPS, SUMMARY, ledger
from tests.helpers.ledgers import csv_of


def ledger_with(**columns):
    """updates.csv has other values in its last row."""

    def change(run):
        rows = ledger()
        for name, value in columns.items():
            rows[name][-1] = value
        (run / "metrics/updates.csv").write_text(csv_of(rows))

    return change


JSON_BOMBS = [
    ("is cut short", '{"outcome": "comp', "not JSON"),
    ("is nested 100,000 deep", '{"outcome": ' + "[" * 100_000 + "]" * 100_000 + "}", "too deep"),
    ("is no text", "\udcff\udcfe", ""),
]
COMMON = [
    (f"summary.json {what}", COMPARE, lambda run, c=content: (run / "summary.json").write_bytes(os.fsencode(c)), says)
    for what, content, says in JSON_BOMBS
]
SUMMARIES = [
    ("summary.json is a pipe", COMPARE, pipe("summary.json"), "a regular file"),
    ("summary.json is a folder", COMPARE, folder("summary.json"), "directory"),
    ("summary.json has 10 GB", COMPARE, huge("summary.json"), "bytes"),
    ("its outcome is a terminal's escape", COMPARE, summary(outcome="\x1b[2J\x1b]0;owned\x07"), "outcome"),
    ("a worker's images are below 0", COMPARE, summary(workers=[{"index": 0, "pid": 1, "updates": 1, "examples": -5}]),
     "workers.0.examples"),
    ("its accuracy is true", COMPARE, summary(evaluation={"history": [SCORE | {"test_accuracy": True}]}), "test_accuracy"),
    ("a score has no time", COMPARE, summary(evaluation={"history": [SCORE | {"train_seconds": None}]}), "train_seconds"),
    ("its seconds are 1e999", COMPARE, lambda run: text("summary.json", json.dumps(SUMMARY).replace(
        '"train_seconds": 6.0, "cpu', '"train_seconds": 1e999, "cpu'))(run), "too large a number"),
    ("nothing was trained", COMPARE, summary(train_seconds=0.0), "0.0 seconds"),
    ("a process's time is a text", CALIBRATE,
     summary(processes=[{"type": "ps", "index": 0, "pid": 1, "cpu_seconds": "9"}]), "cpu_seconds"),
    ("no parameter server", CALIBRATE, summary(parameter_servers=[]), "parameter_servers"),
    ("its summary is gone", CHECK, gone("summary.json"), "summary.json"),
]  # fmt: skip
TABLES = [
    ("updates.csv has other columns", COMPARE, text("metrics/updates.csv", "step,colour\n1,2\n"), "other columns"),
    ("updates.csv has words", COMPARE, text("metrics/updates.csv", csv_of(ledger()) + "one,two\n"), "updates.csv"),
    ("updates.csv is cut short", COMPARE, text("metrics/updates.csv", csv_of(ledger())[:-40]), "cut short"),
    ("updates.csv has a line of a gigabyte", COMPARE, huge("metrics/updates.csv", GIB), "other columns"),
    ("updates.csv is a pipe", COMPARE, pipe("metrics/updates.csv"), "a regular file"),
    ("a worker's index is huge", COMPARE, ledger_with(worker=1e15), "worker"),
    ("a time is infinite", CALIBRATE, ledger_with(applied_time=np.inf), "applied_time"),
    ("updates.csv is gone", CHECK, gone("metrics/updates.csv"), "updates.csv"),
]  # fmt: skip
CONFIGS = [
    (f"config.yaml {what}", command, text("config.yaml", content), says)
    for what, content, says in (
        ("is no YAML", "cluster: [1, 2\n", "not YAML"),
        ("has a wrong type", "mode: 3\n", "mode"),
    )
    for command in ((RESUME, EVALUATE, COMPARE, CALIBRATE) if what == "is no YAML" else (RESUME,))
]
MARKS = [
    ("ended.json is cut short", EVALUATE, text("checkpoints/ended.json", "{"), "ended.json"),
    ("ended.json is of step true", EVALUATE, changed("checkpoints/ended.json", last_step=True), "last_step"),
    ("ended.json has an outcome of its own", EVALUATE, changed("checkpoints/ended.json", outcome="\x1b[2J"), "outcome"),
    ("ended.json is a pipe", EVALUATE, pipe("checkpoints/ended.json"), "a regular file"),
]
CASES = [*COMMON, *SUMMARIES, *TABLES, *CONFIGS, *MARKS]


@pytest.mark.parametrize("command", [RESUME, EVALUATE, CALIBRATE])
def test_the_run_that_is_damaged_here_was_sound_before(place, command):
    result = invoke(command, place)
    assert result.exit_code == 0, result.output
    assert read_record(place / "run").summary.updates.applied == STEPS


@parametrized(CASES)
def test_a_damaged_file_is_told_in_one_line_and_takes_little_memory_and_time(place, command, damage, says):
    damage(place / "run")
    assert_told_in_one_line(place, command, says)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (text("metrics/evaluation.jsonl", '{"step": true, "test_accuracy": 0.5}\n'), "step: got True"),
        (text("metrics/evaluation.jsonl", "[" * 10**5 + "\n"), "too deep"),
        (text("metrics/evaluation.jsonl", '{"step": 3, "test_accuracy": "\x1b[2J"}\n'), "not JSON"),
        (huge("metrics/evaluation.jsonl", GIB // 2), "a line of more than"),
        (summary(outcome="completed"), ""),
    ],
)
def test_rows_that_are_none_are_passed_over_with_a_notice(place, damage, says):
    damage(place / "run")
    with peak_of_memory() as peak:
        result = invoke(EVALUATE, place)
    assert (result.exit_code, result.stderr) == (0, "") and says in result.output
    assert peak() < MOST_BYTES
    assert json.loads((place / "run/summary.json").read_text())["evaluation"]["test_accuracy"] == 0.5


@pytest.mark.parametrize("content", ["{", '{"test_accuracy": "high"}'])
def test_a_record_of_the_best_model_that_is_damaged_is_replaced_with_a_notice(place, content):
    (place / "run/best").mkdir()
    (place / "run/best/model.keras").write_bytes(b"another")
    (place / "run/best/best.json").write_text(content)
    (place / "run/metrics/evaluation.jsonl").unlink()
    result = invoke(EVALUATE, place)
    assert result.exit_code == 0 and "takes its place" in result.output
    assert json.loads((place / "run/best/best.json").read_text())["test_accuracy"] == 0.5


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (text("dataset.json", "{"), "looking for the data set again"),
        (changed("dataset.json", directory=7), "directory: got 7"),
        (changed("dataset.json", directory="/a\0b"), "looking for the data set again"),
        (pipe("dataset.json"), ""),
        (text("summary.json", "{"), "the summary can't be used, and will be replaced"),
        (summary(outcome=7), "the summary can't be used, and will be replaced"),
        (
            text("checkpoints/ended.json", "[]"),
            "the file that marks the end of training can't be used, and will be replaced",
        ),
    ],
)
def test_a_run_is_resumed_without_what_can_be_had_again(place, damage, says):
    damage(place / "run")
    result = invoke(RESUME, place)
    assert (result.exit_code, result.stderr) == (0, "") and says in result.output


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("metrics/training.json", "{"),
        ("metrics/training.json", '{"outcome": "yes"}'),
        ("metrics/training.json", '{"outcome": "completed", "updates": {"applied": "60"}}'),
        ("cluster.json", "[" * 10**5),
        ("cluster.json", '{"launcher": {"pid": 1}, "tasks": [{"type": "king", "index": 0, "pid": 1}]}'),
        ("metrics/progress.jsonl", '{"phase": "training", "applied": 10e30}\n'),
    ],
)
def test_the_summary_is_made_without_what_is_damaged_and_says_so(place, name, content):
    run_dir, said = RunDir(place / "run"), []
    (run_dir.root / name).write_text(content)
    ended = EndedRun(outcome="stopped", wall_seconds=1.0, began=0.0, life="1", machine=MachineRow())
    summary = write_summary(run_dir, ended, said.append)
    assert summary.outcome == "stopped" and len(said) == 1 and name in said[0]
    assert json.loads(run_dir.summary.read_text()) == summary.model_dump(mode="json")
    if "training" in name:
        assert training_result(run_dir) is None
