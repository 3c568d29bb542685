"""What a run may go on from: refused before anything is started or written."""

import re
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

from ps_cluster.config import build_config
from ps_cluster.errors import UserError
from ps_cluster.runs import checkpoints
from ps_cluster.runs.checkpoints import CheckpointMeta, ProgressState, TallyState
from ps_cluster.runs.ledger import COLUMNS, COUNTS
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.runs.step_set import MOST_OPEN, StepsState
from ps_cluster.runs.times import TrainingTimes
from ps_cluster.training.agreement import facts_of_data
from ps_cluster.training.resuming import check_journals, check_network, newest_checkpoint
from tests.helpers.data import only_named
from tests.helpers.ledgers import random_rows, state, write_journal

DATA = replace(only_named(train=1000), checksum="a" * 64)
NETWORK = ["net/dense/kernel [20, 10]", "net/dense_1/kernel [10, 20]", "net/norm/moving_mean [10]"]
WORK = {"data.dataset": "synthetic", "model.precision": "float32", "training.steps": 8, "cluster.parameter_servers": 2}


def arrays_of(*accepted, columns=len(COLUMNS)):
    """Those of a checkpoint that tell what kind of ledger it is of; so many gradients `accepted` by each shard."""
    counts = np.zeros([len(accepted), len(COUNTS)], np.int64)
    counts[:, COUNTS.index("accepted")] = accepted
    return {
        "counts": counts,
        "accepted_steps": np.zeros([len(accepted), 1], np.int64),
        "waiting": np.zeros([0, 1 + columns]),
    }


def meta_of(config, begun):
    """`begun` updates were handed out, of which those are applied that every shard of `arrays_of(5, 6)` has."""
    steps = StepsState(below=5 * config.steps_per_update, count=5)
    tally = TallyState(staleness={"0": 5})
    progress = ProgressState(scheduled=StepsState(below=begun, count=begun), applied=steps, tally=tally, mixed=0)
    return CheckpointMeta(
        config=config.model_dump(mode="json"), train_seconds=3.0, times=TrainingTimes(), progress=progress,
        data=facts_of_data(DATA), network=NETWORK,
    )  # fmt: skip


@pytest.fixture
def resumed(tmp_path):
    """resumed(values, arrays, meta) → the checkpoint to go on from, with `values` changed; WORK had begun 6 steps."""

    def resume(values=None, *, arrays=None, meta=None, data=DATA):
        run_dir = RunDir.create(tmp_path / "run")
        arrays, meta = arrays or arrays_of(5, 6), meta or meta_of(build_config(None, WORK), begun=6)
        checkpoints.save(run_dir.checkpoints, state(5, arrays, meta), keep=1)
        return newest_checkpoint(build_config(None, WORK | (values or {})), run_dir, data, notify=pytest.fail)

    resume.folder = tmp_path
    return resume


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"training.steps": 20},
        {"training.max_seconds": 3.1},
        {"optimizer.learning_rate": 0.5},
        {"cluster.workers": 2},
    ],
)
def test_the_same_work_goes_on_though_it_be_longer_or_otherwise_done(resumed, values):
    assert resumed(values).step == 5


DILOCO = {"mode.name": "diloco", "mode.local_steps": 4}
ROUNDS = {"mode.name": "sync-ps", "cluster.parameter_servers": 1, "mode.backup_workers": 1}
SHARDS = {"training.sample": "shard:worker"}
OTHER_WORK = [  # settings in addition to WORK, other values for some of them, the name and the value of the difference
    ({}, DILOCO, "mode.name: got diloco"),
    ({}, {"model.name": "resnet_small"}, "model.name: got resnet_small"),
    ({}, {"model.rows_from": 300}, "model.rows_from: got 300"),
    ({}, {"model.activation": "relu"}, "model.activation: got relu"),
    ({}, {"model.width": 0.5}, "model.width: got 0.5"),
    (DILOCO, {"mode.local_steps": 5}, "number of batches in a step: got 5"),
    (DILOCO, {"mode.dynamic_steps": True}, "whether a step may have fewer batches: got true"),
    ({}, {"training.batch_size_per_worker": 255}, "training.batch_size_per_worker: got 255"),
    ({}, {"training.seed": 1}, "training.seed: got 1"),
    ({}, {"training.sample": "bootstrap:3"}, "training.sample: got bootstrap:3"),
    ({}, {"training.label_smoothing": 0.3}, "training.label_smoothing: got 0.3"),
    ({}, {"training.class_weights": {"cat": 2.0}}, 'training.class_weights: got {"cat": 2.0}'),
    ({}, {"data.dataset": "cifar10"}, "data.dataset: got cifar10"),
    ({}, {"data.augmentation.flip": "none"}, "data.augmentation: got "),
    ({}, {"schedule.image_scales": [{"scale": 0.5, "until": 0.3}]}, "schedule.image_scales: got "),
    ({}, {"evaluation.validation_examples": 100}, "evaluation.validation_examples: got 100"),
    (ROUNDS, {"cluster.workers": 4}, "steps of an update: got 4"),
    (ROUNDS, {"mode.backup_workers": 2}, "gradients of an update: got 1"),
    (ROUNDS, {"mode.grace_seconds": 1.0}, "largest number of gradients of an update: got 3"),
    (SHARDS, {"cluster.workers": 4}, "cluster.workers: got 4"),
]


