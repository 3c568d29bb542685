import json
import os
import shutil
import signal
from types import SimpleNamespace

import pytest
import yaml

from ps_cluster.config import recipe
from ps_cluster.config.networks import NETWORKS
from ps_cluster.config.schema import MOST_EPOCHS
from ps_cluster.errors import INTERRUPTED, UserError
from ps_cluster.installation import CONFIG_FOLDER
from ps_cluster.launch import network_check
from ps_cluster.launch.network_check import NetworkFacts
from ps_cluster.runs import checkpoints
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.tools.compare import comparison_run
from ps_cluster.tools.compare.comparison_plan import PLAN, planned_runs, read_comparison, read_plan, training_order
from ps_cluster.tools.compare.fairness import differences_in_settings
from tests.helpers.data import only_named

PER_UPDATE, PER_WORKER = ["same_per_update"], ["same_per_worker"]
SMALL = {"model.name": "tutorial_cnn", "data.dataset": "synthetic", "training.steps": 10}
EPOCHS = SMALL | {"training.steps": None}


@pytest.fixture(autouse=True)
def no_rates_found(monkeypatch):
    """As for a network whose recipe has no rates of single modes."""
    monkeypatch.setattr(recipe, "found_rates", lambda *_: ())


def comparison(settings=SMALL, **changes):
    return read_comparison(None, {"batches": PER_UPDATE, "seeds": 1} | changes, settings)


def plan(settings=SMALL, **changes):
    return planned_runs(comparison(settings, **changes))


def arms(*modes, **settings):
    return [{"mode": mode, "set": settings} for mode in modes]


def by_mode(runs):
    return {run.config.mode.name: run.config for run in runs}


def test_every_update_sees_as_many_images_in_every_mode_and_the_learning_rate_follows():
    runs = by_mode(plan(arms=arms("async", "sync", "sync-ps", "single")))
    assert {config.examples_per_update for config in runs.values()} == {384}
    assert {round(config.optimizer.learning_rate, 9) for config in runs.values()} == {0.06}


def test_every_worker_has_the_same_batch_and_the_learning_rate_follows_the_update():
    runs = by_mode(plan(EPOCHS, arms=arms("async", "sync", "single"), batches=PER_WORKER))
    assert {config.training.batch_size_per_worker for config in runs.values()} == {128}
    rates = {mode: round(config.optimizer.learning_rate, 9) for mode, config in runs.items()}
    assert rates == {"async": 0.02, "sync": 0.06, "single": 0.02}


@pytest.mark.parametrize(
    "changes",
    [
        {"arms": arms("async", "sync"), "batches": [*PER_UPDATE, *PER_WORKER]},
        {"arms": arms("async", "sync")},
        {"arms": [{"mode": "async", "batches": [*PER_UPDATE, *PER_WORKER]}, {"mode": "sync"}], "batches": PER_UPDATE},
    ],
    ids=["named", "default", "of one arm"],
)
def test_a_run_that_serves_both_batch_arms_is_trained_once(changes):
    names = [run.name for run in planned_runs(read_comparison(None, {"seeds": 1} | changes, EPOCHS))]
    assert names == ["async-batch=384-none-seed0", "sync-batch=128-none-seed0", "async-batch=128-none-seed0"]


def test_the_same_images_are_trained_on_in_all_modes():
    modes = arms("async", "sync", "sync-ps", "single")
    runs = plan(EPOCHS | {"training.epochs": 2}, arms=modes, batches=[*PER_UPDATE, *PER_WORKER])
    configs = [run.config for run in runs]
    images = [config.total_updates(20_000) * config.examples_per_update for config in configs]
    assert images == pytest.approx([40_000] * 6, rel=0.01)


def test_seeds_are_outermost_and_a_straggler_without_its_worker_is_left_out():
    runs = plan(seeds=2, arms=arms("async", "single"), stragglers=["none", "2:5x"])
    assert [(r.config.mode.name, r.config.cluster.straggler, r.config.training.seed) for r in runs] == [
        (mode, straggler, seed)
        for seed in (0, 1)
        for mode, straggler in (("async", "none"), ("single", "none"), ("async", "2:5x"))
    ]


