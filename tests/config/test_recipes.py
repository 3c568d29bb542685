"""Rates that a network's recipe has for single modes: used for exactly what they were found for."""

from functools import partial

import pytest

from ps_cluster.config import build_config, uses_found_rates
from ps_cluster.config.networks import NETWORKS
from ps_cluster.errors import UserError
from ps_cluster.models.networks import tuned_settings
from ps_cluster.tools.compare.comparison_plan import planned_runs, read_comparison

ASYNC = tuned_settings("async", batch=384, learning_rate=0.002, momentum=0.5)
SINGLE = tuned_settings("single", workers=1, learning_rate=0.004, momentum=0.8)
FOUND = {"optimizer": {"rule": "adam", "learning_rate": 0.001, "momentum": 0.9}, "modes": [*ASYNC, *SINGLE]}
DATA = """
from ps_cluster.config.datasets import DataSet


class Mine(DataSet):
    recipe = {"model": {"name": "tutorial_cnn"}, "training": {"epochs": 3.5}}
"""


@pytest.fixture
def recipe(monkeypatch):
    """recipe(layer): the recipe of tutorial_cnn."""
    return partial(monkeypatch.setattr, NETWORKS["tutorial_cnn"], "recipe")


def rates(values=None):
    optimizer = build_config(None, {"model.name": "tutorial_cnn"} | (values or {})).optimizer
    return optimizer.learning_rate, optimizer.momentum


def test_a_mode_gets_the_rate_that_was_found_for_its_workers_and_batch_and_no_other(recipe):
    recipe(FOUND)
    found_for = {"training.batch_size_per_worker": 384}
    assert rates(found_for) == (0.002, 0.5)
    assert rates() == (0.001, 0.9)
    assert rates(found_for | {"cluster.workers": 2}) == (0.001, 0.9)
    assert rates(found_for | {"mode.name": "sync"}) == (0.001, 0.9)
    assert rates({"mode.name": "single"}) == (0.004, 0.8), "however many workers a cluster would have"


@pytest.mark.parametrize(
    ("setting", "rate"), [
        ({"optimizer.learning_rate": 0.01}, (0.01, 0.9)),
        ({"optimizer.momentum": 0.1}, (0.001, 0.1)),
        ({"optimizer.rule": "nesterov"}, (0.01, 0.9)),
        ({"optimizer.rule": "nesterov", "optimizer.learning_rate": 0.2}, (0.2, 0.9)),
        ({"optimizer.rule": "adam"}, (0.001, 0.9)),
        ({"optimizer.weight_decay": 0.1}, (0.004, 0.8)),
    ],
)  # fmt: skip
def test_who_chooses_a_rate_or_a_rule_gets_nothing_of_the_table_and_another_rule_its_usual_rate(recipe, setting, rate):
    recipe(FOUND)
    assert rates({"mode.name": "single"} | setting) == rate


def test_who_names_the_method_that_the_rule_has_anyway_keeps_the_rate_of_the_table(recipe):
    recipe(FOUND | {"modes": tuned_settings("async", learning_rate=0.003, momentum=0.5)})
    assert rates({"staleness.method": "predict"}) == rates() != rates({"staleness.method": "none"})


def test_async_takes_the_staleness_method_of_its_rule_unless_somebody_chooses_another(recipe):
    recipe(FOUND)
    with_adam, with_recipe = {"optimizer.rule": "adam"}, {"model.name": "tutorial_cnn"}
    for values, method in (
        ({}, "none"),
        (with_adam, "predict"),
        (with_recipe, "predict"),
        (with_adam | {"staleness.method": "none"}, "none"),
        (with_recipe | {"optimizer.rule": "sgd"}, "none"),
        (with_recipe | {"mode.name": "bounded"}, "none"),  # it has no such methods
    ):
        assert build_config(None, values).staleness.method == method, values
    recipe(FOUND | {"staleness": {"method": "inverse"}})
    assert build_config(None, with_recipe).staleness.method == "inverse"


def test_rates_that_were_found_may_come_with_clipping_and_the_mean_square(recipe):
    further = {"beta_2": 0.9, "global_clip_norm": 0.5}
    recipe(FOUND | {"modes": tuned_settings("single", workers=1, learning_rate=0.004, momentum=0.8, **further)})
    single = build_config(None, {"model.name": "tutorial_cnn", "mode.name": "single"}).optimizer
    assert (single.learning_rate, single.beta_2, single.global_clip_norm) == (0.004, 0.9, 0.5)
    other = build_config(None, {"model.name": "tutorial_cnn", "mode.name": "sync"}).optimizer
    assert (other.beta_2, other.global_clip_norm) == (0.999, None)


def test_a_rule_starts_from_its_usual_rate_wherever_it_is_chosen(tmp_path):
    """The rate of the layer below was found for another rule."""
    of_data_set = DATA.replace('"training"', '"optimizer": {"rule": "adam"}, "training"')
    (tmp_path / "mine.py").write_text(of_data_set)
    of_user = {"data.dataset": f"{tmp_path}/mine.py:Mine"}
    assert build_config(None, of_user).optimizer.learning_rate == 0.001
    assert build_config(None, of_user | {"optimizer.rule": "adam"}).optimizer.learning_rate == 0.001
    assert build_config(None, of_user | {"optimizer.rule": "sgd"}).optimizer.learning_rate == 0.01
    (tmp_path / "own.py").write_text(
        "from ps_cluster.models.networks.tutorial_cnn import TutorialCnn\n\n\nclass Mine(TutorialCnn):\n    pass\n"
    )
    own = {"model.name": f"{tmp_path}/own.py:Mine"}
    assert build_config(None, own).optimizer.learning_rate == 0.02
    assert build_config(None, own | {"optimizer.rule": "adam"}).optimizer.learning_rate == 0.001


