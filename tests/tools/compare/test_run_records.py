"""What is read out of a run directory, and what is refused."""

import json

import pytest

from ps_cluster.config import build_config
from ps_cluster.errors import UserError
from ps_cluster.process_variables import TRUSTED_FILES
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.tools.compare.groups import make_groups, make_views
from ps_cluster.tools.compare.labels import labels
from ps_cluster.tools.compare.records import Reached, read_record
from tests.helpers.fake_runs import Fake, write_run

# (version, staleness, worker, asked, admitted, pulled, computed, pushed, applied): 10 s in all.
LEDGER = (
    (1, 0, 0, 0.0, 0.0, 1.0, 3.0, 3.0, 3.5),
    (2, 1, 1, 0.0, 0.0, 1.0, 2.0, 9.0, 9.5),
    (3, 1, 0, 4.0, 5.0, 6.0, 8.0, 8.0, 10.0),
)


def read(tmp_path, settings=None, name="run", **values):
    return read_record(write_run(tmp_path / name, Fake(settings or {}, **values)))


def test_target_lies_on_a_straight_line_between_two_scores(tmp_path):
    record = read(tmp_path, scores=((0.40, 10.0, 5000), (0.60, 20.0, 10_000), (0.50, 30.0, 15_000)), train_seconds=30.0)
    assert record.reached(0.45) == Reached(pytest.approx(12.5), pytest.approx(6250.0), is_limit=False)
    assert record.reached(0.60) == Reached(20.0, 10_000.0, is_limit=False)
    assert record.reached(0.40) == Reached(10.0, 5000.0, is_limit=True)
    assert record.reached(0.61) is None
    assert (record.final, record.best) == (0.50, 0.60)


def test_a_score_after_some_seconds_lies_between_two_scores_and_never_far_after_the_last(tmp_path):
    scores = ((0.40, 10.0, 5000), (0.60, 20.0, 10_000), (0.50, 30.0, 15_000))
    record = read(tmp_path, scores=scores, train_seconds=30.0)
    assert [record.after(seconds) for seconds in (10, 15, 30, 30.5)] == [0.40, pytest.approx(0.50), 0.50, 0.50]
    assert (record.after(9), record.after(31)) == (None, None)
    assert read(tmp_path, name="diverged", scores=scores, broken=1).after(15) is None


def test_the_final_score_of_a_run_with_a_time_limit_is_that_at_the_limit(tmp_path):
    scores = ((0.40, 10.0, 5000), (0.60, 20.0, 10_000), (0.70, 25.0, 12_500))
    limited = read(tmp_path, scores=scores, train_seconds=25.0, outcome="stopped", limit_s=20.0)
    assert (limited.final, limited.limit_s) == (0.60, 20.0)
    assert read(tmp_path, name="whole", scores=scores, train_seconds=25.0).final == 0.70


def test_a_target_takes_no_longer_than_the_training(tmp_path):
    record = read(tmp_path, scores=((0.40, 10.0, 5000), (0.60, 20.2, 10_000)), train_seconds=20.0)
    assert record.reached(0.60) == Reached(20.0, 10_000.0, is_limit=False)


def test_a_run_whose_last_loss_is_not_finite_has_no_accuracy(tmp_path):
    record = read(tmp_path, scores=((0.40, 10.0, 5000), (0.0, 20.0, 10_000)), broken=1)
    assert (record.diverged, record.final, record.best, record.reached(0.3)) == (True, None, 0.40, None)
    assert [score.diverged for score in record.scores] == [False, True]
    assert read(tmp_path, name="never", broken=2).best is None


def test_a_run_that_recovered_did_not_diverge(tmp_path):
    run_dir = RunDir(write_run(tmp_path / "run", Fake({})))
    summary = json.loads(run_dir.summary.read_text())
    summary["evaluation"]["history"][0]["test_loss"] = None
    run_dir.summary.write_text(json.dumps(summary))
    record = read_record(run_dir.root)
    assert (record.scores[0].diverged, record.diverged, record.final) == (True, False, 0.60)


def test_idle_share_is_what_lies_outside_of_pulled_to_pushed(tmp_path):
    record = read(tmp_path, rows=LEDGER, settings={"cluster.workers": 2})
    assert record.idle_shares == {0: pytest.approx(1 - (2 + 2) / 10), 1: pytest.approx(1 - 8 / 10)}


def test_a_worker_none_of_whose_gradients_were_accepted_was_idle_all_the_time(tmp_path):
    record = read(tmp_path, rows=LEDGER, settings={"cluster.workers": 4})
    assert [record.idle_shares[worker] for worker in (2, 3)] == [1.0, 1.0]


def test_a_run_without_a_ledger_or_a_count_of_dropped_gradients_is_read(tmp_path):
    record = read(tmp_path)
    assert record.idle_shares == {}
    assert record.examples_per_second == pytest.approx(10_240 / 20)


