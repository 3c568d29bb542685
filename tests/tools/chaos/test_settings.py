"""Settings of a chaos run, its options, and the plan of its faults."""

import signal
import subprocess
from itertools import islice, pairwise

import pytest
from click.testing import CliRunner

from ps_cluster.cli.main import main
from ps_cluster.config import build_config
from ps_cluster.config.modes import MODES
from ps_cluster.config.networks import NETWORKS
from ps_cluster.errors import UserError
from ps_cluster.tools.chaos.chaos_report import Evidence
from ps_cluster.tools.chaos.chaos_run import allowed_here, report_of, run_chaos
from ps_cluster.tools.chaos.kind import LONGEST_PAUSE_S, ChaosFailed
from ps_cluster.tools.chaos.kinds import FAULTS
from ps_cluster.tools.chaos.kinds.signals import Signalled
from ps_cluster.tools.chaos.runner import ChaosBounds
from ps_cluster.tools.chaos.settings import (
    SHORTEST_COOL_DOWN,
    ChaosSettings,
    constant_rate,
    steps_with_cool_down,
    with_cool_down,
)


def test_both_runs_have_the_same_learning_rate_at_every_step():
    import tensorflow as tf

    from ps_cluster.training.learning_rate import schedule_factor

    def factor(values, step):
        config = build_config(None, {"model.name": "tutorial_cnn"}).with_values(values)
        return float(schedule_factor(config.schedule, tf.constant(step, tf.int64), config.training.steps))

    steps = 1234
    total = steps_with_cool_down(steps, SHORTEST_COOL_DOWN)
    before, after = constant_rate(), with_cool_down(steps, total)
    assert all(factor(before, step) == factor(after, step) == 1 for step in (0, 1, steps // 2, steps - 1))
    assert total >= steps + 500
    of_default = [build_config().with_values(values).schedule.image_scales for values in (before, after)]
    assert of_default == [(), ()] and build_config().schedule.image_scales, (
        "the default network has smaller images at first"
    )
    falling = [factor(after, step) for step in (steps - 1, (steps + total) // 2, total - 1)]
    assert falling == sorted(falling, reverse=True) and falling[-1] == pytest.approx(0.05, abs=1e-5)


def test_the_fastest_run_does_not_finish_its_planned_steps_before_the_last_of_10_000_faults():
    config = build_config().with_values(constant_rate())
    fastest_steps_per_s, longest_cut_s = 1000, 30
    assert config.training.steps > 10_000 * fastest_steps_per_s * (
        longest_cut_s + LONGEST_PAUSE_S + ChaosBounds.recovery_s
    )


def test_the_settings_reach_the_run():
    options = ChaosSettings(seed=3, workers=2, parameter_servers=4, model="airbench").run_options({"a.b": 1})
    text = " ".join(options)
    assert "--seed 3" in text and "--workers 2" in text and "--ps 4" in text
    assert "--dataset synthetic" in text and "--model airbench" in text and "--set a.b=1" in text
    of_tables = ChaosSettings(dataset="clicks", model="dlrm").run_options({})
    assert of_tables[of_tables.index("--dataset") + 1] == "clicks"
    assert "--ps" not in ChaosSettings(mode="sync").run_options({}), "a mode without parameter servers"


def test_a_folder_that_is_not_empty_is_left_alone(tmp_path):
    (tmp_path / "mine").touch()
    with pytest.raises(UserError, match="not empty"):
        run_chaos(ChaosSettings(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_the_rate_is_the_one_that_such_a_training_begins_with(mode):
    """Without a warm-up, at the highest rate of the recipe, an undisturbed run had 10 % (tutorial_cnn, 3 workers)."""
    recipe = build_config(None, {"mode.name": mode, "model.name": "tutorial_cnn", "cluster.workers": 3})
    (rate,) = (
        float(option.partition("=")[2])
        for option in ChaosSettings(mode=mode).run_options({})
        if option.startswith("optimizer.learning_rate=")
    )
    assert rate == pytest.approx(recipe.schedule.start_factor * recipe.optimizer.learning_rate)
    assert rate < recipe.optimizer.learning_rate


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--mode", "sync-ps", "--ps", "3"], "mode sync-ps works with at most 1"),
        (["--mode", "sync", "--ps", "3"], "--ps: got 3: mode sync has no parameter servers"),
        (["--kinds", "kill worker,kill cat"], "'kill cat': did you mean 'kill ps'?"),
        (["--mode", "single"], "'single': "),
        (["--mode", "elastic"], "'elastic': "),
    ],
)
def test_an_unknown_cluster_or_kind_is_refused_before_anything_starts(options, words, tmp_path):
    result = CliRunner().invoke(main, ["chaos", "--run-dir", str(tmp_path / "chaos"), *options])
    assert result.exit_code == 2 and words in result.output and len(result.output.strip().splitlines()) == 1
    assert not (tmp_path / "chaos").exists()


def test_a_run_on_hosts_gets_the_faults_of_hosts_and_none_that_need_the_launcher():
    names = {kind.name for kind in ChaosSettings(hosts=3).wanted()}
    assert names >= {"kill worker", "kill ps+chief", "host vanishes", "cut off chief"}
    assert not names & {"freeze worker", "hang up", "link cut", "fork server stopped"}
    assert not {kind.name for kind in ChaosSettings().wanted()} & {"host vanishes", "cut off chief"}


def test_where_workers_wait_for_each_other_none_is_expected_to_go_on_without_one():
    kinds = ("host vanishes", "worker never back", "kill worker")
    reason = "in mode sync-ps no worker continues without the others"
    found = ChaosSettings(kinds=kinds, hosts=3, mode="sync-ps").wanted()
    assert list(found.values()) == [reason, reason, None]


@pytest.mark.parametrize(
    ("kind", "hosts", "reason"),
    [
        ("freeze ps", 3, "it needs the launcher, and with --hosts there is none"),
        ("host vanishes", None, "it needs --hosts"),
    ],
)
def test_a_fault_for_another_kind_of_run_is_skipped_with_the_reason(kind, hosts, reason):
    assert ChaosSettings(kinds=(kind,), hosts=hosts).wanted() == {FAULTS[kind]: reason}


def possible(mode):
    """The kinds that the mode can have."""
    return [kind for kind, reason in ChaosSettings(mode=mode).wanted().items() if reason is None]


def first(count, seed, mode="async", workers=3, parameter_servers=2):
    settings = ChaosSettings(seed, count, mode=mode, workers=workers, parameter_servers=parameter_servers)
    return list(settings.plan(possible(mode)))


def test_a_plan_is_the_same_for_the_same_seed_and_another_for_another():
    assert first(40, seed=7) == first(40, seed=7)
    assert first(20, seed=7) == first(40, seed=7)[:20]
    assert first(20, seed=7) != first(20, seed=8)


@pytest.mark.parametrize("mode", ["async", "sync-ps", "sync"])
@pytest.mark.parametrize("seed", range(5))
def test_every_kind_comes_soon_and_the_whole_cluster_is_hit_at_most_every_other_time(seed, mode):
    faults = first(40, seed, mode)
    assert {fault.kind for fault in faults[:20]} == set(possible(mode))
    assert all(one.restarts_whole_cluster != following.restarts_whole_cluster for one, following in pairwise(faults))


class Picky(Signalled):
    """Of a system that allows nothing."""

    def why_not(self, run):
        return "not here"


def test_what_the_mode_or_the_system_does_not_allow_is_sorted_out_with_the_reason():
    picky, other = Picky("picky", (), signal.SIGKILL), Signalled("other", (), signal.SIGKILL)
    kinds = {FAULTS["kill ps"]: "mode sync has no ps", picky: None, other: None}
    lines = []
    skipped = {"kill ps": "mode sync has no ps", "picky": "not here"}
    assert allowed_here(kinds, None, lines.append) == ([other], skipped)
    assert lines == ["skipped: kill ps: mode sync has no ps", "skipped: picky: not here"]
    with pytest.raises(ChaosFailed, match="none of the kinds of fault can be injected here: not here"):
        allowed_here({picky: None}, None, lines.append)


def test_kinds_that_all_take_the_cluster_along_follow_each_other():
    kinds = [FAULTS["kill ps"], FAULTS["hang up"]]
    faults = list(islice(ChaosSettings(minutes=1).plan(kinds), 4))
    assert {fault.kind for fault in faults[:2]} == {fault.kind for fault in faults[2:]} == set(kinds)


def test_victims_are_tasks_of_the_run_and_each_of_them_is_hit_sooner_or_later():
    victims = {victim for fault in first(400, seed=0) for victim in fault.victims}
    expected = ["chief-0", "evaluator-0", "ps-0", "ps-1", "worker-0", "worker-1", "worker-2"]
    assert sorted(map(str, victims)) == expected


def test_in_mode_sync_the_death_of_a_worker_takes_all_along_and_there_is_no_chief_and_no_ps_to_hit():
    refused = {kind.name: reason for kind, reason in ChaosSettings(mode="sync").wanted().items() if reason}
    assert refused["kill ps"] == "mode sync has no ps"
    assert refused["kill ps+chief"] == "mode sync has no chief and no ps"
    assert all("ps" in name or "chief" in name for name in refused)
    assert FAULTS["kill worker"].restarts_whole_cluster(MODES["sync"].cluster.on_death)


class Failing:
    """An experiment that fails with an error."""

    def __init__(self, root, error):
        self.root, self.error, self.evidence = root, error, Evidence(ChaosSettings())

    def carry_out(self):
        raise self.error


@pytest.mark.parametrize(
    "error", [subprocess.TimeoutExpired("cc", 60), FileNotFoundError("it has gone"), KeyError("of a user's fault")]
)
def test_there_is_a_report_and_a_traceback_where_the_experiment_itself_fails(error, tmp_path):
    report = report_of(Failing(tmp_path, error))
    assert not report.passed
    (problem,) = report.problems
    assert problem == (
        f"the experiment itself failed: {type(error).__name__}: {error}; the traceback is in experiment.err"
    )
    assert "in carry_out" in (tmp_path / "experiment.err").read_text()


def test_a_damaged_file_of_the_run_is_a_problem_in_the_report(tmp_path):
    report = report_of(Failing(tmp_path, UserError("'summary.json' is no JSON")))
    assert report.problems == ["'summary.json' is no JSON"] and not list(tmp_path.iterdir())


def test_a_network_of_the_user_keeps_the_rate_of_its_compile(tmp_path):
    (tmp_path / "my.py").write_text("def network():\n    raise AssertionError('nobody builds it here')\n")
    settings = ChaosSettings(model=NETWORKS.allow_code_of("my.py:network", tmp_path))
    assert not any("learning_rate" in option for option in settings.run_options({}))
    assert any("learning_rate" in option for option in ChaosSettings().run_options({}))
