"""A mistake of the user is one line that names it, with exit code 2, before anything is measured."""

import pytest
from click.testing import CliRunner

from benchmarks import before_after, records


@pytest.mark.parametrize(
    ("program", "arguments", "named"),
    [
        (before_after, "--models alexnet", ["--models", "alexnet"]),
        (before_after, "--before absent", ["--before", "absent"]),
        (before_after, "--rounds 0", ["--rounds", "0"]),
        (before_after, "--seconds nan", ["--seconds", "nan"]),
        (before_after, "--dataset imagenet", ["--dataset", "imagenet"]),
        (before_after, "--data-dir absent --dataset cifar10", ["'absent'", "does not exist"]),
        (before_after, "--dataset synthetic --set-before cluster.wrokers=3", ["cluster.wrokers"]),
        (before_after, "surplus", ["surplus"]),
        (before_after, "--output .", ["--output", "directory"]),
        (records, "age of", ["of"]),
    ],
)
def test_bad_argument_is_one_line_and_exit_code_2(program, arguments, named):
    result = CliRunner().invoke(program.main, arguments.split())
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("Error: ") and all(part in line for part in named)
