"""Files that extend each other, environment variables, and where a value comes from."""

import os
import shutil
from pathlib import Path

import pytest

from ps_cluster.config import Resolved, build_config, resolve
from ps_cluster.config.merging import resolve_resumed
from ps_cluster.config.sections import flat
from ps_cluster.config.user_settings import MOST_FILES, SettingsSource, without_variables
from ps_cluster.errors import UserError
from ps_cluster.process_variables import TRUSTED_FILES
from ps_cluster.tools.compare.comparison_plan import read_comparison
from ps_cluster.tools.sweep.sweep_plan import read_sweep

ISOLATION = "PS_CLUSTER__CLUSTER__ISOLATION"
TOYS = Path(__file__).parents[1] / "doors"


def refusal(*arguments) -> str:
    with pytest.raises(UserError) as error:
        resolve(*arguments)
    assert "\n" not in str(error.value)
    return str(error.value)


def write(file, text):
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    return file


@pytest.fixture
def chain(tmp_path):
    """The last of three files, in two folders, of which each extends the one before it."""
    write(tmp_path / "base/first.yaml", "training: {epochs: 1, seed: 1}\ncluster: {workers: 1}\n")
    write(tmp_path / "base/second.yaml", "extends: first.yaml\ntraining: {seed: 2}\n")
    return write(tmp_path / "mine.yaml", "extends: base/second.yaml\ncluster: {workers: 2}\n")


def test_a_file_changes_those_that_it_extends_and_keeps_what_it_does_not_name(chain):
    config = build_config(chain)
    assert (config.training.epochs, config.training.seed, config.cluster.workers) == (1.0, 2, 2)


def test_every_value_names_the_layer_that_it_comes_from(chain):
    variables = {"PS_CLUSTER__TRAINING__LABEL_SMOOTHING": "0.1", "PS_CLUSTER__OPTIMIZER__WEIGHT_DECAY": "0.5"}
    found = resolve(chain, {"optimizer.weight_decay": 0.25, "model.name": "tutorial_cnn"}, None, variables)
    origins = {
        "training.epochs": "/base/first.yaml",
        "training.seed": "/base/second.yaml",
        "cluster.workers": "/mine.yaml",
        "training.label_smoothing": "PS_CLUSTER__TRAINING__LABEL_SMOOTHING",
        "optimizer.weight_decay": "options",
        "model.activation": "default of network tutorial_cnn",
        "optimizer.rule": "recipe of network tutorial_cnn",
        "checkpoints.keep": "configs/default.yaml",
    }
    assert {key: found.origin(key).removeprefix(str(chain.parent)) for key in origins} == origins
    assert found.config.optimizer.weight_decay == 0.25 and found.config.training.label_smoothing == 0.1


def test_no_value_of_any_network_or_mode_is_without_an_origin():
    for values in ({"mode.name": "bounded"}, {"model.name": "mlp"}, {"mode.name": "sync"}):
        found = resolve(None, values)
        assert all(found.origin(key) for key in flat(found.config.model_dump(mode="json")))
    assert found.origin("optimizer.learning_rate").startswith("learning rates of network airbench")


def test_a_setting_is_chosen_though_its_value_is_the_default_and_a_recipes_is_not():
    found = resolve(None, {"checkpoints.keep": build_config().checkpoints.keep, "model.name": "tutorial_cnn"})
    assert found.is_chosen("checkpoints.keep") and found.is_chosen("model.name")
    assert not found.is_chosen("checkpoints.every_seconds") and not found.is_chosen("training.epochs")


def test_a_layer_whose_value_was_dropped_with_its_choice_is_no_origin():
    """A recipe may have a setting for a rule in whose place the user has chosen another one."""
    config = build_config(None, {"staleness.method": "dc_constant"})
    layer = SettingsSource("recipe", {"staleness": {"method": "dc_adaptive", "strength": 2.0}})
    assert Resolved(config, (layer,), {"staleness": {"strength": 2.0}}).origin("staleness.strength") == "recipe"
    merged = {"staleness": {"method": "dc_constant"}}
    assert Resolved(config, (layer,), merged).origin("staleness.strength") == "default of staleness method dc_constant"


def test_files_that_extend_each_other_in_a_circle_are_refused(tmp_path):
    write(tmp_path / "a.yaml", "extends: b.yaml")
    write(tmp_path / "b.yaml", "extends: ./a.yaml")
    told = refusal(tmp_path / "a.yaml")
    assert "b.yaml: extends: got './a.yaml'" in told and "circle" in told


def test_a_chain_of_files_has_a_bound(tmp_path):
    for number in range(MOST_FILES + 1):
        write(tmp_path / f"{number}.yaml", f"extends: {number + 1}.yaml")
    write(tmp_path / f"{MOST_FILES - 1}.yaml", "training: {seed: 3}")
    assert build_config(tmp_path / "0.yaml").training.seed == 3
    write(tmp_path / f"{MOST_FILES - 1}.yaml", f"extends: {MOST_FILES}.yaml")
    assert f"at most {MOST_FILES} files" in refusal(tmp_path / "0.yaml")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("extends: absent.yaml", "mine.yaml: extends: config file '"),
        ("extends: absent.yaml", "No such file"),
        ("extends: 3", "extends: got 3: name one file"),
        ("extends: [a.yaml]", "extends: got ['a.yaml']"),
        ('extends: "a\\0b"', "name one file"),
    ],
)
def test_an_extended_file_that_can_not_be_had_is_told_with_the_file_that_names_it(tmp_path, text, told):
    assert told in refusal(write(tmp_path / "mine.yaml", text))