@pytest.mark.parametrize(("before", "values", "says"), OTHER_WORK, ids=[says for *_, says in OTHER_WORK])
def test_other_work_is_refused_by_name(resumed, before, values, says):
    config = build_config(None, WORK | before)
    with pytest.raises(UserError) as refused:
        resumed(before | values, arrays=arrays_of(*[5] * config.shards), meta=meta_of(config, begun=6))
    assert str(refused.value).startswith(says)
    assert ", but the checkpoint to resume from was made with " in str(refused.value)


def test_less_work_than_has_begun_is_refused(resumed):
    says = "training.steps, training.epochs: 5 updates in all, but 6 updates of the run in '.*' have begun"
    with pytest.raises(UserError, match=says):
        resumed({"training.steps": 5})


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (replace(DATA, train_examples=1001), "training examples: got 1,001, but the checkpoint .* was made with 1,000"),
        (replace(DATA, checksum="b" * 64), r"content of the packed data \(SHA-256\): got b{16}, but .* with a{16}"),
    ],
)
def test_other_data_are_refused_by_their_difference(resumed, data, says):
    with pytest.raises(UserError, match=says):
        resumed(data=data)


def test_examples_that_are_held_out_of_the_same_data_are_no_other_data(resumed):
    held_out = {"evaluation.validation_examples": 100}
    meta = meta_of(build_config(None, WORK | held_out), begun=6)
    assert resumed(held_out, meta=meta, data=replace(DATA, train_examples=900, validation_examples=100)).step == 5


@pytest.mark.parametrize("backups", [0, 1])
def test_another_number_of_gradients_an_update_is_other_work(resumed, backups):
    work = {name: value for name, value in WORK.items() if name != "cluster.parameter_servers"}
    before, now = (
        build_config(None, work | {"mode.name": "sync-ps", "mode.backup_workers": count}) for count in (0, backups)
    )
    run_dir, arrays = RunDir.create(resumed.folder / "rounds"), arrays_of(15)
    meta = meta_of(before, begun=5)
    meta = meta.model_copy(
        update={"progress": meta.progress.model_copy(update={"tally": TallyState(staleness={"0": 15})})}
    )
    steps = StepsState(below=15, count=15)
    meta = meta.model_copy(update={"progress": meta.progress.model_copy(update={"applied": steps})})
    checkpoints.save(run_dir.checkpoints, state(5, arrays, meta), keep=1)
    says = "gradients of an update: got 2, but the checkpoint to resume from was made with 3"
    with pytest.raises(UserError, match=says) if backups else nullcontext():
        assert newest_checkpoint(now, run_dir, DATA, notify=pytest.fail).step == 5


@pytest.mark.parametrize(
    ("layout", "says"),
    [
        ([NETWORK[1], NETWORK[0], NETWORK[2]], r"variable 1 of the network is net/dense_1/kernel .* it is net/dense/"),
        (NETWORK[:2], r"variable 3 of the network is nothing, .* of step 5 it is net/norm/moving_mean \[10\]"),
        ([*NETWORK, "net/new [1]"], r"variable 4 of the network is net/new \[1\], .* of step 5 it is nothing"),
    ],
)
def test_a_network_whose_layers_changed_places_is_refused_by_the_first(resumed, layout, says):
    checkpoint = resumed()
    check_network(checkpoint, NETWORK)
    with pytest.raises(UserError, match=says):
        check_network(checkpoint, layout)


