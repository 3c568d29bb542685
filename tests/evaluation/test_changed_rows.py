"""`export --changed-since`: the rows that differ between two checkpoints, and one line where there is nothing to compare."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from ps_cluster.cli.main import main
from ps_cluster.config import load_config
from ps_cluster.config.datasets import Contents
from ps_cluster.data.packed import load_description
from ps_cluster.data.packing import write_packed
from ps_cluster.evaluation.changed_rows import table_positions
from ps_cluster.runs import checkpoints
from ps_cluster.runs.checkpoints import Checkpoint
from tests.helpers.bad_input import assert_one_line
from tests.helpers.left_by_runs import leave_run, small_network

pytestmark = pytest.mark.slow

USERS, ITEMS = 20, 30


def run_of_pairs(folder, rows_from):
    keys = np.stack([np.arange(60) % USERS, np.arange(60) % ITEMS], axis=1).astype(np.int32)
    rows = {"categories": keys, "target": np.arange(60, dtype=np.float32)}
    contents = Contents.of(rows, rows, objective="regression")
    field = replace(contents.spec.inputs["categories"], codes=(USERS, ITEMS))
    contents = replace(contents, spec=replace(contents.spec, inputs={"categories": field}))
    dataset = write_packed(folder / "packed", "clicks", "real", contents)
    settings = {"model.name": "two_tower", "model.row_width": 3, "model.rows_from": rows_from}
    settings["model.precision"] = "float32"
    return leave_run(folder / "run", dataset, small_network(), "clicks", **settings)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """A run with checkpoints of steps 10, 20 and 30. Users 4 and 17 change by step 20, user 4 and item 29 by step 30."""
    run_dir = run_of_pairs(tmp_path_factory.mktemp("pairs"), rows_from=1)
    users, items = table_positions(load_config(run_dir.config), load_description(run_dir.examples))
    assert (users.rows, items.rows, users.width, items.width) == (USERS, ITEMS, 3, 3)
    weights = np.random.default_rng(0).normal(size=5_000).astype(np.float32)
    for step, changes in ((10, ()), (20, ((users, 4), (users, 17))), (30, ((users, 4), (items, 29)))):
        for place, row in changes:
            weights[place.begin + row * place.width + 1] += 1
        weights[-1] += 1  # no weight of a table
        arrays = {"weights": weights.copy(), "statistics": np.zeros(0, np.float32)}
        checkpoints.save(run_dir.checkpoints, Checkpoint(step, arrays), keep=9)
    return run_dir


def export(run_dir, since, output):
    arguments = ["export", "--run", run_dir.root, "--changed-since", since, "--output", output]
    return CliRunner().invoke(main, list(map(str, arguments)))


@pytest.mark.parametrize(
    ("since", "compared", "users", "items"),
    [(10, 10, [4, 17], [29]), (19, 10, [4, 17], [29]), (25, 20, [4], [29]), (30, 30, [], []), (99, 30, [], [])],
)
def test_the_rows_that_differ_from_the_checkpoint_at_or_before_the_step_are_written(
    run_dir, tmp_path, since, compared, users, items
):
    done = export(run_dir, since, tmp_path / "rows.npz")
    assert done.exit_code == 0, done.stderr
    count = len(users) + len(items)
    assert f"{count} of 50 rows have changed from step {compared} to step 30" in done.stdout
    newest = checkpoints.load(checkpoints.path_of(run_dir.checkpoints, 30))
    with np.load(tmp_path / "rows.npz") as found:
        assert (found["step"], found["since"]) == (30, compared)
        places = table_positions(load_config(run_dir.config), load_description(run_dir.examples))
        assert [place.name for place in places] == ["categories_0", "categories_1"]
        for place, ids in zip(places, (users, items)):
            assert found[f"{place.name}.ids"].tolist() == ids
            assert np.array_equal(found[f"{place.name}.rows"], place.values(newest)[ids])


def test_a_step_before_all_kept_checkpoints_is_one_line(run_dir, tmp_path):
    done = export(run_dir, 9, tmp_path / "rows.npz")
    says = ["no checkpoint of this step or an earlier one is kept", "the oldest is of step 10"]
    assert_one_line(done.exit_code, done.stderr, says)
    assert not (tmp_path / "rows.npz").exists()


def test_a_run_without_tables_is_one_line(run_dir, tmp_path):
    whole = run_of_pairs(tmp_path / "whole", rows_from=31)
    shutil.copytree(run_dir.checkpoints, whole.checkpoints, dirs_exist_ok=True)
    done = export(whole, 10, tmp_path / "rows.npz")
    assert_one_line(done.exit_code, done.stderr, ["no embedding table whose rows are pulled and pushed separately"])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--changed-since", "5"], "it needs a run and a file"),
        (
            ["--changed-since", "5", "--output", "x.npz", "--to", "keras"],
            "--changed-since writes only rows of tables: leave --to out",
        ),
        (["--output", ".", "--changed-since", "5"], "is a directory"),
    ],
)
def test_options_that_do_not_fit_are_one_line(arguments, says):
    done = CliRunner().invoke(main, ["export", *arguments])
    assert_one_line(done.exit_code, done.stderr, [says])
