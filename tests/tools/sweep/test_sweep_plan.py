import pytest

from ps_cluster.config import build_config
from ps_cluster.errors import UserError
from ps_cluster.files.yaml_files import dump_yaml
from ps_cluster.runs.result_rows import EvaluationRow
from ps_cluster.tools.sweep.methods import STAGES
from ps_cluster.tools.sweep.sweep_plan import SweepPlan, checked_space, read_sweep
from ps_cluster.tools.sweep.sweep_run import preview

RATE = "optimizer.learning_rate"
SETTINGS = {"data.dataset": "synthetic", "model.name": "tutorial_cnn", "model.precision": "float32"}


def plan_of(dataset, vary=None, settings=(), **changes):
    sweep = read_sweep(None, {"vary": vary or {RATE: "0.01..1:log"}} | changes, SETTINGS | dict(settings))
    return SweepPlan.on(dataset, sweep, checked_space(sweep))


def test_a_trial_is_a_single_process_that_is_judged_on_a_tenth_of_the_training_examples(dataset):
    config = plan_of(dataset).config({RATE: 0.05})
    assert (config.mode.name, config.optimizer.learning_rate) == ("single", 0.05)
    assert config.evaluation.validation_examples == 100 and config.cluster.evaluator
    assert plan_of(dataset, settings={"evaluation.validation_examples": 300}).dataset.validation_examples == 300


@pytest.mark.parametrize(
    ("vary", "settings", "told"),
    [
        (
            {RATE: "0.1,1"},
            {},
            "each trial is trained in mode single, by one process, so no gradient is stale. The learning rate that is best",
        ),
        ({RATE: "0.1,1"}, {"mode.name": "async"}, "each trial is trained in mode async"),
        ({"mode.name": "single,async"}, {}, "each trial is trained in the mode that --vary gives it"),
    ],
)
def test_a_sweep_says_in_which_mode_it_trains(vary, settings, told):
    sweep = read_sweep(None, {"vary": vary}, SETTINGS | settings)
    assert any(line.startswith(told) for line in preview(sweep, 2))


def test_trials_are_judged_by_the_monitor_and_with_patience_by_their_best_checkpoint(dataset):
    rows = [
        EvaluationRow(step=step, test_loss=1.0, validation_accuracy=0.5, validation_metrics={"log_loss": value})
        for step, value in enumerate((0.7, 0.4, 0.6))
    ]

    def scores(**settings):
        plan, score = plan_of(dataset, settings={f"evaluation.{name}": value for name, value in settings.items()}), None
        found = [score := plan.score(row, score) for row in rows]
        return plan.monitor.name, plan.smaller_is_better, found

    assert scores() == ("accuracy", False, [0.5, 0.5, 0.5])
    assert scores(monitor="log_loss") == ("log_loss", True, [0.7, 0.4, 0.6])
    assert scores(monitor="log_loss", patience=5) == ("log_loss", True, [0.7, 0.4, 0.4])
    with pytest.raises(
        UserError, match="evaluation.monitor: got 'auc': choose a metric by which a run of this network on this data is"
    ):
        plan_of(dataset, settings={"evaluation.monitor": "auc"})


def test_a_mode_can_vary(dataset):
    plan = plan_of(dataset, {"mode.name": "single,async"})
    modes = [plan.config(values).mode.name for values in plan.space.samples()]
    assert modes == ["single", "async"] and not plan.config({"mode.name": "async"}).cluster.pin_workers


def test_halving_has_a_checkpoint_after_each_ninth_of_a_trial(dataset):
    plan = plan_of(dataset, method="halving", settings={"training.epochs": 18.0})
    config = plan.config({RATE: 0.05})
    assert config.checkpoints.every_epochs == pytest.approx(2.0, rel=0.01)
    assert [round(STAGES * plan.done(config, examples)) for examples in (0, 1800, 5410, 16_200)] == [0, 1, 3, 9]


