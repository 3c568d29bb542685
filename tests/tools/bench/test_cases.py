"""What is measured, and how many updates make one measurement."""

from dataclasses import replace
from pathlib import Path

import pytest

from ps_cluster.config import build_config
from ps_cluster.config.objectives import ArrayField, ExampleSpec
from ps_cluster.errors import UserError
from ps_cluster.launch import network_check
from ps_cluster.launch.network_check import NetworkFacts
from ps_cluster.tools.bench import arms, cases
from tests.helpers.data import only_named
from tests.tools.bench.conftest import TOYS

CASE = build_config(overrides={"training.batch_size_per_worker": 100})
IMAGES = only_named("synthetic", Path("."), 1, 1)


@pytest.mark.parametrize("key", ["optimizer.momentum", "schedule.kind", "data.augmentation.hue_delta"])
def test_what_only_some_arms_would_follow_is_refused(key):
    with pytest.raises(UserError, match=f"--set {key}: got 0.5: this setting is fixed, because all arms have the same"):
        cases.cases(["airbench"], ["float32"], IMAGES, {key: 0.5})


@pytest.mark.parametrize(("model", "steps"), [("tutorial_cnn", 625), ("cifar_tf_cnn", 195), ("airbench", 140)])
def test_the_packages_networks_keep_their_number_of_images_on_images_like_those_of_cifar10(model, steps):
    (case,) = cases.cases([model], ["float32"], IMAGES, {})
    assert (case.training.steps, case.training.batch_size_per_worker) == (steps, 128)


def test_other_networks_and_other_examples_are_left_to_a_short_run_unless_their_updates_are_given(monkeypatch):
    # There are no examples to build it for.
    monkeypatch.setattr(network_check, "check_network", lambda *_: NetworkFacts())
    spec = ExampleSpec({"image": ArrayField("uint8", (28, 28, 1))}, ArrayField("uint8", ()))
    network = f"{TOYS}/toy_network.py:build"
    for model, packed in ((network, IMAGES), ("tutorial_cnn", replace(IMAGES, name="mnist", spec=spec))):
        assert cases.case(model, "float32", packed, {}).training.steps is None
    assert cases.case(network, "float32", IMAGES, {"training.steps": 70}).training.steps == 70


def test_a_regression_is_measured_without_label_smoothing_which_it_can_not_have(regression_case):
    case, _ = regression_case
    assert (case.training.label_smoothing, case.data.dataset) == (0.0, f"{TOYS}/toy_data.py:load")


class FakeArm:
    """Trains at a steady rate. It has a rate of a run that is longer than `blind_s`. Keeps the updates of each run."""

    def __init__(self, steps_per_second, blind_s=0.0):
        self.runs, self.rate, self.blind_s = [], steps_per_second, blind_s

    def __call__(self, config):
        self.runs.append(config.training.steps)
        return 100.0 * self.rate if config.training.steps / self.rate > self.blind_s else None


def length(arm, case=CASE):
    lines = []
    found = cases.with_length(case, arms.CLUSTER, IMAGES, lines.append, rate=lambda _, config, __: arm(config))
    return found.training.steps, lines


@pytest.mark.parametrize(
    ("arm", "runs", "steps"),
    [
        (FakeArm(40.0), [90], 400),
        (FakeArm(300.0), [90, 900], 3000),
        (FakeArm(2.0), [90], 90),  # 45 s: fewer updates would say too little
        (FakeArm(1e6), [90, 900, 9000, 50_000], 50_000),  # 50 ms: nothing is that quick
        (FakeArm(40.0, blind_s=3.0), [90, 900], 400),  # over before it had a rate
    ],
)
def test_short_runs_grow_until_one_is_long_enough_and_the_measurement_takes_10_seconds(arm, runs, steps):
    found, (line,) = length(arm)
    assert (found, arm.runs) == (steps, runs)
    assert line.startswith(
        f"airbench {CASE.model.precision}: each measurement trains on {100 * steps:,} images: about 10 s at "
    )


def test_a_network_whose_number_is_known_is_not_run():
    arm = FakeArm(40.0)
    assert length(arm, CASE.with_values({"training.steps": 7})) == (7, []) and not arm.runs
