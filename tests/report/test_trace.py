import io
import json

import pytest
from rich.console import Console

from ps_cluster.errors import UserError
from ps_cluster.report import trace
from ps_cluster.runs import ledger_csv
from ps_cluster.runs.ledger import NOT_SCHEDULED
from ps_cluster.runs.phases import GAPS, PHASE_COLUMNS
from ps_cluster.runs.proof import RoundShape
from ps_cluster.runs.run_dir import RunDir
from tests.helpers.ledgers import rows_of, write_journal


def run_with(tmp_path, *steps, servers=1):
    """A run directory whose ledger holds these: (worker, pid, scheduled_time, the seven times of PHASE_COLUMNS)."""
    run_dir = RunDir.create(tmp_path / "run")
    columns = dict(zip(("worker", "pid", "scheduled_time", *PHASE_COLUMNS), zip(*steps), strict=True))
    rows = rows_of(range(len(steps)), version=range(1, len(steps) + 1), **columns)
    journals = [write_journal(run_dir.journal(index, 1), rows) for index in range(servers)]
    ledger_csv.write_updates(run_dir.updates, journals, RoundShape(1, 1, 1), window=2**16)
    ledger_csv.write_applies(run_dir.applies, journals)
    return run_dir


ONE = (0, 71, 9.0, 10.0, 10.5, 11.0, 13.0, 13.0, 13.5, 14.0)
OTHER = (1, 72, 9.5, 10.0, 10.0, 11.0, 12.0, 18.0, 19.0, 20.0)


@pytest.fixture
def run_dir(tmp_path):
    return run_with(tmp_path, ONE, OTHER)


def events_of(run_dir):
    """[(lane, row, name, begins, lasts)] in seconds, and the names of the lanes in order."""
    trace.write_trace(run_dir)
    events = json.loads(run_dir.trace.read_text())["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    spans = [(names[e["pid"]], e["tid"], e["name"], e["ts"] / 1e6, e["dur"] / 1e6) for e in events if e["ph"] == "X"]
    return spans, list(names.values())


def table_of(run_dir):
    output = io.StringIO()
    trace.print_shares(run_dir, Console(file=output, width=120))
    return [line.split() for line in output.getvalue().splitlines()]


def test_the_shares_are_a_line_for_each_worker_and_each_parameter_server(run_dir):
    _, header, *lines = table_of(run_dir)
    assert header == ["task", "waits", "pulls", "computes", "slow", "on", "purpose", "pushes", "applies", "idle"]
    assert lines[0] == ["worker", "0", "5.0", "5.0", "20.0", "0.0", "5.0", "5.0", "60.0"]
    assert lines[1] == ["worker", "1", "0.0", "10.0", "10.0", "60.0", "10.0", "10.0", "0.0"]
    assert lines[2] == ["ps", "0", "15.0"]


def test_the_trace_has_every_step_and_its_phases_on_one_clock(run_dir):
    spans, lanes = events_of(run_dir)
    assert lanes == ["chief", "ps-0", "worker-0 (pid 71)", "worker-1 (pid 72)"]
    assert ("worker-0 (pid 71)", 0, "step 0", 1, 4) in spans and ("worker-1 (pid 72)", 0, "step 1", 1, 10) in spans
    assert ("worker-0 (pid 71)", 0, "computes", 2, 2) in spans
    assert ("worker-1 (pid 72)", 0, "slow on purpose", 3, 6) in spans
    assert ("worker-0 (pid 71)", 0, "slow on purpose", 4, 0) not in spans, "what took no time is left out"


def test_each_parameter_server_has_a_lane_of_what_it_applied(tmp_path):
    spans, _ = events_of(run_with(tmp_path, ONE, OTHER, servers=2))
    applied = [("apply", 4.5, 0.5), ("apply", 10, 1)]
    for lane in ("ps-0", "ps-1"):
        assert [span[2:] for span in spans if span[0] == lane] == applied


def test_the_chiefs_dispatches_last_until_applied_and_lie_side_by_side_where_they_overlap(tmp_path):
    third = (0, 71, 15.0, 16.0, 16.0, 17.0, 18.0, 18.0, 18.0, 18.5)
    spans, _ = events_of(run_with(tmp_path, ONE, OTHER, third))
    assert [span[1:] for span in spans if span[0] == "chief"] == [
        (0, "dispatch", 0, 5),
        (0, "queued", 0, 1),
        (0, "dispatch", 6, 3.5),
        (0, "queued", 6, 1),
        (1, "dispatch", 0.5, 10.5),
        (1, "queued", 0.5, 0.5),
    ]


def test_between_two_steps_a_worker_is_idle_until_a_dispatch_is_scheduled_for_it(tmp_path):
    second = (0, 71, 15.0, 16.0, 16.0, 17.0, 18.0, 18.0, 18.0, 18.5)
    spans, _ = events_of(run_with(tmp_path, ONE, OTHER, second))
    gaps = [span for span in spans if span[2] in GAPS and span[0].startswith("worker")]
    lane = "worker-0 (pid 71)", 0
    assert gaps == [(*lane, "idle", 5, 1), (*lane, "dispatch", 6, 1), (*lane, "idle", 9.5, 1.5)]


def test_a_worker_that_was_started_again_keeps_its_lane(tmp_path):
    _, lanes = events_of(run_with(tmp_path, ONE, (0, 95, *(time + 10 for time in ONE[2:]))))
    assert lanes == ["chief", "ps-0", "worker-0 (pid 71, 95)"]


def test_where_nobody_hands_out_steps_and_no_server_applies_them_only_workers_have_lanes(tmp_path):
    run_dir = run_with(tmp_path, *((0, 71, NOT_SCHEDULED, *range(start, start + 7)) for start in (10, 20)))
    run_dir.applies.unlink()
    spans, lanes = events_of(run_dir)
    assert lanes == ["worker-0 (pid 71)"]
    assert [span[2:] for span in spans if span[2] in GAPS] == [("returns", 6, 4)]


def test_a_run_without_a_ledger_is_told(tmp_path):
    with pytest.raises(UserError, match="holds no updates.csv"):
        trace.write_trace(RunDir.create(tmp_path / "run"))
