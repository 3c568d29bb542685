"""A setting that the mode does not use is refused wherever the user has set it. Defaults do not count as set."""

import pytest
import yaml
from click.testing import CliRunner

from ps_cluster.cli.main import main
from ps_cluster.config import build_config, load_config
from ps_cluster.config.dispatch_size import MOST
from ps_cluster.config.modes import MODES, Waits
from ps_cluster.config.schema import LEDGER_WINDOW
from ps_cluster.config.sections import SWITCHES, own_settings
from ps_cluster.installation import CONFIG_FOLDER
from ps_cluster.tools.compare.comparison_plan import planned_runs, read_comparison
from tests.helpers.bad_input import refusal

SGD = {"optimizer.rule": "sgd"}  # which mode elastic needs
SYNCHRONOUS, SPLIT, OUTER = {"sync-ps", "sync-diloco"}, {"layers", "width"}, {"diloco", "sync-diloco"}
WITH_SERVERS = {"async", "bounded", "elastic", *SYNCHRONOUS, *OUTER}
WITH_WORKERS = {"sync", *WITH_SERVERS, *SPLIT}
EVERY = {"single", *WITH_WORKERS}
ON = {  # setting → a value that switches it on, and the modes that use it
    "cluster.workers": (4, WITH_WORKERS),
    "cluster.parameter_servers": (2, WITH_SERVERS),
    "cluster.intra_op_threads": (2, WITH_WORKERS),
    "mode.max_staleness": (3, {"bounded"}),
    "mode.max_clock_lag": (3, {"bounded"}),
    "mode.backup_workers": (1, SYNCHRONOUS),
    "mode.grace_seconds": (0.0, SYNCHRONOUS),  # without a backup worker it can only be 0
    "mode.simulate_workers": (8, {"async"}),
    "staleness.method": ("inverse", {"async", "diloco"}),
    "mode.local_steps": (2, {"elastic", *OUTER}),
    "mode.beta": (0.5, {"elastic"}),
    "mode.outer_rate": (0.5, OUTER),
    "mode.outer_momentum": (0.5, OUTER),
    "mode.dynamic_steps": (True, {"diloco"}),
    "mode.fragments": (False, {"diloco"}),  # with a single parameter server it can only be off
    "mode.momentum_every": (2, {"diloco"}),
    "mode.momentum_spread": (0.1, {"diloco"}),
    "mode.placement": ("dense=1", {"layers"}),
    "mode.micro_batches": (2, {"layers"}),
    "mode.log_placement": (True, SPLIT),
    "mode.least_units": (32, {"width"}),
    "lookahead.every_updates": (5, EVERY - {"elastic", *OUTER}),
    "optimizer.clip_norm": (1.0, EVERY - {"width"}),
    "optimizer.global_clip_norm": (1.0, EVERY - SPLIT),
}


def written(folder, tree):
    (folder / "mine.yaml").write_text(yaml.safe_dump(tree))
    return folder / "mine.yaml"


def test_every_entry_of_the_table_is_tried_here():
    own = {f"mode.{name}" for mode in MODES for name in own_settings("mode", mode)}
    assert own | set(SWITCHES) <= set(ON)
    assert set(MODES.names) == EVERY


@pytest.mark.parametrize("mode", MODES.names)
def test_a_setting_is_taken_by_the_modes_that_use_it_and_refused_by_all_others(mode, tmp_path):
    for key, (value, users) in ON.items():
        section, name = key.split(".")
        overrides = {"mode.name": mode, key: value} | SGD
        tree = {"mode": {"name": mode}, "optimizer": {"rule": "sgd"}}
        tree.setdefault(section, {})[name] = value
        if mode not in users:
            for told in (refusal(build_config, None, overrides), refusal(build_config, written(tmp_path, tree))):
                assert f"{key}: got {value!r}: mode {mode} does not use it" in told
        elif key == "cluster.parameter_servers" and MODES[mode].cluster.most_parameter_servers == 1:
            assert f"cluster.parameter_servers: got {value}" in refusal(build_config, None, overrides)
        else:
            assert build_config(None, overrides).mode.name == mode, key
            assert build_config(written(tmp_path, tree)).mode.name == mode, key


def test_on_the_command_line_a_default_is_refused_too_where_it_has_no_use():
    result = CliRunner().invoke(main, ["run", "--mode", "single", "--workers", "3"])
    assert result.exit_code == 2
    assert "options: cluster.workers: got 3: mode single does not use it" in result.stderr
    result = CliRunner().invoke(main, ["run", "--mode", "sync", "--ps", "2", "--max-staleness", "3"])
    assert result.exit_code == 2 and result.stderr.count("\n") == 1


@pytest.mark.parametrize("mode", MODES.names)
def test_the_configuration_of_a_finished_run_is_read_back_and_can_be_given_as_a_file(mode, tmp_path):
    config = build_config(None, {"mode.name": mode} | SGD)
    file = tmp_path / "config.yaml"
    file.write_text(config.to_yaml())
    assert load_config(file) == build_config(file) == config


