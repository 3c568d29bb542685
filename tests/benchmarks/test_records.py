import json
import sys

import pytest
from click.testing import CliRunner

from benchmarks import records
from benchmarks.records import Column, Record, keep, table


@pytest.mark.parametrize(
    ("column", "value", "text"),
    [
        (Column(heading=""), [11_520, 12_800, 12_160], "12,160 (11,520 to 12,800)"),
        (Column(heading="", digits=1, spread="deviation"), [1.0, 2.0, 3.0], "2.0 ± 1.0"),
        (Column(heading="", digits=2, spread="interval"), [1.0, 2.0, 3.0], "2.00 ± 2.48"),
        (Column(heading="", digits=1), [90.44], "90.4"),
        (Column(heading="", digits=2), 1.5, "1.50"),
        (Column(heading=""), "as it is", "as it is"),
        (Column(heading=""), None, ""),
    ],
)
def test_a_cell_shows_the_values_of_all_measurements(column, value, text):
    assert column.text(value) == text


def test_a_record_keeps_its_command_without_paths_and_becomes_a_table(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/here/benchmarks/speed.py", "--data-dir", "/my/data", "--rounds", "2"])
    columns = {"name": Column(heading="network"), "rate": Column(heading="images/s")}
    rows = [{"name": "a", "rate": [1, 3]}, {"name": "b", "rate": [2.25], "digits": 1}]
    record = keep(tmp_path / "speed.json", rows, columns)
    assert record.command == "python -m benchmarks.speed --data-dir DATA_DIR --rounds 2"
    paths = [
        "/here/benchmarks/speed.py",
        "/my/run",
        "--output=/my/file",
        "--set",
        "data.data_dir=/my/data",
        "--set",
        "a.b=c d",
    ]
    monkeypatch.setattr(sys, "argv", paths)
    found = keep(None, rows, columns).command
    assert found == "python -m benchmarks.speed PATH --output=OUTPUT --set data.data_dir=DATA_DIR --set 'a.b=c d'"
    assert Record.model_validate(json.loads((tmp_path / "speed.json").read_text())) == record
    lines = ["| network | images/s | n |", "| --- | ---: | ---: |", "| a | 2 (1 to 3) | 2 |", "| b | 2.2 | 1 |"]
    assert table([record]).splitlines() == lines
    assert table([record, record], commits=True).splitlines()[0] == "| network | images/s | n | commit |"


def test_the_figures_that_two_trainings_share_are_compared_seed_by_seed(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "RECORDS", tmp_path)
    columns = {"figure": Column(heading="result"), "values": Column(heading="values")}
    for name, values in (("a", [3.0, 5.0, 9.0]), ("b", [2.0, 3.0])):
        rows = [{"figure": f"run {name}, score", "values": values, "digits": 1}]
        keep(tmp_path / f"{name}.json", [*rows, {"figure": f"run {name}, only {name}", "values": [1.0]}], columns)
    told = CliRunner().invoke(records.main, ["difference", "a", "b"]).output
    assert told == "score: 5.7 ± 3.1 (n = 3) against 2.5 ± 0.7 (n = 2), difference 1.5 ± 6.4 (95 % interval, n = 2)\n"
