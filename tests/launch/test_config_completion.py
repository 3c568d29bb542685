"""The lines that a run prints before it starts, if its settings fit the processor or the data set badly."""

from dataclasses import replace

import pytest

from ps_cluster.config import build_config
from ps_cluster.launch.config_completion import few_updates_notice, float32_notice
from tests.helpers.data import only_named


@pytest.mark.parametrize(
    ("overrides", "found", "minutes"),
    [
        ({"training.steps": 918}, "float32", "about 30 minutes"),
        ({"training.steps": 306}, "float32", "about 10 minutes"),
        ({"training.steps": 911}, "bfloat16", None),
        ({"training.steps": 911, "model.precision": "float32"}, "float32", None),
        ({"training.steps": 911, "model.name": "tutorial_cnn"}, "float32", None),
    ],
)
def test_a_run_says_at_its_start_how_long_a_processor_without_bfloat16_will_take(overrides, found, minutes, tmp_path):
    dataset = replace(only_named("synthetic", tmp_path, 1_000, 10), name="cifar10")
    asked = build_config(overrides={"model.name": "airbench"} | overrides)
    line = float32_notice(asked, asked.with_values({"model.precision": found}), dataset)
    assert (line is None) if minutes is None else (minutes in line and "--model tutorial_cnn --epochs 3" in line)


@pytest.mark.parametrize(
    ("overrides", "name", "examples", "parts"),
    [
        (
            {},
            "cifar10",
            2_000,
            ("only 37 updates", "cifar10 has 2,000", "chosen for 50,000", "918 updates", "--epochs 118 "),
        ),
        ({}, "images:/data/mydata", 2_000, ("an epoch of mydata has 2,000",)),
        (
            {"mode.name": "sync"},
            "cifar10",
            2_000,
            ("only 12 updates", "which a run makes 306 updates", "--epochs 118 "),
        ),
        ({"training.sample": "shard:0/25"}, "cifar10", 50_000, ("only 37 updates", "--epochs 118 ")),
        (
            {"model.name": "tutorial_cnn"},
            "cifar10",
            16_000,
            ("only 1,875 updates", "which a run makes 5,859 updates", "--epochs 47 "),
        ),
        ({}, "cifar10", 17_000, None),
        ({}, "cifar10", 50_000, None),
        ({}, "synthetic", 2_000, None),
        ({"data.dataset": "mnist"}, "mnist", 2_000, None),
        ({"training.epochs": 4.0}, "cifar10", 2_000, None),
        ({"training.steps": 37}, "cifar10", 2_000, None),
        ({"model.name": "mlp"}, "cifar10", 2_000, None),
    ],
)
def test_a_run_whose_recipe_makes_few_updates_of_a_small_data_set_says_how_many_epochs_make_as_many(
    overrides, name, examples, parts
):
    asked = build_config(overrides={"data.dataset": "cifar10", "cluster.workers": 3} | overrides)
    dataset = only_named("synthetic" if name == "synthetic" else "cifar10", train=examples)
    line = few_updates_notice(asked, asked, replace(dataset, name=name))
    assert (line is None) if parts is None else all(part in line for part in parts)
