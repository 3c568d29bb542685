"""A comparison trains its runs and writes its report, of what users bring too; a second command leaves it alone."""

import csv
import json

import numpy as np
import psutil
import pytest

from tests.doors import toy_data
from tests.helpers.processes import assert_none_left, of_run, wait_until
from tests.helpers.real_cluster import LIMIT_S, PROJECT, finish, rows, start

pytestmark = pytest.mark.cluster


def test_compare_of_ones_own_network_and_table_writes_the_report_and_a_second_command_leaves_it_alone(tmp_path):
    output, toys = tmp_path / "comparison", PROJECT / "tests" / "doors"
    own = ("--dataset", f"{toys}/toy_data.py:load", "--model", f"{toys}/toy_table_network.py:build")
    few = "--modes async,single --seeds 1 --steps 30 --batches same_per_update --batch-size 32 --workers 1"
    quick = ("--precision", "float32", "--set", "optimizer.learning_rate=0.1")
    slow = ("--straggler", "0:+0.3s")  # so that the first run lasts while other commands come
    command = ("compare", *own, *few.split(), *quick, *slow, "--output", output)
    first = start(*command)
    wait_until(lambda: any(rows(root) for root in output.glob("runs/*")))
    (root,) = output.glob("runs/*")
    second, resumed = start(*command), start("run", "--resume", root)
    for process, folder in ((second, output), (resumed, root)):
        assert process.wait(LIMIT_S) == 2
        (line,) = process.communicate()[1].splitlines()
        assert f"'{folder}' is in use by 'cli.py compare" in line and f"(pid {first.pid}, since" in line
    tasks = [process for process in of_run(root) if process.pid != first.pid]
    assert len(tasks) > 3 and not [socket for task in tasks for socket in named_sockets(task)]
    finish(first)
    roots = sorted((output / "runs").iterdir())
    assert len(roots) == 2
    for root in roots:
        assert_none_left(root)

    times = [(root / "summary.json").stat().st_mtime_ns for root in roots]
    printed = finish(start(*command))
    assert "error" in printed and "There are no learning rates for individual modes in" in printed
    assert "images" not in printed and "accuracy" not in printed
    assert times == [(root / "summary.json").stat().st_mtime_ns for root in roots], (
        "finished runs are taken as they are"
    )
    page = (output / "report.html").read_text()
    assert "<svg" in page or "data:image/" in page
    assert len(list(csv.DictReader((output / "rows.csv").read_text().splitlines()))) == 2
    report = json.loads((output / "report.json").read_text())
    assert (report["metric"], report["unit"]) == ("error", "examples")
    targets, tested = (toy_data.split(count, seed)["target"] for count, seed in ((2_000, 0), (500, 1)))
    summary = json.loads((roots[1] / "summary.json").read_text())
    assert summary["guess"] == pytest.approx(np.abs(tested - targets.mean(axis=0)).mean(), rel=1e-3)
    # Plain Keras with Adam at the same rate has 2.2, 2.3 and 2.5 after as many updates (three seeds); a guess has 21.
    errors = [row["test_error"] for row in report["rows"]]
    assert len(errors) == 2 and min(errors) > 0 and max(errors) < 0.2 * summary["guess"], "both have learned"


def named_sockets(process):
    """Return the sockets that another program could find by a name in a folder."""
    try:
        return [socket for socket in process.net_connections("unix") if socket.laddr]
    except psutil.NoSuchProcess:
        return []
