"""What is measured of large embedding tables, and the arms that train them in one process."""

from itertools import islice

import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.data.packing import write_packed
from ps_cluster.data.sets.clicks import ClickSettings, generate
from ps_cluster.errors import UserError
from ps_cluster.notices import ignore
from ps_cluster.system.limits import allowance
from ps_cluster.tools.bench import cases, keras_arms, running, table_arms, table_speed
from ps_cluster.tools.bench.cases import case

SMALL = {"training.batch_size_per_worker": 32, "model.row_width": 4, "data.rows": 30}


@pytest.fixture(scope="module")
def clicks(tmp_path_factory):
    settings = ClickSettings(dataset="clicks", rows=30, train_examples=500, test_examples=100)
    return write_packed(tmp_path_factory.mktemp("clicks") / "packed", "clicks", "synthetic", generate(settings)[0])


def test_batches_and_widths_are_varied_unless_one_is_set(clicks):
    def sizes(values):
        found = table_speed.jobs(clicks, {"training.steps": 7, "data.rows": 30} | values, notify=ignore)
        return [tuple(job.about.values()) for job in found]

    assert sizes({}) == [(512, 16, 30), (512, 64, 30), (2048, 16, 30), (2048, 64, 30)]
    assert sizes({"model.row_width": 8}) == [(512, 8, 30), (2048, 8, 30)]
    assert sizes(SMALL) == [(32, 4, 30)]


def test_every_arm_has_one_rule_and_rate_and_all_tables_by_rows(clicks):
    (job,) = table_speed.jobs(clicks, SMALL | {"training.steps": 7}, notify=ignore)
    configs = {arm.name: arm.config(job.case) for arm in job.arms}
    clusters = {
        name: (one.mode.name, one.cluster.workers, one.cluster.parameter_servers) for name, one in configs.items()
    }
    assert [clusters[name] for name in ("async", "async_2ps", "per_variable")] == [
        ("async", 2, 1), ("async", 2, 2), ("async", 2, 1),
    ]  # fmt: skip
    assert configs["mode_single"].mode.name == "single"
    for one in configs.values():
        assert (one.optimizer.rule, one.optimizer.learning_rate) == ("adagrad", job.case.optimizer.learning_rate)
        assert (one.training.steps, one.model.rows_from) == (7, 1)
        assert not one.cluster.evaluator


def test_an_arm_trains_as_many_updates_as_fit_its_own_speed(clicks):
    steps_per_second = {arm.name: 10.0 * place for place, arm in enumerate(table_speed.ARMS, 1)}

    def rate(arm, config, packed):
        return steps_per_second[arm.name] * config.examples_per_step

    (job,) = islice(table_speed.jobs(clicks, SMALL, notify=ignore, rate=rate), 1)
    assert [arm.config(job.case).training.steps for arm in job.arms] == [100, 200, 300, 400, 500, 600]


def test_rows_are_counted_for_each_core_and_ratios_are_to_every_baseline_that_is_measured():
    rates = {"fit": [10, 20], "hand": [40, 40], "async": [20, 30], "per_variable": [5, 10]}
    measured = [table_speed.FIT, table_speed.HAND, table_speed.ASYNC, table_speed.PER_VARIABLE]
    columns = {column.heading: column.read for column in table_speed.columns_of(measured)}
    assert list(columns) == ["examples/s", "rows/s per core", "this ÷ fit", "this ÷ hand", "this ÷ per_variable"]
    cores = allowance().threads
    of_async = [read(rates, table_speed.ASYNC) for read in columns.values()]
    assert of_async == [[20, 30], [20 * 26 / cores, 30 * 26 / cores], [2.0, 1.5], [0.5, 0.75], [4, 3]]
    assert (
        columns["this ÷ fit"](rates, table_speed.HAND) == [4, 2]
        and columns["this ÷ fit"](rates, table_speed.FIT) is None
    )


@pytest.mark.parametrize("key", ["data.dataset", "model.name", "optimizer.rule", "mode.name", "cluster.workers"])
def test_a_setting_that_the_arms_choose_is_refused(key):
    with pytest.raises(UserError, match=f"--set {key}: the arm tables chooses this setting itself"):
        cases.refuse_fixed_settings(table_speed.NAME, table_speed.CHOSEN, {key: 1})


@pytest.mark.exhaustive
@pytest.mark.slow
def test_steps_by_hand_are_those_of_keras(clicks, monkeypatch):
    monkeypatch.chdir(clicks.directory)
    config = table_speed.HAND.config(case("dlrm", "float32", clicks, SMALL | {"training.steps": 12}))
    config = config.with_values({"optimizer.learning_rate": 0.1})  # so that every update shows in the losses
    makers = keras_arms.keras_step_alone, table_arms.hand_step
    by_keras, by_hand = (
        [float(train(tf.constant(step, tf.int64))) for step in range(12)]
        for train in (tf.function(make(config, clicks), autograph=False) for make in makers)
    )
    assert by_hand == pytest.approx(by_keras, rel=1e-3) and by_hand[0] == pytest.approx(by_keras[0], rel=1e-6)
    assert np.ptp(by_hand) > 0.01


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("arm", [table_speed.FIT, table_speed.HAND], ids=lambda arm: arm.name)
def test_an_arm_of_one_process_measures_a_rate(arm, clicks):
    config = arm.config(case("dlrm", "float32", clicks, SMALL | {"training.steps": 12}))
    assert running.rate_of(arm, config, clicks) > 0