@pytest.mark.parametrize("mode", ["layers", "width"])
def test_tutorial_cnn_has_adam_in_modes_that_divide_it(mode):
    config = build_config(None, {"model.name": "tutorial_cnn", "mode.name": mode})
    assert (config.optimizer.rule, config.optimizer.learning_rate, config.optimizer.momentum) == ("adam", 0.004, 0.5)


@pytest.mark.parametrize("mode", ["layers", "width"])
def test_a_mode_that_divides_the_network_has_the_rates_of_a_single_process_or_settings_of_its_own(recipe, mode):
    recipe(FOUND)
    assert rates({"mode.name": mode}) == (0.004, 0.8)
    recipe(FOUND | {"divided": {"optimizer": {"rule": "nesterov", "learning_rate": 0.3, "momentum": 0.7}}})
    config = build_config(None, {"model.name": "tutorial_cnn", "mode.name": mode})
    assert config.optimizer.rule == "nesterov" and rates({"mode.name": mode}) == (0.3, 0.7)
    assert rates({"mode.name": "single"}) == (0.004, 0.8)
    assert rates({"mode.name": mode, "optimizer.rule": "adam"}) == (0.001, 0.7)


@pytest.mark.parametrize(
    ("modes", "named"), [
        ([{"mode": "async"}], "the recipe of network tutorial_cnn: 'modes.0.workers' is missing"),
        (3, "the recipe of network tutorial_cnn: modes"),
        (tuned_settings("async", momentum=0.5), "modes.0.optimizer.*have to include learning_rate"),
        (tuned_settings("async", learning_rate=0.1, rule="sgd"), "modes.0.optimizer.*but not rule"),
        (tuned_settings("async", learning_rate=-1), "optimizer.learning_rate"),
        ([*ASYNC, *SINGLE, *SINGLE], "two entries have the same mode"),
    ],
)  # fmt: skip
def test_a_table_that_cant_be_is_refused(recipe, modes, named):
    recipe({"modes": modes})
    with pytest.raises(UserError, match=named):
        rates()


def test_compare_takes_what_was_found_and_scales_the_rest(recipe):
    recipe(FOUND)
    arms = [{"mode": mode} for mode in ("async", "sync", "single")]
    changes = {"arms": arms, "seeds": 1, "batches": ["same_per_update", "same_per_worker"]}
    runs = planned_runs(read_comparison(None, changes, {"model.name": "tutorial_cnn", "data.dataset": "synthetic"}))
    rates = {
        (run.config.mode.name, run.config.training.batch_size_per_worker): (
            run.config.optimizer.learning_rate, uses_found_rates(run.config), run.scaled
        )
        for run in runs
    }  # fmt: skip
    assert {place: (round(rate, 9), *told) for place, (rate, *told) in rates.items()} == {
        ("async", 384): (0.002, True, False),
        ("async", 128): (0.001, False, False),
        ("sync", 128): (0.003, False, True),
        ("single", 384): (0.003, False, True),
        ("single", 128): (0.004, True, False),
    }


def test_a_data_set_chooses_its_network_and_goes_before_that_networks_recipe(tmp_path):
    (tmp_path / "mine.py").write_text(DATA)
    of_user = {"data.dataset": f"{tmp_path}/mine.py:Mine"}
    config = build_config(None, of_user)
    assert (config.model.name, config.training.epochs, config.optimizer.rule) == ("tutorial_cnn", 3.5, "muon")
    assert not hasattr(config.data, "augmentation"), "that is of images"
    other = build_config(None, of_user | {"model.name": "cifar_tf_cnn", "training.epochs": 2.0})
    assert (other.model.name, other.training.epochs) == ("cifar_tf_cnn", 2.0)


def test_a_data_sets_recipe_for_one_network_is_used_with_that_network_alone(tmp_path):
    for_one = '    recipes = {"airbench": {"model": {"width": 0.5}, "training": {"epochs": 7.0}}}\n'
    (tmp_path / "mine.py").write_text(DATA + for_one)
    of_user = {"data.dataset": f"{tmp_path}/mine.py:Mine"}
    assert build_config(None, of_user).training.epochs == 3.5
    config = build_config(None, of_user | {"model.name": "airbench"})
    assert (config.model.width, config.training.epochs) == (0.5, 7.0)


def test_a_rate_of_the_data_sets_recipe_goes_before_those_found_for_the_mode(tmp_path):
    (tmp_path / "mine.py").write_text(DATA.replace("epochs", "batch_size_per_worker").replace("3.5", "128"))
    of_user = {"data.dataset": f"{tmp_path}/mine.py:Mine", "mode.name": "sync"}
    assert build_config(None, of_user).optimizer.learning_rate == 0.04
    mine = (tmp_path / "mine.py").read_text()
    (tmp_path / "other.py").write_text(mine.replace("recipe = {", 'recipe = {"optimizer": {"learning_rate": 0.5}, '))
    assert build_config(None, of_user | {"data.dataset": f"{tmp_path}/other.py:Mine"}).optimizer.learning_rate == 0.5


def test_augmentation_stays_between_data_sets_of_images():
    kept = build_config(None, {"data.dataset": "synthetic"}).data.augmentation
    assert kept == build_config().data.augmentation and kept.crop_padding_pixels == 2
