import io
import json

import numpy as np
import pytest
from rich.console import Console

from ps_cluster.errors import UserError
from ps_cluster.reporting import trace
from ps_cluster.run_dir import RunDir
from ps_cluster.training import ledger


def run_with(tmp_path, *steps):
    """A run directory whose ledger holds these: (worker, pid, the six times of PHASE_COLUMNS)."""
    run_dir = RunDir.create(tmp_path / "run")
    rows = np.zeros([1, len(steps), len(ledger.COLUMNS)])
    for version, (row, (worker, pid, *times)) in enumerate(zip(rows[0], steps), 1):
        values = {"version": version, "worker": worker, "pid": pid} | dict(zip(ledger.PHASE_COLUMNS, times))
        for name, value in values.items():
            row[ledger.COLUMNS.index(name)] = value
    ledger.write_csv(run_dir.updates, rows)
    return run_dir


@pytest.fixture
def run_dir(tmp_path):
    one = (0, 71, 10.0, 10.5, 11.0, 13.0, 13.0, 14.0)
    other = (1, 72, 10.0, 10.0, 11.0, 12.0, 18.0, 20.0)
    return run_with(tmp_path, one, other)


def test_the_shares_are_a_line_for_each_worker(run_dir):
    output = io.StringIO()
    trace.print_shares(run_dir, Console(file=output, width=120))
    lines = [line.split() for line in output.getvalue().splitlines()]
    assert ["0", "5", "5", "20", "0", "10", "60"] in lines and ["1", "0", "10", "10", "60", "20", "0"] in lines


def test_the_trace_has_every_step_and_its_phases_on_one_clock(run_dir):
    trace.write_trace(run_dir)
    events = json.loads(run_dir.trace.read_text())["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    assert names == {71: "worker-0 (pid 71)", 72: "worker-1 (pid 72)"}
    spans = [(e["pid"], e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert (71, "step 0", 0, 4e6) in spans and (72, "step 1", 0, 10e6) in spans
    assert (71, "computes", 1e6, 2e6) in spans and (72, "slow on purpose", 2e6, 6e6) in spans
    assert (71, "slow on purpose", 3e6, 0) not in spans, "what took no time is left out"


def test_a_run_without_a_ledger_is_told(tmp_path):
    with pytest.raises(UserError, match="holds no updates.csv"):
        trace.write_trace(RunDir.create(tmp_path / "run"))
