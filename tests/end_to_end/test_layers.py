"""The parts of one network on different workers, as real processes: the weights of one process."""

import csv
import re

import numpy as np
import pytest

from tests.helpers.finished_runs import last_arrays, ledger_rows
from tests.helpers.processes import assert_none_left
from tests.helpers.real_cluster import LIMIT_S, MOMENTUM, run, start_run

pytestmark = pytest.mark.cluster
TRANSFERS = ("_Send", "_Recv", "Identity")
# The network's recipe has another momentum for modes that divide it.
ALIKE = (*MOMENTUM, "--set", "optimizer.momentum=0.9")
FEW = ("--model", "tutorial_cnn", "--steps", 10, "--seed", 3, "--no-evaluator", *ALIKE)


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("one") / "single"
    run(run_dir, "--mode", "single", *FEW)
    return run_dir


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("split", "options", "name"),
    [
        ("layers", ("--placement", "conv2d_1=1:CPU:0,dense=2"), "own_computation/tutorial_cnn_stage_{}_"),
        ("width", (), "own_computation/tutorial_cnn.*/part_{}_"),
    ],
)
def test_three_workers_with_a_part_each_come_to_the_weights_of_one_process(split, options, name, single, tmp_path):
    summary = run(tmp_path / "run", "--split", split, "--workers", 3, "--log-placement", *options, *FEW)
    one, other = (last_arrays(run_dir) for run_dir in (single, tmp_path / "run"))
    assert np.abs(one["weights"] - other["weights"]).max() < 1e-5 and np.abs(one["weights"]).max() > 0.1
    losses = [[float(row["loss"]) for row in ledger_rows(run_dir)] for run_dir in (single, tmp_path / "run")]
    assert np.abs(np.subtract(*losses)).max() < 1e-5

    assert summary["proof"]["holds"] and [part["rows"] for part in summary["proof"]["shards"]] == [10, 10, 10]
    assert [worker["updates"] for worker in summary["workers"]] == [10, 10, 10]
    assert summary["worker_processes"] == 3 and summary["updates"]["mixed"] == summary["staleness"]["max"] == 0
    assert_computed_where_the_part_is(tmp_path / "run", name, first=int(split == "layers"))


def test_a_run_that_names_a_device_that_its_worker_does_not_have_ends_with_one_line_and_exit_code_2(tmp_path):
    placement = ("--split", "layers", "--workers", 3, "--placement", "conv2d_1=1:GPU:0,dense=2")
    process = start_run(tmp_path / "run", *placement, *FEW)
    _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 2, errors
    wrong = "mode.placement: got 'GPU:0' for worker 1, which has only CPU:0: name a device that this worker has"
    assert sum(wrong in line for line in errors.splitlines()) == 1, errors
    assert_none_left(tmp_path)


def assert_computed_where_the_part_is(run_dir, name, first):
    """Forward and backward pass of each part are on its worker. `name`: pattern of its operations' names."""
    rows = list(csv.DictReader((run_dir / "metrics" / "placement.csv").read_text().splitlines()))
    for worker in range(3):
        for prefix in ("", "gradient_tape/"):
            pattern = re.compile(prefix + name.format(worker + first))
            own = [row for row in rows if pattern.match(row["operation"]) and row["type"] not in TRANSFERS]
            assert {row["device"] for row in own} == {f"/job:worker/replica:0/task:{worker}/device:CPU:0"}, pattern
