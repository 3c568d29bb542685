"""The modes that keep their number of workers say why, to each command that would change it."""

import pytest
from click.testing import CliRunner

from ps_cluster.cli.main import main
from ps_cluster.config.modes import MODES
from tests.helpers.bad_input import assert_one_line

FIXED = [mode.name for mode in MODES if mode.cluster.fixed_workers]


def settings(name):
    rule = MODES[name].own_rule
    return {"mode.name": name} | ({"optimizer.rule": rule} if rule else {})


def assert_refused(mode, *command, says, **environment):
    options = [word for key, value in settings(mode).items() for word in ("--set", f"{key}={value}")]
    told = CliRunner().invoke(main, [*command, *options], env=environment)
    why = f"mode {mode} keeps its number of workers: {MODES[mode].cluster.fixed_workers}"
    assert_one_line(told.exit_code, told.stderr, [says, why])
    assert told.stdout == ""


def test_async_bounded_and_diloco_alone_may_change_it():
    assert set(MODES.names) - set(FIXED) == {"async", "bounded", "diloco"}


@pytest.mark.parametrize(
    ("mode", "option", "number"), [*((mode, "--max-workers", 5) for mode in FIXED), ("sync", "--min-workers", 1)]
)
def test_run_refuses_bounds(mode, option, number, tmp_path):
    field = option.removeprefix("--").replace("-", "_")
    command = ("run", "--run-dir", str(tmp_path / "run"), "--dataset", "synthetic", option, str(number))
    assert_refused(mode, *command, says=f"cluster.{field}: got {number}: mode")
    assert not (tmp_path / "run").exists()
