import json
import multiprocessing
import socket

import pytest
from rich.console import Console

from benchmarks import choices, dispatch, in_turns, scaling, transfer


def figures(rate, staleness=2.0):
    """One round of `benchmarks.timed_run`."""
    return {
        "steps_per_second": rate,
        "examples_per_second": 128 * rate,
        "bytes_per_second": 8e6 * rate,
        "pull_seconds": 0.002,
        "push_seconds": 0.001,
        "shares": {
            "pulls": 0.2,
            "computes": 0.5,
            "pushes": 0.1,
            "applies": 0.03,
            "returns": 0.04,
            "dispatch": 0.03,
            "idle": 0.1,
        },
        "cpu_seconds_per_step": {"chief": 0.0001, "ps": 0.0005, "worker": 0.012},
        "staleness": {"mean": staleness, "p95": 3, "max": 5},
        "peak_memory_bytes": 2.5e9,
    }


def lines(rows, columns, width):
    console = Console(record=True, width=width)
    in_turns.print_table("a title", rows, columns, console)
    return console.export_text().splitlines()


def test_rounds_go_through_all_cases_in_turn_and_what_is_known_is_written_after_each(tmp_path):
    measured, output = [], tmp_path / "figures.json"

    def case(name):
        def measure():
            measured.append((name, output.exists()))
            return {"rate": len(measured)}

        return in_turns.Case({"name": name}, measure)

    rows = in_turns.measure([case("a"), case("b")], 2, output)
    assert measured == [("a", False), ("b", True), ("a", True), ("b", True)]
    assert rows[1] == {"name": "b", "rounds": [{"rate": 2}, {"rate": 4}]}
    assert json.loads(output.read_text()) == {"rows": rows}


def test_lines_of_a_network_fit_into_80_columns():
    rounds = [figures(rate, staleness) for rate, staleness in ((90.0, 1.5), (100.0, 2.25), (95.0, 1.75))]
    rows = [{"workers": 8, "ps": 4, "rounds": rounds}]
    *_, line = lines(rows, scaling.OF_NETWORKS, width=80)
    assert line.split() == ["8", "4", "12,160", "(11,520–12,800)", "1.75/3/5", "2.5", "0.1/0.5/12"]
    *_, line = lines(rows, scaling.OF_TIME, width=80)
    assert line.split() == ["8", "4", "20", "50", "10", "3", "4", "3", "10"]


def test_lines_of_parameters_fit_into_80_columns():
    rows = [{"M weights": 0.1, "workers": 3, "ps": 1, "rounds": [figures(rate) for rate in (2345.6, 1e3, 3e3)]}]
    *_, line = lines(rows, scaling.OF_PARAMETERS, width=80)
    assert line.split() == ["0.1", "3", "1", "2,346", "(1,000–3,000)", "2/1", "18,765", "(8,000–24,000)"]
    *_, line = lines(rows, scaling.OF_PROCESSES, width=80)
    assert line.split() == ["0.1", "3", "1", "2.5", "0.1/0.5/12"]


def test_what_a_case_does_not_know_is_a_dash():
    rows = [{"what": "plain closures", "rounds": [{"steps_per_second": 900.4}]}]
    *_, line = lines(rows, dispatch.COLUMNS, width=80)
    assert line.split() == ["plain", "closures", "900", "(900–900)", "–/–", "–/–/–"]


def test_ratios_of_transfers_stand_beside_the_rates():
    found = {"copies": 2e10, "tcp": 7e9, "reads": 8e9, "float32": 6e9, "float32_to_reads": 0.75}
    rows = [{"M weights": 20.0, "rounds": [found | {"bfloat16": 4e9, "bfloat16_to_reads": 0.5}]}]
    *_, line = lines(rows, transfer.COLUMNS, width=80)
    assert line.split() == ["20.0", "20.0", "7.0", "8.0", "6.0", "0.75", "(0.75–0.75)", "4.0", "0.50", "(0.50–0.50)"]


def test_blocks_come_whole_over_tcp_and_a_sender_that_ends_early_is_told():
    here, there = socket.socketpair()
    sent = bytes(range(256)) * 40
    there.sendall(sent)
    block = memoryview(bytearray(len(sent)))
    transfer._receive(here, block)
    assert block.tobytes() == sent
    there.close()
    with here, pytest.raises(ConnectionError, match="the sender has ended"):
        transfer._receive(here, block)


def test_the_sender_of_the_tcp_measurement_is_gone_afterwards():
    assert transfer.tcp_bytes_per_second(100_000, 0.05) > 0
    assert multiprocessing.active_children() == []


def test_settings_are_held_against_the_default_of_the_same_network_in_the_same_round():
    rates = {("small", "default"): (10.0, 20.0), ("small", "other"): (5.0, 40.0), ("large", "default"): (4.0, 2.0)}
    rows = [
        {"network": network, "setting": setting, "rounds": [figures(rate) for rate in of_rounds]}
        for (network, setting), of_rounds in rates.items()
    ]
    found = [[one["to_default"] for one in row["rounds"]] for row in choices.beside_default(rows)]
    assert found == [[1.0, 1.0], [0.5, 2.0], [1.0, 1.0]]
