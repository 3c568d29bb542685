import pytest
import tensorflow as tf

from ps_cluster.config import build_config
from ps_cluster.process_variables import TRUSTED_FILES
from ps_cluster.runs.journal import CountedWork
from ps_cluster.training.learning_rate import ledger_settings_digest, schedule_factor


def factor(kind, step, total=101):
    values = {"kind": kind, "warmup_fraction": 0.2, "start_factor": 0.1, "end_factor": 0.05}
    settings = build_config(overrides={f"schedule.{key}": value for key, value in values.items()}).schedule
    return float(schedule_factor(settings, tf.constant(step, tf.int64), total))


@pytest.mark.parametrize("kind", ["constant", "triangle", "cosine"])
def test_every_schedule_rises_linearly_to_the_peak(kind):
    assert [factor(kind, step) for step in (0, 10, 20)] == pytest.approx([0.1, 0.55, 1.0], abs=1e-6)


@pytest.mark.parametrize(
    ("kind", "middle", "last"), [("constant", 1, 1), ("triangle", 0.525, 0.05), ("cosine", 0.525, 0.05)]
)
def test_it_ends_where_the_settings_say(kind, middle, last):
    assert [factor(kind, 60), factor(kind, 100)] == pytest.approx([middle, last], abs=1e-6)


def test_a_run_of_one_step_has_a_learning_rate():
    assert factor("triangle", 0, total=1) == pytest.approx(0.1)


def test_another_content_of_a_users_schedule_is_another_rule(tmp_path, monkeypatch):
    file = tmp_path / "mine.py"
    file.write_text(
        "from ps_cluster.config.schedules import Schedule\n\n\nclass Mine(Schedule):\n"
        "    def after_warmup(self, settings, past):\n        return 1 - past\n"
    )
    monkeypatch.setenv(TRUSTED_FILES, str(file))
    config = build_config(overrides={"schedule.kind": f"{file}:Mine"})
    before = ledger_settings_digest(config, 10)
    assert ledger_settings_digest(config, 10) == before
    file.write_text(file.read_text().replace("1 - past", "1 - past / 2"))
    assert ledger_settings_digest(config, 10) != before


def test_a_schedule_with_a_thousand_points_fits_into_a_checkpoint():
    points = {"boundaries": list(range(1, 1_001)), "values": [1 / number for number in range(1, 1_002)]}
    values = {"schedule.kind": "keras", "schedule.function": "PiecewiseConstantDecay", "schedule.arguments": points}
    digest = ledger_settings_digest(build_config(overrides=values), 10)
    assert CountedWork(step=0, rows=[0], checksums=[0], rules=digest).rules == digest


DILOCO = {"mode.name": "diloco", "mode.local_steps": 4, "cluster.parameter_servers": 2}


@pytest.mark.parametrize(
    ("values", "other"),
    [
        ({}, {"schedule.kind": "cosine"}),
        ({}, {"schedule.warmup_fraction": 0.3}),
        ({}, {"optimizer.learning_rate": 0.3}),
        ({}, {"training.batch_size_per_worker": 7}),
        ({"mode.name": "sync-ps"}, {"cluster.workers": 5}),
        ({"mode.name": "bounded"}, {"mode.max_staleness": 5}),
        (DILOCO, {"mode.local_steps": 5}),
        (DILOCO, {"mode.fragments": True}),
        (DILOCO | {"mode.fragments": True}, {"cluster.parameter_servers": 3}),
    ],
    ids=str,
)
def test_rows_follow_another_rule_after_a_change_of_a_setting_that_decides_their_values(values, other):
    base = {"schedule.kind": "triangle", "optimizer.learning_rate": 0.2} | values
    before, after = build_config(overrides=base), build_config(overrides=base | other)
    assert ledger_settings_digest(before, 10) != ledger_settings_digest(after, 10)


def test_rows_follow_another_rule_if_the_training_has_another_length_and_the_same_rule_after_other_changes():
    config = build_config()
    others = config.with_values({"training.seed": 3}), config.with_values({"cluster.workers": 5})
    assert {ledger_settings_digest(other, 10) for other in others} == {ledger_settings_digest(config, 10)}
    assert ledger_settings_digest(config, 11) != ledger_settings_digest(config, 10)