def test_an_option_is_held_against_the_mode_of_the_file(tmp_path):
    file = written(tmp_path, {"mode": {"name": "bounded"}})
    assert build_config(file, {"mode.max_staleness": 3}).mode.bounds == (3, None)
    result = CliRunner().invoke(main, ["run", "--config", str(file), "--backup-workers", "1"])
    assert "mode.backup_workers: got 1: mode bounded does not use it" in result.stderr


def test_what_is_wrong_is_said_of_the_file_or_of_the_options_that_have_it(tmp_path):
    file = written(tmp_path, {"cluster": {"workers": 0}})
    assert refusal(build_config, file, {"training.seed": 1}).startswith(f"{file}: cluster.workers: got 0")
    assert refusal(build_config, file, {"cluster.workers": -1}).startswith("options: cluster.workers: got -1")
    both = written(tmp_path, {"mode": {"name": "sync-ps"}})
    told = refusal(build_config, both, {"mode.backup_workers": 3})
    assert told.startswith(f"{both} and options: mode.backup_workers: got 3")


def test_a_tampered_configuration_of_a_run_is_refused(tmp_path):
    tree = yaml.safe_load((CONFIG_FOLDER / "default.yaml").read_text())
    tree["mode"] = {"name": "sync", "backup_workers": 2}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(tree))
    assert "unknown key 'mode.backup_workers'" in refusal(load_config, tmp_path / "config.yaml")
    tree["mode"], tree["staleness"] = {"name": "sync"}, {"method": "inverse"}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(tree))
    assert "staleness.method: got 'inverse': mode sync" in refusal(load_config, tmp_path / "config.yaml")


def plan(modes, overrides, settings=None):
    changes = {"arms": [{"mode": mode} for mode in modes], "seeds": 1, "settings": settings or {}}
    return planned_runs(read_comparison(None, changes, {"model.name": "tutorial_cnn"} | overrides))


def test_compare_leaves_a_shared_setting_out_of_the_arms_that_do_not_use_it():
    shared = {"cluster": {"parameter_servers": 2}, "staleness": {"method": "inverse"}}
    runs = plan(("async", "sync", "single"), {"cluster.workers": 4}, shared)
    found = {run.config.mode.name: run.config for run in runs}
    assert [config.shards for config in found.values()] == [2, 1, 1]
    assert [config.training_workers for config in found.values()] == [4, 4, 1]
    assert [config.staleness.method for config in found.values()] == ["inverse", "none", "none"]


def test_compare_refuses_what_none_of_its_arms_uses():
    told = refusal(plan, ("sync", "single"), {"cluster.parameter_servers": 2})
    assert told.startswith("compare: cluster.parameter_servers: got 2: none of the modes sync and single uses it")


def test_compare_refuses_what_an_arm_itself_can_not_use():
    arms = {"arms": [{"mode": "sync", "set": {"mode.max_staleness": 2}}]}
    told = refusal(planned_runs, read_comparison(None, arms, {}))
    assert "mode.max_staleness: got 2: mode sync does not use it" in told


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"cluster.min_workers": 5}, "cluster.min_workers: got 5: it has to be at most cluster.workers, 3"),
        ({"cluster.max_workers": 2}, "cluster.max_workers: got 2: it has to be at least cluster.workers, 3"),
        ({"mode.name": "sync", "cluster.max_workers": 5}, "mode sync keeps its number of workers: each all-reduce"),
        (
            {"mode.name": "sync-ps", "cluster.min_workers": 1},
            "mode sync-ps keeps its number of workers: every worker takes",
        ),
        ({"mode.simulate_workers": 9, "cluster.max_workers": 5}, "mode.simulate_workers: got 9: it needs a fixed"),
    ],
)
def test_bounds_of_workers_that_do_not_fit_are_refused(values, told):
    assert told in refusal(build_config, None, {"cluster.workers": 3} | values)


def test_tables_of_workers_have_a_place_for_each_that_may_come_and_learning_goes_by_those_of_the_start():
    config = build_config(None, {"cluster.workers": 2, "cluster.min_workers": 1, "cluster.max_workers": 6})
    assert (config.least_workers, config.training_workers, config.most_workers) == (1, 2, 6)
    unscaled = build_config(None, {"cluster.workers": 2})
    assert config.optimizer == unscaled.optimizer and config.ledger_window >= unscaled.ledger_window
    assert unscaled.least_workers == unscaled.most_workers == 2


@pytest.mark.parametrize(("mode", "per_dispatch"), [("sync-ps", 1000), ("sync-ps", "auto"), ("async", 1000)])
def test_the_ledger_has_room_for_two_dispatches_of_rounds(mode, per_dispatch):
    values = {"mode.name": mode, "cluster.workers": 200, "cluster.steps_per_dispatch": per_dispatch}
    config = build_config(None, values)
    most_at_once = MOST if per_dispatch == "auto" else per_dispatch
    assert config.ledger_window >= 2 * most_at_once * config.steps_per_update
    assert config.ledger_window >= LEDGER_WINDOW


def test_workers_are_pinned_in_modes_where_none_waits_for_another_as_the_description_of_the_setting_says():
    waitless = [m for m in MODES if m.has_workers and not m.shares_steps and m.synchrony.waits is Waits.NEVER]
    assert waitless == [mode for mode in MODES if mode.cluster.pins_workers] != []
