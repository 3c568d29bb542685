"""A mistake of the user is one line that names it, with exit code 2, before anything is measured."""

import pytest
from click.testing import CliRunner

from benchmarks import asynchrony_on_tables, before_after, killed_workers, records, table_sizes


@pytest.mark.parametrize(
    ("program", "arguments", "named"),
    [
        (before_after, "--models alexnet", ["--models", "alexnet"]),
        (before_after, "--before absent", ["--before", "absent"]),
        (before_after, "--rounds 0", ["--rounds", "0"]),
        (before_after, "--dataset imagenet", ["--dataset", "imagenet"]),
        (before_after, "--data-dir absent --dataset cifar10", ["--data-dir", "absent", "does not exist"]),
        (before_after, "--set-before cluster", ["--set 'cluster'"]),
        (before_after, "surplus", ["surplus"]),
        (before_after, "--output .", ["--output", "directory"]),
        (records, "age of", ["of"]),
        (asynchrony_on_tables, "--data movielens", ["--folder", "--output"]),
        (asynchrony_on_tables, "--folder new --output new.json --data clicks", ["--data", "clicks 0.8"]),
        (asynchrony_on_tables, "--folder new --output new.json --seeds 1", ["--seeds", "1"]),
        (killed_workers, "--kills -1", ["--kills", "-1"]),
        (killed_workers, "--kills many", ["--kills", "many"]),
        (killed_workers, "--seed 0.5", ["--seed", "0.5"]),
        (killed_workers, "--output .", ["--output", "directory"]),
        (killed_workers, "surplus", ["surplus"]),
        (table_sizes, "--millions 1000 --width 1024", ["--millions", "1000", "GB", "--width"]),
    ],
)
def test_bad_argument_is_one_line_and_exit_code_2(program, arguments, named):
    result = CliRunner().invoke(program.main, arguments.split())
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("Error: ") and all(part in line for part in named)