def test_arms_whose_settings_look_alike_in_a_name_are_all_trained():
    factors = [[{"match": match, "factor": 0.0}] for match in ("conv*", "conv/")]
    own = [arm for one in factors for arm in arms("async", **{"optimizer.learning_rate_factors": one})]
    first, second = plan(arms=own)
    assert second.name.startswith(f"{first.name}-")
    found = [[one.match for one in run.config.optimizer.learning_rate_factors] for run in (first, second)]
    assert found == [["conv*"], ["conv/"]]


def test_workers_are_placed_alike_in_all_modes_unless_an_arm_says_otherwise():
    runs = plan(arms=arms("async", "sync", "sync-ps", "bounded"))
    assert {run.config.cluster.pin_workers for run in runs} == {False}
    (run,) = plan(arms=arms("async", **{"cluster.pin_workers": True}))
    assert run.config.cluster.pin_workers is True


def test_updates_that_see_different_numbers_of_images_are_no_equal_work():
    with pytest.raises(UserError, match="training.steps"):
        plan(arms=arms("async", "sync"), batches=PER_WORKER)
    with pytest.raises(UserError, match="arms.0.set"):
        plan(arms=arms("async", training={"seed": 1}))


@pytest.mark.parametrize("file", sorted(CONFIG_FOLDER.glob("compare-*.yaml")), ids=lambda file: file.name)
def test_every_comparison_in_configs_can_be_run(file):
    assert len(planned_runs(read_comparison(file, {}, {}))) >= 5


@pytest.fixture
def trained(monkeypatch):
    """`names` of the runs that `train_all` trains; each ends at step 9 with `outcome`, its newest score of step `scored`.

    Each run returns `code`. The `asked_in`-th run is asked to stop so late that it ends as usual.
    """
    trained = SimpleNamespace(names=[], outcome="completed", scored=9, code=0, asked_in=0)

    def start_run(config, root, *, view, anew, stop_requests):
        assert anew
        trained.names.append(root.name)
        with stop_requests:
            if len(trained.names) == trained.asked_in:
                os.kill(os.getpid(), signal.SIGTERM)
        shutil.rmtree(root, ignore_errors=True)
        run_dir = RunDir.create(root)
        run_dir.summary.write_text(json.dumps({"outcome": trained.outcome, "evaluation": {"step": trained.scored}}))
        checkpoints.mark_ended(run_dir.checkpoints, last_step=9, outcome="completed")
        return trained.code

    monkeypatch.setattr(comparison_run, "resolve_data", lambda *_, notify: only_named())
    monkeypatch.setattr(comparison_run, "start_run", start_run)
    return trained


def test_a_folder_without_a_plan_has_an_empty_one_and_a_damaged_plan_is_named_in_one_line(tmp_path):
    assert read_plan(tmp_path).trained_in_this_order == [] and read_plan(tmp_path).settings is None
    (tmp_path / PLAN).write_text("trained_in_this_order: 7")
    with pytest.raises(UserError, match=r"^'.*comparison.yaml': trained_in_this_order: got 7: "):
        read_plan(tmp_path)


def test_finished_runs_are_kept_and_the_interrupted_one_is_trained_anew(tmp_path, trained):
    begun, output = comparison(arms=arms("async", "single"), seeds=2), tmp_path / "out"
    roots, code = comparison_run.train_all(begun, output)
    runs = training_order(planned_runs(begun))
    order = [run.name for run in runs]
    assert code == 0 and trained.names == order and sorted(order) == sorted(root.name for root in roots)
    assert yaml.safe_load((output / PLAN).read_text())["trained_in_this_order"] == order and len(roots) == 4
    assert read_plan(output).trained_in_this_order == order
    assert read_plan(output).rates_scaled == [run.name for run in runs if run.scaled] != []
    summary = RunDir(roots[2]).summary
    summary.write_text(json.dumps({"outcome": "stopped"}))
    (roots[2] / "left over").touch()
    trained.names.clear()
    assert comparison_run.train_all(begun, output) == (roots, 0)
    assert trained.names == [roots[2].name] and not (roots[2] / "left over").exists()