def test_a_mistake_in_an_extended_file_is_said_of_that_file(chain, tmp_path):
    write(tmp_path / "base/first.yaml", "cluster: {wrokers: 1}")
    told = refusal(chain)
    assert told.startswith(f"{tmp_path}/base/first.yaml: unknown key 'cluster.wrokers'; did you mean 'cluster.work")


def test_code_in_an_extended_file_is_seen_from_that_file_and_may_be_run(tmp_path, monkeypatch):
    monkeypatch.delenv(TRUSTED_FILES, raising=False)
    (tmp_path / "base").mkdir()
    shutil.copy(TOYS / "toy_schedule.py", tmp_path / "base/mine.py")
    write(tmp_path / "base/first.yaml", "schedule: {kind: 'mine.py:Toy', factor: 0.5}")
    config = build_config(write(tmp_path / "mine.yaml", "extends: base/first.yaml"))
    assert config.schedule.kind == f"{tmp_path}/base/mine.py:Toy"
    assert os.environ[TRUSTED_FILES].splitlines() == [f"{tmp_path}/base/mine.py"]


def test_a_variable_wins_over_the_file_and_an_option_over_both(tmp_path):
    file = write(tmp_path / "mine.yaml", "training: {seed: 1}")
    variables = {"PS_CLUSTER__TRAINING__SEED": "2", "PS_CLUSTER__DATA__AUGMENTATION__FLIP": "random", "OTHER": "3"}
    config = resolve(file, None, None, variables).config
    assert config.training.seed == 2 and config.data.augmentation.flip == "random"
    assert config.data.augmentation.crop_padding_pixels == 2, "beside it the defaults stay"
    assert resolve(file, {"training.seed": 4}, None, variables).config.training.seed == 4


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("PS_CLUSTER__CLUSTER__WROKERS", "2", "unknown key 'cluster.wrokers'; did you mean 'cluster.workers'?"),
        ("PS_CLUSTER__CLSTER__WORKERS", "2", "unknown key 'clster'; did you mean 'cluster'?"),
        ("PS_CLUSTER__WORKERS", "2", "write it as PS_CLUSTER__SECTION__KEY"),
        ("PS_CLUSTER__CLUSTER__workers", "2", "write it as PS_CLUSTER__SECTION__KEY"),
        ("PS_CLUSTER__TRAINING__SEED", "many", "training.seed: got 'many'"),
        ("PS_CLUSTER__TRAINING__SEED", "[", "the value is not YAML"),
        ("PS_CLUSTER__MODE__MAX_STALENESS", "2", "mode async does not use it"),
    ],
)
def test_a_variable_that_is_wrong_is_told_with_its_name(name, value, told):
    line = refusal(None, None, None, {name: value})
    assert line.startswith(name) and told in line


STRICTEST = [
    ("off", "auto", "auto"),
    ("require", "off", "require"),
    ("off", "require", "require"),
    ("auto", "auto", "auto"),
]


@pytest.mark.parametrize(("file", "other", "strictest"), STRICTEST)
def test_of_the_isolation_the_strictest_wins_whichever_layer_has_it(file, other, strictest, tmp_path):
    path = write(tmp_path / "mine.yaml", f"cluster: {{isolation: {file}}}")
    variable, option = {ISOLATION: other}, {"cluster.isolation": other}
    for overrides, environment in ((option, {}), (None, variable), (option, variable)):
        resolved = resolve(path, overrides, None, environment)
        assert resolved.config.cluster.isolation == strictest
        if strictest == file != other:
            assert resolved.origin("cluster.isolation") == str(path)
    write(path, resolve(path).config.to_yaml())
    for changes, environment in ((option, {}), ({}, variable), (option, variable)):
        assert resolve_resumed(path, changes, environment).config.cluster.isolation == strictest
    sweep = read_sweep(write(tmp_path / "sweep.yaml", f"settings: {{cluster: {{isolation: {file}}}}}"), {}, option)
    assert sweep.settings["cluster.isolation"] == strictest
    assert read_comparison(tmp_path / "sweep.yaml", {}, option).settings["cluster.isolation"] == strictest


def test_no_other_variable_changes_a_run_that_goes_on(tmp_path):
    path = write(tmp_path / "config.yaml", build_config().to_yaml())
    assert resolve_resumed(path, {}, {"PS_CLUSTER__TRAINING__SEED": "2"}).config == build_config()


def test_without_any_other_wish_the_isolation_can_be_switched_off():
    assert build_config(None, {"cluster.isolation": "off"}).cluster.isolation == "off"


def test_variables_do_not_reach_a_command_whose_settings_are_decided_but_for_the_isolation():
    assert without_variables({ISOLATION: "require"}) == {ISOLATION: "require"}
    assert without_variables({"PS_CLUSTER__TRAINING__SEED": "2", "PS_CLUSTER_CACHE": "x"}) == {"PS_CLUSTER_CACHE": "x"}