@pytest.mark.parametrize("more", [0, 1])
def test_a_ledger_with_less_room_than_there_is_between_open_steps_is_refused(resumed, more):
    arrays = arrays_of(5, 6)
    arrays["accepted_steps"] = np.array([[5, 2**16 + 5 + more]] * 2)
    says = "a ledger has room for 65,536 steps .*, but .* has accepted later steps"
    with pytest.raises(UserError, match=says) if more else nullcontext():
        assert resumed(arrays=arrays).step == 5


def test_another_number_of_parameter_servers_goes_on_from_the_newest_state_that_all_shards_share(tmp_path):
    run_dir, said = RunDir.create(tmp_path / "run"), []
    before, config = build_config(None, WORK), build_config(None, WORK | {"cluster.parameter_servers": 3})
    for step, arrays in ((4, arrays_of(5, 5)), (5, arrays_of(5, 6))):
        checkpoints.save(run_dir.snapshots, state(step, arrays, meta_of(before, begun=6)), keep=9)
    assert newest_checkpoint(before, run_dir, DATA, notify=pytest.fail).step == 5
    assert newest_checkpoint(config, run_dir, DATA, notify=said.append).step == 4
    assert "passed over: checkpoint of step 5: its 2 parameter servers had not applied the same steps" in said[0]
    checkpoints.path_of(run_dir.snapshots, 4).unlink()
    with pytest.raises(UserError, match="holds no checkpoint to resume from"):
        newest_checkpoint(config, run_dir, DATA, notify=said.append)


def test_layers_on_other_workers_are_other_work(tmp_path):
    work = {name: value for name, value in WORK.items() if name != "cluster.parameter_servers"}
    two, three = (build_config(None, work | {"mode.name": "layers", "cluster.workers": workers}) for workers in (2, 3))
    run_dir = RunDir.create(tmp_path / "run")
    checkpoints.save(run_dir.checkpoints, state(5, arrays_of(5, 5), meta_of(two, begun=6)), keep=1)
    with pytest.raises(UserError, match="cluster.workers: got 3, but the checkpoint"):
        newest_checkpoint(three, run_dir, DATA, notify=pytest.fail)


def test_other_settings_of_a_data_set_are_other_work(resumed, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from ps_cluster.config.datasets import DataSet, DataSettings\n"
        "class Settings(DataSettings):\n    fold: int = 1\n"
        "class Mine(DataSet):\n    Settings = Settings\n"
    )
    mine = {"data.dataset": f"{tmp_path}/mine.py:Mine"}
    meta = meta_of(build_config(None, WORK | mine), begun=6)
    with pytest.raises(UserError, match="data.fold: got 2, but the checkpoint to resume from was made with 1"):
        resumed(mine | {"data.fold": 2}, meta=meta)


@pytest.mark.parametrize("arrays", [arrays_of(5, 6, columns=3), {"ledger": np.zeros([2, 6, len(COLUMNS)])}])
def test_a_run_of_an_earlier_version_is_refused(resumed, arrays):
    with pytest.raises(UserError, match="was written by an earlier version"):
        resumed(arrays=arrays)


def test_a_configuration_of_an_earlier_version_is_refused(resumed):
    with pytest.raises(UserError, match="was written by an earlier version"):
        resumed(meta=CheckpointMeta(config={"cluster": {"workers": 3}}, train_seconds=3.0))


def test_updates_are_counted_where_each_takes_several_steps(tmp_path):
    run_dir = RunDir.create(tmp_path / "run")
    config = build_config(None, {"model.name": "tutorial_cnn", "mode.name": "sync", "training.steps": 4})
    checkpoint = state(4, arrays_of(12), meta_of(config, begun=4))
    checkpoints.save(run_dir.checkpoints, checkpoint, keep=1)
    assert newest_checkpoint(config, run_dir, DATA, notify=pytest.fail).step == 4
    with pytest.raises(UserError, match="3 updates in all, but 4 updates of the run"):
        newest_checkpoint(config.with_values({"training.steps": 3}), run_dir, DATA, notify=pytest.fail)