GRID = {RATE: "0.1..1:log:10", "optimizer.momentum": "0.1..0.9:10"}


@pytest.mark.parametrize(
    ("vary", "changes", "says"),
    [
        ({RATE: "-1..1"}, {}, "optimizer.learning_rate: got -1"),
        ({"optimizer.rule": "nesterov,adamm"}, {}, "adamm"),
        ({"mode.max_staleness": "1..3"}, {}, "mode.max_staleness"),
        ({"cluster.workers": "1,2"}, {}, "cluster.workers"),
        ({"training.sed": "1,2"}, {}, "training.sed"),
        ({"data.dataset": "cifar10,mnist"}, {}, "data.dataset: all trials have to be scored alike"),
        ({"evaluation.validation_examples": "10,20"}, {}, "scored alike"),
        ({"model.name": "mlp,airbench"}, {}, "it is also set to 'tutorial_cnn'"),
        (GRID, {"method": "grid", "trials": 5}, "a grid tries all its 100 combinations"),
        (GRID | {"training.seed": "0..99:100"}, {"method": "grid"}, "10,000 combinations: a grid may have at most"),
    ],
)
def test_what_a_sweep_can_not_train_is_refused_in_one_line_before_the_first_trial(vary, changes, says):
    sweep = read_sweep(None, {"vary": vary} | changes, SETTINGS)
    with pytest.raises(UserError) as error:
        checked_space(sweep)
    assert says in str(error.value) and "\n" not in str(error.value)


def test_the_file_and_the_command_line_are_joined(tmp_path):
    file = tmp_path / "sweep.yaml"
    content = {"vary": {RATE: [0.1, 0.2]}, "method": "grid", "settings": {"training": {"epochs": 2.0}}}
    file.write_text(dump_yaml(content))
    sweep = read_sweep(file, {"vary": {"optimizer.momentum": "0.1,0.9"}}, {"training.steps": 5})
    assert sweep.vary.keys() == {RATE, "optimizer.momentum"} and sweep.method == "grid"
    assert sweep.settings == {"mode.name": "single", "training.epochs": 2.0, "training.steps": 5}
    sweep = read_sweep(None, {"vary": {RATE: "0.1,0.2"}}, {"data.data_dir": tmp_path})
    assert sweep.settings["data.data_dir"] == str(tmp_path), "the files of the results take no paths"
    file.write_text("wary: {}\n")
    with pytest.raises(UserError, match=r"sweep\.yaml.*wary"):
        read_sweep(file, {}, {})


def test_paths_of_code_start_at_the_folder_of_the_file_that_varies_them_or_at_the_current_one(tmp_path, monkeypatch):
    (tmp_path / "there").mkdir()
    (tmp_path / "there/sweep.yaml").write_text("vary: {model.name: 'mlp, net.py:build', mode.name: [async, my.py:M]}\n")
    monkeypatch.chdir(tmp_path)
    sweep = read_sweep(tmp_path / "there/sweep.yaml", {"vary": {"optimizer.rule": "sgd,rule.py:R"}}, {})
    assert sweep.vary == {
        "model.name": ["mlp", f"{tmp_path}/there/net.py:build"],
        "mode.name": ["async", f"{tmp_path}/there/my.py:M"],
        "optimizer.rule": ["sgd", f"{tmp_path}/rule.py:R"],
    }


def test_the_best_file_gives_the_settings_of_the_trial_to_a_run(dataset, tmp_path):
    plan = plan_of(dataset, settings={"training.steps": 7})
    (tmp_path / "best.yaml").write_text(dump_yaml(plan.found({RATE: 0.0625})))
    config = build_config(tmp_path / "best.yaml")
    assert (config.optimizer.learning_rate, config.training.steps, config.mode.name) == (0.0625, 7, "single")
    assert config.evaluation.validation_examples == 0, "a run with what was found trains on all examples"
