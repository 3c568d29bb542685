import json

import pytest

from benchmarks import headline, records
from ps_cluster.tools.bench.arms import CLUSTER, SYNC, with_straggler
from ps_cluster.tools.bench.throughput import Result

NOT_MEASURED = {"default_single"}


@pytest.mark.parametrize("name", sorted(headline.REPEATED.keys() - NOT_MEASURED))
def test_a_training_of_today_has_the_settings_of_the_one_that_was_measured(name):
    again = f"measure it again: python -m benchmarks.headline --parts {name} --data-dir DATA"
    assert records.read(name).settings == headline.REPEATED[name].settings(), again


def test_a_training_is_repeated_with_several_seeds_and_figures_that_it_lacks_are_left_out(monkeypatch):
    trained = []

    def train(root, settings, config):
        trained.append((settings, config))
        summary = {
            "outcome": "completed", "train_seconds": 60.0 + settings["training.seed"], "startup_seconds": 7.0,
            "peak_memory_bytes": 2_000_000_000, "evaluation": {"test_accuracy": 0.92},
        }  # fmt: skip
        root.mkdir()
        (root / "summary.json").write_text(json.dumps(summary))

    monkeypatch.setattr(headline, "train", train)
    rows = headline.REPEATED["cifar10_94_single"].measure(2, {"data.dataset": "cifar10"})
    shared = {"mode.name": "single", "data.dataset": "cifar10"}
    assert trained == [({**shared, "training.seed": seed}, headline.CIFAR10_94) for seed in (0, 1)]
    assert {row["figure"].removeprefix("cifar10-94.yaml in one process, "): row["values"] for row in rows} == {
        "test accuracy [%]": [92.0, 92.0],
        "training time [s]": [60.0, 61.0],
        "time to the first update [s]": [7.0, 7.0],
        "memory of all processes [GB]": [2.0, 2.0],
    }


def test_the_cluster_is_compared_with_the_fastest_pytorch_arm_of_each_round(monkeypatch):
    measured = []

    def bench(arms, model, rounds, values, **options):
        measured.append((arms, model, rounds, values, options["ddp_python"]))
        rates = {"cluster": [9.0, 12.0], "ddp_cores": [10.0, 10.0], "ddp_compiled": [9.0, 15.0]}
        return Result({}, [], {arm: rates.get(arm, [18.0, 20.0]) for arm in arms})

    monkeypatch.setattr(headline, "bench", bench)
    data = {"data.dataset": "cifar10"}
    without, both = (headline.compared_with_others(2, data, python) for python in (None, "python"))
    arms = ["cluster", "limit", "single", "sync_cores", "per_variable"]
    assert measured == [
        (arms, "airbench", 2, {**data, "training.steps": 60}, None),
        ([*arms, "ddp_cores", "ddp_compiled"], "airbench", 2, {**data, "training.steps": 60}, "python"),
    ]
    assert without == both[:-1]
    assert both[-1] == {"figure": "images/s, cluster ÷ PyTorch DDP", "values": [0.9, 0.8], "digits": 2}


def test_the_speed_that_remains_with_a_slow_worker_is_given_in_percent(monkeypatch):
    chosen = with_straggler([CLUSTER, SYNC], "2:5x", workers=3)
    rates = {"cluster": [10.0], "cluster+straggler": [5.0], "sync": [8.0], "sync+straggler": [2.0]}
    calls = []

    def bench(*arguments, **options):
        calls.append((arguments[0], options))
        return Result({}, chosen, rates)

    monkeypatch.setattr(headline, "bench", bench)
    assert headline.with_straggler(1, {}) == [
        {"figure": "images/s kept with a slow worker, cluster [%]", "values": [50.0]},
        {"figure": "images/s kept with a slow worker, all-reduce [%]", "values": [25.0]},
    ]
    assert calls == [(["cluster", "sync"], {"straggler": "2:5x"})]
