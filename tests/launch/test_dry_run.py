"""What `run --dry-run` prints."""

import pytest
from click.testing import CliRunner

from ps_cluster.cli.main import main
from ps_cluster.config import build_config, resolve
from ps_cluster.errors import UserError
from ps_cluster.launch.dry_run import lines
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.system.limits import FreeMemory

GB = 10**9


def plan(values, free=8 * GB):
    return list(lines(resolve(None, values), FreeMemory(free)))


@pytest.mark.parametrize(
    "values",
    [
        {"mode.name": "bounded", "mode.max_staleness": 2, "training.steps": 5},
        {"training.class_weights": {"a b": 2.0, "null": 0.5, "7": 1.5}},
        {"model.name": "mlp", "checkpoints.every_epochs": 1e-05, "cluster.straggler": "1:+0.2s;2:5x"},
    ],
)
def test_what_is_printed_is_a_file_that_gives_the_same_configuration(values, tmp_path):
    (tmp_path / "again.yaml").write_text("\n".join(plan(values)))
    assert build_config(tmp_path / "again.yaml") == build_config(None, values)


def test_each_value_is_beside_the_layer_that_it_comes_from():
    told = plan({"cluster.workers": 2})
    (workers,) = [line for line in told if line.strip().startswith("workers:")]
    assert workers.split() == ["workers:", "2", "#", "options"]
    assert not [line for line in told if ": " in line and "#" not in line]


def test_tasks_and_memory_are_those_of_the_run():
    told = plan({"cluster.workers": 2, "mode.name": "sync", "cluster.evaluator": False})
    assert "# tasks: worker-0, worker-1" in told and told[-1] == "# nothing was started"
    assert any(line.startswith("# memory expected: 1.") for line in told)
    assert any("memory: the run takes about" in line for line in plan({}, free=GB))


def test_a_run_that_could_not_be_started_is_refused():
    with pytest.raises(UserError, match="cluster.workers: got 9: one machine"):
        plan({"cluster.workers": 9})


def run(*options, **variables):
    return CliRunner().invoke(main, ["run", *map(str, options), "--dry-run"], env=variables)


def test_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run("--learning-rate", 0.3, "--optimizer", "sgd", "--run-dir", tmp_path / "run")
    assert result.exit_code == 0 and list(tmp_path.iterdir()) == []
    assert "  learning_rate: 0.3                          # options" in result.stdout


def test_a_resumed_run_is_as_it_was_whatever_the_environment_says(tmp_path):
    run_dir = RunDir.create(tmp_path / "run")
    run_dir.config.write_text(build_config(None, {"training.seed": 5, "training.epochs": 1.0}).to_yaml())
    result = run("--resume", run_dir.root, "--epochs", 2, PS_CLUSTER__TRAINING__SEED="7")
    assert result.exit_code == 0, result.output
    assert "PS_CLUSTER__TRAINING__SEED is ignored: --resume continues the run with its own settings" in result.stdout
    told = {line.split(":")[0].strip(): line for line in result.stdout.splitlines() if "#" in line}
    assert told["seed"].split()[1] == "5" and str(run_dir.config) in told["seed"]
    assert told["epochs"].split()[1:] == ["2.0", "#", "options"]
