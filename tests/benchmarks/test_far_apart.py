"""Read the rows of a training as its time to a loss, and the bytes for it."""

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks import far_apart
from ps_cluster.runs.ledger import ROW


def rows(losses, examples=4_000, every_s=2.0):
    table = np.zeros(len(losses), ROW)
    table["loss"], table["examples"] = losses, examples
    table["applied_time"] = 100 + every_s * (1 + np.arange(len(losses)))
    return table


def read(table, *, sent, loss, before=far_apart.Sent(0, 0.0), until=1e9):
    columns = (table[name] for name in ("applied_time", "examples", "loss"))
    return far_apart._read(100.0, *columns, before, far_apart.Sent(sent, until), loss)


def test_the_loss_is_reached_when_the_mean_of_the_last_examples_is():
    updates = rows([2.0, 1.2, 1.9, 1.3, 1.1])  # means of two rows: 1.6, 1.55, 1.6, 1.2
    for order in (updates, updates[::-1]):  # the rows of several workers are not in the order of their times
        measured = read(order, sent=60_000, loss=1.55)
        assert (measured.seconds, measured.examples) == (6.0, 12_000)
        assert (measured.examples_per_second, measured.bytes_per_example) == (2_000, 3.0)
        assert measured.loss == pytest.approx(1.2)


def test_bytes_are_those_of_the_updates_between_both_readings():
    """The first update was there before the first reading, the last two ended while the training drained."""
    table, before = rows([3.0, 2.9, 1.0, 1.0, 1.0, 1.0]), far_apart.Sent(1_000, 103.0)
    measured = read(table, before=before, sent=25_000, until=109.0, loss=1.5)
    assert measured.bytes_per_example == 24_000 / 12_000
    assert (measured.seconds, measured.examples) == (8.0, 16_000)
    assert measured.examples_per_second == 16_000 / 8


def test_steps_of_torchft_become_rows_of_whole_periods():
    steps = np.array([[10.0, 128, 2.0], [11.0, 128, 1.0], [12.0, 128, 4.0], [13.0, 128, 2.0], [14.0, 128, 9.0]])
    assert far_apart._periods(steps, 2).tolist() == [[11.0, 256, 1.5], [13.0, 256, 3.0]]


def test_fewer_examples_than_the_mean_needs_reach_nothing():
    assert read(rows([0.1]), sent=1, loss=1.0).seconds is None
    assert read(rows([3.0, 3.0]), sent=1, loss=1.0).seconds is None


def test_a_row_has_the_rounds_that_reached_the_loss_and_says_how_many_did():
    rounds = [far_apart.Measured(seconds, 1_000_000, 10.0, 3.0, 1.5) for seconds in (10.0, 30.0, 20.0, None)]
    row = far_apart._row(100.0, "async", rounds)
    assert (row["link"], row["seconds"], row["megabytes"], row["reached"]) == ("100", [10, 30, 20], [3, 3, 3], "3 of 4")
    assert row["rate"] == [10] * 4
    assert far_apart._row(10.0, "async", rounds[-1:])["seconds"] == "–"


@pytest.mark.parametrize(("arm", "setting"), [("nothing:int8", "mode.name"), ("async:foo", "cluster.wire")])
def test_an_unknown_mode_or_wire_is_refused_before_anything_is_measured(arm, setting):
    ended = CliRunner().invoke(far_apart.main, ["--data-dir", ".", "--arms", f"async,{arm}"])
    assert ended.exit_code == 2 and f"--arms: got '{arm}'" in ended.output and setting in ended.output


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--torch-python", "no/python"], "--torch-python: got 'no/python'"),
        ([], "--torch-python: got 'None'"),
        (["--torch-python", __file__, "--straggler", "0:+1s"], "--straggler: got '0:+1s'"),
    ],
)
def test_the_arm_torchft_needs_a_python_and_knows_factors_alone(options, told):
    ended = CliRunner().invoke(far_apart.main, ["--data-dir", ".", "--arms", "torchft", *options])
    assert ended.exit_code == 2 and told in ended.output