@pytest.mark.parametrize("ended", [{"outcome": "stopped"}, {"scored": 6}], ids=["trained", "scored"])
def test_a_run_that_was_interrupted_while_it_was_trained_or_scored_stops_the_comparison(tmp_path, trained, ended):
    vars(trained).update(ended)
    _, code = comparison_run.train_all(comparison(), tmp_path / "out")
    assert code == INTERRUPTED and len(trained.names) == 1


@pytest.mark.parametrize(("outcome", "code"), [("completed", 0), ("diverged", 1)])
def test_a_run_that_ends_after_a_request_to_stop_is_kept_and_is_the_last_one(tmp_path, trained, outcome, code):
    trained.outcome, trained.code, trained.asked_in = outcome, code, 2
    begun = comparison(arms=arms("async", "single"), seeds=2)
    _, code = comparison_run.train_all(begun, tmp_path / "out")
    assert code == 128 + signal.SIGTERM and len(trained.names) == 2
    trained.asked_in = 4
    _, code = comparison_run.train_all(begun, tmp_path / "out")
    assert code == 0, "the request came in the last run, so nothing is left to train"
    assert trained.names == [run.name for run in training_order(planned_runs(begun))]


def test_a_baseline_that_is_no_arm_is_refused_before_anything_is_trained(tmp_path, trained):
    begun = comparison(SMALL | {"mode.max_staleness": 2}, arms=arms("async", "bounded"))
    message = r"--baseline: no arm is called 'bounded': did you mean 'bounded s=2'\? there are "
    with pytest.raises(UserError, match=message):
        comparison_run.train_all(begun, tmp_path / "out", baseline="bounded")
    assert trained.names == [] and not (tmp_path / "out").exists()
    comparison_run.train_all(begun, tmp_path / "out", baseline="bounded s=2")
    assert len(trained.names) == 2


def test_seconds_between_checkpoints_are_refused_because_runs_are_scored_after_the_same_examples():
    with pytest.raises(
        UserError, match="checkpoints.every_seconds: got 5.0.*same numbers of examples: set score_every_epochs"
    ):
        plan(SMALL | {"checkpoints.every_seconds": 5.0})
    with pytest.raises(UserError, match="checkpoints.every_seconds: got 5.0.*same times: leave this setting out"):
        plan(EPOCHS | {"checkpoints.every_seconds": 5.0}, seconds=60)


def test_with_a_time_limit_all_modes_train_and_are_scored_by_the_clock():
    for run in plan(EPOCHS, arms=arms("async", "sync", "single"), seconds=240.0):
        training, scoring = run.config.training, run.config.checkpoints
        assert run.config.schedule.kind == "constant" and not run.config.schedule.image_scales
        assert (training.max_seconds, training.steps, training.epochs) == (240.0, None, MOST_EPOCHS)
        assert (scoring.every_seconds, scoring.every_epochs, run.config.evaluation.after_training) == (30.0, None, True)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("schedule.kind", "cosine"),
        ("schedule.warmup_fraction", 0.1),
        ("schedule.image_scales", [{"scale": 0.5, "until": 0.3}]),
    ],
)
def test_settings_that_need_the_number_of_updates_are_refused_with_a_time_limit(key, value):
    with pytest.raises(
        UserError, match=f"{key}: got .*unknown if every arm trains for the same time: leave out {key}, or"
    ):
        plan(EPOCHS | {key: value}, seconds=240.0)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("training.epochs", 3.0),
        ("training.steps", 100),
        ("training.max_seconds", 30.0),
        ("checkpoints.every_epochs", 1.0),
    ],
)
def test_another_length_than_the_seconds_is_refused(key, value):
    for settings, arm in ((EPOCHS | {key: value}, {}), (EPOCHS, {key: value})):
        with pytest.raises(
            UserError, match=f"{key}: got {value}: every arm of this comparison trains for 240 s: leave out {key}"
        ):
            plan(settings, arms=arms("async", **arm), seconds=240.0)
    problem = "score_every_epochs: got 0.5: in a comparison with 'seconds', every run is scored 8 times"
    with pytest.raises(UserError, match=problem):
        plan(EPOCHS, seconds=240.0, score_every_epochs=0.5)


