"""Lines as text for a person, and as JSON objects for programs."""

import json
from datetime import datetime
from pathlib import Path

import pytest

from ps_cluster.process_variables import LOG_FORMAT, LOG_TASK
from ps_cluster.runs import logs
from ps_cluster.runs.logs import DISK_REFUSES, PROGRESS, TEXT, JsonLines
from ps_cluster.runs.run_dir import log_line


@pytest.fixture
def read(monkeypatch):
    """read(line) → the object of the line, written by worker-1 at second 0 of 1970."""
    monkeypatch.setenv(LOG_TASK, "worker-1")
    return lambda line: json.loads(JsonLines(wall=lambda: 0.25).line(line, "[ 0:05] "))


def test_a_line_is_one_object_with_its_event_and_values(read):
    assert read(PROGRESS("3 updates", step=3, loss=0.5)) == {
        "time": "1970-01-01T00:00:00.250+00:00",
        "level": "info",
        "task": "worker-1",
        "event": "progress",
        "message": "3 updates",
        "step": 3,
        "loss": 0.5,
    }
    assert datetime.fromisoformat(read("x")["time"]).timestamp() == 0.25 and read("it names none")["event"] == "notice"
    assert TEXT.line(PROGRESS("3 updates", step=3), "[ 0:05] ") == "[ 0:05] 3 updates", "as text it has no values"


def test_a_line_with_line_breaks_and_escapes_stays_one_line(read):
    line = JsonLines().line("a\nb\x1b[31m", "")
    assert "\n" not in line and read("a\nb\x1b[31m")["message"] == "a?b?[31m"


def test_a_value_that_is_no_number_is_null(read):
    told = read(PROGRESS("", loss=float("nan"), rate=float("inf")))
    assert (told["loss"], told["rate"]) == (None, None)


def test_an_unexpected_error_is_one_object_with_its_traceback_too():
    try:
        raise RuntimeError("it broke")
    except RuntimeError as error:
        told = json.loads(JsonLines().failure(error))
        text = TEXT.failure(error)
    assert (told["level"], told["event"], told["message"]) == ("error", "error", "RuntimeError: it broke")
    assert told["traceback"].startswith("Traceback") and text.endswith("RuntimeError: it broke")


def test_a_line_can_not_become_a_text_that_has_lost_its_event_unnoticed():
    line = DISK_REFUSES("no room")
    with pytest.raises(TypeError, match="loses its event"):
        f"training goes on: {line}"
    assert str(line) == line.message == "no room"


def test_what_a_task_says_follows_the_format_of_its_command(monkeypatch, capsys):
    monkeypatch.setenv(LOG_FORMAT, "json")
    log_line(DISK_REFUSES("training goes on"))
    monkeypatch.setenv(LOG_FORMAT, "text")
    log_line(DISK_REFUSES("training goes on"))
    as_json, as_text = capsys.readouterr().out.splitlines()
    assert json.loads(as_json)["event"] == "disk_refuses" and as_text == "training goes on"


def test_the_log_that_a_reason_names_is_read_from_it_again():
    log = Path("/run (2)/logs/ps-0.log")
    reason = logs.with_log("ps-0 ended with SIGKILL", log)
    assert reason == "ps-0 ended with SIGKILL (log: /run (2)/logs/ps-0.log)"
    assert logs.log_named_in(f"{reason} (given up after 5 restarts)") == log
    assert logs.log_named_in("ps-0 ended with SIGKILL") is None
