"""What users get wrong: one line that names it, exit code 2, before anything is measured. An arm that fails: exit code 1."""

import pytest
from click.testing import CliRunner

from benchmarks import before_after, records, scaling, sizes
from ps_cluster.errors import RunFailed
from tests.helpers.data import only_named


@pytest.mark.parametrize(
    ("module", "arguments", "named"),
    [
        (scaling, "--workers 9", ["--workers", "9"]),
        (scaling, "--workers 1,two", ["--workers", "two"]),
        (scaling, "--ps 0", ["--ps", "0"]),
        (scaling, "--model alexnet", ["--model", "alexnet"]),
        (scaling, "--parameters 2,0", ["--parameters", "0"]),
        (scaling, "--parameters nan", ["--parameters", "nan"]),
        (scaling, "--rounds 0", ["--rounds", "0"]),
        (scaling, "--seconds nan", ["--seconds", "nan"]),
        (scaling, "--dataset imagenet", ["--dataset", "imagenet"]),
        (scaling, "--data-dir absent --dataset cifar10", ["'absent'", "does not exist"]),
        (scaling, "surplus", ["surplus"]),
        (scaling, "--output .", ["--output", "directory"]),
        (scaling, "--seconds long", ["--seconds", "long"]),
        (scaling, "--parameters many", ["--parameters", "many"]),
        (scaling, "--parameters 1000", ["--parameters", "1000"]),
        (before_after, "--before . --models alexnet", ["--models", "alexnet"]),
        (before_after, "", ["--before"]),
        (records, "age of", ["of"]),
        (sizes, "surplus", ["surplus"]),
    ],
)
def test_bad_argument_is_one_line_and_exit_code_2(module, arguments, named):
    result = CliRunner().invoke(module.main, arguments.split())
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("Error: ") and all(part in line for part in named)


def test_an_arm_that_fails_is_one_line_and_exit_code_1(monkeypatch):
    def fail(*_):
        raise RunFailed("arm single failed with exit code 3: why\nand where; its files: folder")

    monkeypatch.setattr(scaling, "open_data", lambda *_: only_named())
    monkeypatch.setattr(scaling, "measure", fail)
    result = CliRunner().invoke(scaling.main, ["--dataset", "synthetic"])
    assert result.exit_code == 1
    assert result.stderr == "Error: arm single failed with exit code 3: why and where; its files: folder\n"
