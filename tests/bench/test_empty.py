import json

import numpy as np
import pytest
import tensorflow as tf
from rich.console import Console

from ps_cluster.config import build_config
from ps_cluster.errors import UserError
from ps_cluster.server.leftovers import new_session
from ps_cluster.server.shard import APPLIED
from ps_cluster.tools.bench import arms, empty
from tests.helpers.data import only_named
from tests.helpers.stores import ledger_of, row, state_of


def test_step_pushes_what_it_pulled_and_is_in_the_ledger(tmp_path):
    config = build_config(
        None, {"training.steps": 3, "cluster.wire": "float32", "optimizer.rule": "sgd", "optimizer.weight_decay": 0.0}
    )
    dataset = only_named("cifar10", tmp_path, 50_000, 10_000)
    store, compute = empty.build(7, config, dataset, ["/device:CPU:0"] * 2, "/device:CPU:0", new_session())
    pulled, step = store.pull(tf.constant(0, tf.int64)), tf.constant(1, tf.int64)
    result = compute(step, pulled.weights, pulled.statistics)
    outcome = store.push(step, pulled.versions, result.gradient, result.fresh, row(learning_rate=0.0))
    assert outcome.numpy().tolist() == [APPLIED, APPLIED]
    assert state_of(store)["weights"].tolist() == np.zeros(7).tolist()
    assert [rows["step"].tolist() for rows in ledger_of(store)[0]] == [[1], [1]]


def test_all_sizes_are_measured_in_turns_and_told_in_steps(tmp_path, monkeypatch):
    ran = []

    def measured(arm, config, dataset):
        weights, cluster = int(arm.arguments[1]), config.cluster
        ran.append((weights, cluster.workers, cluster.parameter_servers))
        return 128.0 * len(ran)  # examples/s

    monkeypatch.setattr(empty, "measure_once", measured)
    dataset, lines = only_named("cifar10", tmp_path, 50_000, 10_000), []
    rows = empty.measure(dataset, {}, 2, tmp_path / "out.json", notify=lines.append)
    sizes = [(weights, workers, ps) for weights in (1_000, 1_000_000) for workers in (3, 16) for ps in (1, 4)]
    assert ran == sizes * 2 and [tuple(row.values())[:3] for row in rows] == sizes
    assert rows[0]["steps_per_second"]["values"] == [1.0, 9.0]
    assert json.loads((tmp_path / "out.json").read_text()) == {"rows": rows}
    assert lines[0] == "round 1/2: weights 1,000, workers 3, parameter servers 1: 1 steps/s"
    console = Console(record=True, width=100)
    empty.print_table(rows, console)
    assert console.export_text().splitlines()[2].split() == ["1,000", "3", "1", "5", "(1–9)"]


def test_empty_steps_are_measured_by_themselves():
    with pytest.raises(UserError, match="--arms: got 'empty': .*by itself also empty"):
        arms.choose(["cluster", "empty"])