def test_a_shared_setting_that_one_mode_does_not_use_is_no_difference():
    runs = plan(SMALL | {"cluster.intra_op_threads": 2})
    summary = SimpleNamespace(**dict.fromkeys(("dataset", "dataset_kind", "model", "precision"), "the same"))
    records = [SimpleNamespace(config=run.config, summary=summary) for run in runs]
    assert {run.config.cluster.intra_op_threads for run in runs} == {1, 2} and differences_in_settings(records) == []


def test_another_comparison_is_not_mixed_in(tmp_path, trained):
    comparison_run.train_all(comparison(seeds=2), tmp_path / "out")
    for other in ({"seeds": 1}, {"seeds": 2, "arms": arms("async")}, {"seeds": 3, "arms": arms("async")}):
        with pytest.raises(UserError, match="holds another comparison"):
            comparison_run.train_all(comparison(**other), tmp_path / "out")


def test_more_seeds_continue_a_comparison_that_was_made_with_fewer(tmp_path, trained):
    few, _ = comparison_run.train_all(comparison(seeds=1), tmp_path)
    trained.names.clear()
    many, code = comparison_run.train_all(comparison(seeds=3), tmp_path)
    assert code == 0 and set(few) < set(many) and len(many) == 3 * len(few)
    assert set(trained.names) == {root.name for root in set(many) - set(few)}, "and no run of the first seed"
    assert read_plan(tmp_path).seeds == 3 and len(read_plan(tmp_path).trained_in_this_order) == len(many)


def test_all_modes_are_scored_after_the_same_images_and_only_when_training_has_ended():
    runs = plan(arms=arms("async", "sync", "sync-ps", "single"))
    assert {run.config.checkpoints.every_epochs for run in runs} == {0.125}
    assert {run.config.evaluation.after_training for run in runs} == {True}
    (run,) = plan(arms=arms("async"), score_every_epochs=0.5)
    assert run.config.checkpoints.every_epochs == 0.5


def test_the_arms_of_a_seed_are_trained_in_an_order_drawn_from_the_seed():
    runs = plan(seeds=6, arms=arms("async", "sync", "sync-ps", "bounded", "single"))
    order = training_order(runs)
    assert order == training_order(runs) and sorted(run.name for run in order) == sorted(run.name for run in runs)
    seeds = [run.config.training.seed for run in order]
    assert seeds == sorted(seeds), "seed by seed"
    by_seed = {tuple(run.config.mode.name for run in order if run.config.training.seed == seed) for seed in range(6)}
    assert len(by_seed) > 3, "and no arm always after the same other"


def test_an_arm_may_set_a_part_of_a_setting():
    (run,) = plan(arms=arms("async", **{"data.augmentation.flip": "none"}))
    assert run.config.data.augmentation.flip == "none"


def test_a_rate_that_an_arm_sets_for_itself_is_not_scaled():
    own = [*arms("sync"), *arms("sync", **{"optimizer.learning_rate": 0.02})]
    settings = SMALL | {"optimizer.rule": "adam", "optimizer.learning_rate": 0.01}
    rates = [(run.config.optimizer.learning_rate, run.scaled) for run in plan(settings, arms=own, batches=PER_WORKER)]
    assert rates == [(pytest.approx(0.03), True), (0.02, False)]


def trained_configs(given):
    """Return the complete configurations with which the runs of a comparison are trained."""
    planned = comparison_run._with_compiled_rate(given, planned_runs(given), only_named())
    return [comparison_run._complete(run.config, planned, only_named()) for run in planned_runs(planned)]


