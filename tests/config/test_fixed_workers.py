"""The modes that keep their number of workers say why, to each command that would change it."""

import pytest
from click.testing import CliRunner

from ps_cluster.cli.main import main
from ps_cluster.config.modes import MODES
from tests.helpers.bad_input import assert_one_line

FIXED = [mode.name for mode in MODES if mode.cluster.why_workers_are_fixed]


def test_async_bounded_and_diloco_alone_may_change_it():
    assert set(MODES.names) - set(FIXED) == {"async", "bounded", "diloco"}


@pytest.mark.parametrize(
    ("mode", "option", "number"), [*((mode, "--max-workers", 5) for mode in FIXED), ("sync", "--min-workers", 1)]
)
def test_run_refuses_bounds(mode, option, number, tmp_path):
    rule = MODES[mode].own_rule
    chosen = ["--mode", mode, *(["--set", f"optimizer.rule={rule}"] if rule else []), option, str(number)]
    told = CliRunner().invoke(main, ["run", "--run-dir", str(tmp_path / "run"), "--dataset", "synthetic", *chosen])
    field = option.removeprefix("--").replace("-", "_")
    why = f"mode {mode} keeps its number of workers: {MODES[mode].cluster.why_workers_are_fixed}"
    assert_one_line(told.exit_code, told.stderr, [f"cluster.{field}: got {number}: {why}"])
    assert told.stdout == "" and not (tmp_path / "run").exists()