@pytest.fixture
def found(tmp_path):
    """A checkpoint for which the shards had accepted 5 and 6 gradients, and its run directory, whose journals hold more."""
    run_dir = RunDir.create(tmp_path / "run")
    for index in range(2):
        write_journal(run_dir.journal(index, 0), random_rows(8))
    return state(5, arrays_of(5, 6), CheckpointMeta()), run_dir


def test_journals_may_have_more_rows_than_a_checkpoint_counts_or_just_as_many(found):
    check_journals(*found, shards=2)
    write_journal(found[1].journal(1, 0), random_rows(6))
    check_journals(*found, shards=2)


def test_a_journal_that_was_cut_short_or_lost_is_refused_by_name(found):
    path = found[1].journal(1, 0)
    write_journal(path, random_rows(6))
    path.write_bytes(path.read_bytes()[:-1])
    for rows in (5, 0):
        with pytest.raises(UserError, match=f"'{path}' holds {rows} rows, but 6 were written: put it back"):
            check_journals(*found, shards=2)
        path.unlink(missing_ok=True)


def test_fewer_shards_need_only_their_own_journals(found):
    found[1].journal(1, 0).unlink()
    check_journals(*found, shards=1)


def test_a_state_that_names_other_rows_than_its_shards_have_accepted_does_not_add_up(resumed):
    arrays, meta = arrays_of(5, 6), meta_of(build_config(None, WORK), begun=6)
    sound = state(5, arrays, meta)
    other = sound.meta.leaders[0].model_copy(update={"rows": [5, 5]})
    run_dir = RunDir.create(resumed.folder / "other")
    journals = "the journals have [5, 5] rows, and the shards have accepted [5, 6] gradients"
    for leaders, contradiction in (([other], journals), ([], "it names no leader")):
        told = checkpoints.Checkpoint(5, arrays, meta.model_copy(update={"leaders": leaders}))
        checkpoints.save(run_dir.checkpoints, told, keep=1)
        with pytest.raises(UserError, match=re.escape(f"contradict each other ({contradiction}): remove it")):
            newest_checkpoint(build_config(None, WORK), run_dir, DATA, notify=pytest.fail)


def changed(change):
    """Return the arrays and meta of a sound state, after a change to them."""
    arrays, meta = arrays_of(5, 6), meta_of(build_config(None, WORK), begun=6)
    progress = dict(meta.progress)
    change(arrays, progress)
    return {"arrays": arrays, "meta": meta.model_copy(update={"progress": meta.progress.model_copy(update=progress)})}


def _array(name, value):
    """Change: another array of this name."""
    return lambda arrays, progress: arrays.update({name: value})


def _progress(part, **values):
    """Change: other numbers of this part of the progress."""
    return lambda arrays, progress: progress.update({part: progress[part].model_copy(update=values)})


FAR = MOST_OPEN + 1
ROW = [0.0] * len(COLUMNS)


@pytest.mark.parametrize(
    "damage",
    [
        _array("accepted_steps", np.array([[6], [0]])),
        _array("accepted_steps", np.zeros([2, 0], np.int64)),
        _array("accepted_steps", np.zeros([1, 1], np.int64)),
        _array("waiting", np.array([[2.0, *ROW]])),
        _array("waiting", np.array([[-1.0, *ROW]])),
        _array("waiting", np.array([[0.5, *ROW]])),
        _array("waiting", np.array([[0.0, *ROW[:-1], np.nan]])),
        _array("counts", np.array([[5, 5, 0, -1]])),
        _progress("applied", count=6),
        _progress("tally", staleness={"0": 5 + FAR}),
        _progress("scheduled", below=5 + FAR, count=5 + FAR),
    ],
)
def test_a_state_in_which_one_number_contradicts_the_others_does_not_add_up(resumed, damage):
    with pytest.raises(UserError, match="contradict each other"):
        resumed(**changed(damage))


@pytest.mark.parametrize(
    "near",
    [
        _array("accepted_steps", np.array([[5], [5]])),
        _array("waiting", np.array([[1.0, *ROW]])),
        _progress("tally", staleness={"0": 5 + MOST_OPEN}),
    ],
)
def test_what_lies_just_within_the_bounds_goes_on(resumed, near):
    assert resumed(**changed(near)).step == 5
