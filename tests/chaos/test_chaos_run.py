import pytest
from click.testing import CliRunner

from ps_cluster.cli.main import main
from ps_cluster.config import build_config
from ps_cluster.errors import UserError
from ps_cluster.tools.chaos.chaos_run import run_chaos
from ps_cluster.tools.chaos.settings import SHORTEST_COOL_DOWN, ChaosSettings, constant_rate, with_cool_down


@pytest.mark.parametrize("steps", [100, 1234, 20_000])
def test_both_runs_have_the_same_learning_rate_at_every_step(steps):
    import tensorflow as tf

    from ps_cluster.training.schedules import schedule_factor

    def factor(values, step):
        config = build_config(None, {"model.name": "tutorial_cnn"}).with_values(values)
        return float(schedule_factor(config.schedule, tf.constant(step, tf.int64), config.training.steps))

    before, after = constant_rate(10 * steps), with_cool_down(steps, SHORTEST_COOL_DOWN)
    assert all(factor(before, step) == factor(after, step) == 1 for step in (0, 1, steps // 2, steps - 1))
    total = after["training.steps"]
    assert total >= steps + 500
    falling = [factor(after, step) for step in (steps - 1, (steps + total) // 2, total - 1)]
    assert falling == sorted(falling, reverse=True) and falling[-1] == pytest.approx(0.05, abs=1e-5)


def test_the_run_gets_more_steps_than_fit_between_the_faults_and_never_more_than_are_allowed():
    assert ChaosSettings(faults=20).most_steps() == 200_000
    assert ChaosSettings(minutes=60).most_steps() == 1_220_000
    assert ChaosSettings(minutes=10_000).most_steps() == 10_000_000


def test_the_settings_reach_the_run():
    options = ChaosSettings(seed=3, workers=2, parameter_servers=4, model="airbench").run_options({"a.b": 1})
    text = " ".join(options)
    assert "--seed 3" in text and "--workers 2" in text and "--ps 4" in text
    assert "--dataset synthetic" in text and "--model airbench" in text and "--set a.b=1" in text


def test_a_folder_that_is_not_empty_is_left_alone(tmp_path):
    (tmp_path / "mine").touch()
    with pytest.raises(UserError, match="not empty"):
        run_chaos(ChaosSettings(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_mode_without_parameter_servers_is_given_none():
    assert "--ps" not in ChaosSettings(mode="sync").run_options({})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--mode", "sync-ps", "--ps", "3"], "mode sync-ps works with 1"),
        (["--mode", "sync", "--ps", "3"], "--ps: got 3: mode sync has no parameter servers"),
        (["--kinds", "kill worker,kill cat"], "'kill cat': did you mean 'kill ps'?"),
        (["--kinds", "absent.py:Fault"], "--kinds: "),
        (["--mode", "single"], "'single': "),
    ],
)
def test_an_unknown_cluster_or_kind_is_refused_before_anything_starts(options, words, tmp_path):
    result = CliRunner().invoke(main, ["chaos", "--run-dir", str(tmp_path / "chaos"), *options])
    assert result.exit_code == 2 and words in result.output and len(result.output.strip().splitlines()) == 1
    assert not (tmp_path / "chaos").exists()


def test_a_number_of_faults_and_a_time_together_are_refused():
    result = CliRunner().invoke(main, ["chaos", "--faults", "3", "--minutes", "1"])
    assert result.exit_code == 2 and "--faults and --minutes" in result.output
