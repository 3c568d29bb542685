"""The settings of a run that differ from the defaults: what the closing table and TensorBoard show."""

import pytest

from ps_cluster.config import ChangedSetting, build_config, changed, fitted
from ps_cluster.config.modes import MODES
from ps_cluster.config.networks import NETWORKS


def values(settings) -> dict[str, object]:
    """Return the changed values of a run with these settings."""
    return {key: one.value for key, one in changed(build_config(None, settings)).items()}


def test_a_run_without_settings_differs_in_nothing():
    assert changed(build_config(None, {})) == {}


@pytest.mark.parametrize("network", NETWORKS.own)
@pytest.mark.parametrize("mode", [mode for mode in MODES.own if mode != "elastic"])
def test_what_a_recipe_has_set_is_no_difference(network, mode):
    """Also the rates that a recipe has for single modes."""
    usual = {"model.name": "airbench", "mode.name": "async"}
    chosen = {"model.name": network, "mode.name": mode}
    assert values(chosen) == {key: name for key, name in chosen.items() if name != usual[key]}


def test_the_recipe_of_a_data_set_is_no_difference_and_what_contradicts_it_is_one():
    for settings in ({"data.dataset": "mnist"}, {"data.dataset": "mnist", "data.augmentation.flip": "random"}):
        assert values(settings) == settings


def test_a_difference_names_the_default_of_the_recipe_and_not_of_the_file_of_all():
    config = build_config(None, {"model.name": "mlp", "optimizer.rule": "sgd", "training.epochs": 7.0})
    usual = build_config(None, {"model.name": "mlp"})
    found = changed(config)
    assert usual.optimizer.rule != build_config(None, {}).optimizer.rule, "the recipe has another rule: a fair test"
    assert found["optimizer.rule"] == ChangedSetting("sgd", usual.optimizer.rule)
    assert found["training.epochs"] == ChangedSetting(7.0, usual.training.epochs)


def test_a_rate_that_follows_from_the_users_momentum_is_no_difference():
    """The recipe has a rate for this mode, which is not used with another momentum."""
    chosen = {"model.name": "tutorial_cnn", "mode.name": "sync"}
    settings = {**chosen, "optimizer.momentum": 0.5}
    with_its_rate = build_config(None, chosen)
    assert build_config(None, settings).optimizer.learning_rate != with_its_rate.optimizer.learning_rate, "a fair test"
    assert values(settings) == settings


def test_settings_that_only_one_mode_has_are_held_against_its_own_default():
    for settings in ({"mode.name": "sync-ps"}, {"mode.name": "sync-ps", "mode.backup_workers": 1}):
        assert values(settings) == settings


def test_a_configuration_that_was_read_again_has_the_same_differences():
    config = build_config(None, {"mode.name": "sync", "optimizer.learning_rate": 0.3, "cluster.workers": 2})
    assert changed(fitted(config.model_dump(mode="json"))) == changed(config)
    assert set(changed(config)) == {"mode.name", "cluster.workers", "optimizer.learning_rate"}