def test_what_is_no_finished_run_is_refused_in_one_line(tmp_path):
    (tmp_path / "empty").mkdir()
    unfinished = RunDir(write_run(tmp_path / "unfinished", Fake({})))
    unfinished.summary.unlink()
    broken = RunDir(write_run(tmp_path / "broken", Fake({})))
    broken.summary.write_text("[]")
    foreign = RunDir(write_run(tmp_path / "foreign", Fake({}, rows=LEDGER)))
    foreign.updates.write_text("step,colour\n1,2\n")
    cases = {
        tmp_path / "nowhere": "is not there",
        tmp_path / "empty": "is not a run: it holds no config.yaml",
        unfinished.root: "holds no finished run: it has no summary.json",
        broken.root: "summary.json': got \\[\\]: a mapping of names to values is needed",
        foreign.root: "updates.csv': has other columns: step,colour",
        write_run(tmp_path / "stopped", Fake({}, outcome="stopped")): "its outcome is 'stopped'",
        write_run(tmp_path / "unscored", Fake({}, scores=())): "none of its checkpoints was scored",
        write_run(tmp_path / "no-time", Fake({}, train_seconds=0.0)): "10240 examples in 0.0 seconds",
    }
    for root, reason in cases.items():
        with pytest.raises(UserError, match=reason) as refusal:
            read_record(root)
        assert "\n" not in str(refusal.value) and str(root) in str(refusal.value)


@pytest.mark.parametrize(
    ("settings", "label"),
    [
        ({}, "async"),
        ({"mode.name": "bounded"}, "bounded s=3"),
        ({"mode.name": "bounded", "mode.max_clock_lag": 0}, "bounded lag=0"),
        ({"mode.name": "bounded", "mode.max_clock_lag": 1, "mode.max_staleness": 4}, "bounded s=4 lag=1"),
        ({"mode.name": "sync-ps", "mode.backup_workers": 1}, "sync-ps b=1"),
        ({"mode.simulate_workers": 30, "staleness.method": "inverse"}, "async k=30 inverse"),
        ({"mode.name": "elastic", "optimizer.rule": "sgd"}, "elastic k=4"),
    ],
)
def test_an_arm_is_named_after_what_sets_it_apart(tmp_path, settings, label):
    assert labels([read(tmp_path, settings).config]) == [label]


def test_no_arm_is_named_after_none(tmp_path):
    configs = [read(tmp_path, {"optimizer.global_clip_norm": value}).config for value in (None, 0.5)]
    assert labels(configs) == ["async clip=none", "async clip=0.5"]


def test_arms_that_differ_in_a_setting_of_a_mode_of_ones_own_have_different_names(tmp_path, monkeypatch):
    monkeypatch.delenv(TRUSTED_FILES, raising=False)
    (tmp_path / "mine.py").write_text(
        "from ps_cluster.config.modes import ModeSettings\nfrom ps_cluster.training.modes.base import DefaultMode\n"
        "class Settings(ModeSettings):\n    every: int = 2\nclass Toy(DefaultMode):\n    Settings = Settings\n"
    )
    mode = f"{tmp_path}/mine.py:Toy"
    configs = [build_config(overrides={"mode.name": mode, "mode.every": every}) for every in (2, 3)]
    assert labels(configs) == [f"{mode} mode.every=2", f"{mode} mode.every=3"]


def groups_of(tmp_path, *settings):
    return make_groups([read(tmp_path, each, name=str(index)) for index, each in enumerate(settings)])


def test_seeds_make_a_group_and_everything_else_makes_another(tmp_path):
    rates = [{"optimizer.learning_rate": rate, "training.seed": seed} for rate in (0.1, 0.5) for seed in (1, 0)]
    groups = groups_of(tmp_path, *rates, {"mode.name": "sync"})
    assert [(group.arm, group.seeds) for group in groups] == [
        ("async lr=0.1", (0, 1)), ("async lr=0.5", (0, 1)), ("sync", (0,))
    ]  # fmt: skip


def test_batches_are_equal_per_update_or_per_worker(tmp_path):
    sizes = [("async", 128), ("async", 384), ("sync", 128), ("single", 384)]
    groups = groups_of(tmp_path, *({"mode.name": mode, "training.batch_size_per_worker": size} for mode, size in sizes))
    per_update, per_worker = make_views(groups)
    assert (per_update.batch, per_worker.batch) == (
        "same batch per update: 384 images", "same batch per worker: 128 images"
    )  # fmt: skip
    assert [(group.arm, group.batch) for group in per_update.groups if group is not per_update.baseline] == [
        ("async", 384),
        ("single", 384),
    ]
    assert [(group.arm, group.batch) for group in per_worker.groups if group is not per_worker.baseline] == [
        ("async", 128)
    ]
    assert per_update.baseline.arm == per_worker.baseline.arm == "sync"


def test_a_third_of_128_images_times_three_is_the_same_batch(tmp_path):
    groups = groups_of(tmp_path, {}, {"mode.name": "sync", "training.batch_size_per_worker": 43})
    [view] = make_views(groups)
    assert view.batch == "same batch per update: 129 images"


def test_the_baseline_is_sync_or_the_first_or_the_one_that_is_named(tmp_path):
    groups = groups_of(tmp_path, {"mode.name": "bounded"}, {}, {"mode.name": "single"})
    assert {view.baseline.arm for view in make_views(groups)} == {"bounded s=3"}
    assert {view.baseline.arm for view in make_views(groups, "single")} == {"single"}
    with pytest.raises(UserError, match="no arm is called 'sync'.* there are bounded s=3, async, single"):
        make_views(groups, "sync")


def test_groups_that_share_no_batch_have_no_baseline(tmp_path):
    groups = groups_of(tmp_path, {}, {"mode.name": "sync", "training.batch_size_per_worker": 64})
    [view] = make_views(groups)
    assert (view.baseline, len(view.groups)) == (None, 2)