def test_rates_of_a_compiled_network_are_scaled_from_the_rate_of_its_compile(tmp_path, monkeypatch):
    (tmp_path / "my.py").write_text("def build():\n    raise AssertionError('nobody builds it here')\n")
    settings = EPOCHS | {"model.name": NETWORKS.allow_code_of("my.py:build", tmp_path)}
    own = arms("bounded", **{"optimizer.learning_rate": 0.5, "mode.max_staleness": 2})  # of no other arm
    given = comparison(settings, arms=[*own, *arms("async", "sync")], batches=PER_WORKER)
    facts = NetworkFacts(optimizer={"rule": "momentum", "momentum": 0.8, "learning_rate": 0.1, "weight_decay": 0.0})
    monkeypatch.setattr(network_check, "check_network", lambda *_: facts)
    configs = {config.mode.name: config for config in trained_configs(given)}
    methods = {mode: config.staleness.method for mode, config in configs.items()}
    assert methods == {"bounded": "none", "async": "gap_aware", "sync": "none"}, "as of a run"
    found = {mode: config.optimizer for mode, config in configs.items()}
    assert {mode: (one.rule, one.momentum) for mode, one in found.items()} == dict.fromkeys(found, ("momentum", 0.8))
    rates = {mode: one.learning_rate for mode, one in found.items()}
    assert rates == {"bounded": 0.5, "async": 0.1, "sync": pytest.approx(0.3)}
    given = comparison(settings, arms=arms("async", "diloco"), batches=PER_WORKER)
    assert [config.staleness.method for config in trained_configs(given)] == ["gap_aware", "none"]


def test_the_schedule_of_a_compiled_network_is_that_of_all_arms_and_needs_a_number_of_updates(
    tmp_path, monkeypatch, trained
):
    (tmp_path / "my.py").write_text("def build():\n    raise AssertionError('nobody builds it here')\n")
    settings = EPOCHS | {"model.name": NETWORKS.allow_code_of("my.py:build", tmp_path)}
    cosine = {
        "kind": "keras",
        "function": "CosineDecay",
        "arguments": {"initial_learning_rate": 0.1, "decay_steps": 50},
    }
    facts = NetworkFacts(optimizer={"rule": "sgd", "learning_rate": 0.1, "weight_decay": 0.0}, schedule=cosine)
    monkeypatch.setattr(network_check, "check_network", lambda *_: facts)
    given = comparison(settings, arms=arms("async", "sync"), batches=PER_WORKER)
    assert [config.schedule.kind for config in trained_configs(given)] == ["keras", "keras"]
    names = [run.name for run in planned_runs(given)]
    assert names == ["async-batch=128-none-seed0", "sync-batch=128-none-seed0"], "without the schedule"
    for of_arm in ({"schedule.kind": "cosine", "schedule.end_factor": 0.1}, {"schedule.kind": "constant"}):
        given = comparison(settings, arms=[*arms("async", **of_arm), *arms("sync")], batches=PER_WORKER)
        assert [config.schedule.kind for config in trained_configs(given)] == [of_arm["schedule.kind"], "keras"]
    own = [*arms("async", **{"schedule.kind": "compiled"}), *arms("sync")]
    given = comparison(settings | {"schedule.kind": "constant"}, arms=own, batches=PER_WORKER)
    assert [config.schedule.kind for config in trained_configs(given)] == ["keras", "constant"]
    timed = comparison(settings, arms=arms("async", "sync"), batches=PER_WORKER, seconds=60)
    own_rule = {"optimizer.rule": "adam", "optimizer.learning_rate": 0.001}
    mixed = comparison(settings, arms=[*arms("async"), *arms("sync", **own_rule)], batches=PER_WORKER, seconds=60)
    for given in (timed, mixed):
        with pytest.raises(UserError, match="--seconds: the network was compiled with a schedule"):
            comparison_run.train_all(given, tmp_path / "out")
    assert trained.names == []
    constant = {"schedule.kind": "constant"}
    timed = comparison(settings, arms=arms("async", "sync", **constant), batches=PER_WORKER, seconds=60)
    assert [config.schedule.kind for config in trained_configs(timed)] == ["constant", "constant"]
