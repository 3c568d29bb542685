import contextlib
import math
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from ps_cluster.config import build_config
from ps_cluster.errors import UserError
from ps_cluster.files.json_rows import append_row
from ps_cluster.files.tensor_files import Pieces
from ps_cluster.runs import checkpoints
from ps_cluster.runs.journal import CountedWork, JournalNotWritten, JournalPart
from ps_cluster.runs.ledger import COUNTS
from ps_cluster.runs.resharding import newest_aligned
from ps_cluster.runs.result_rows import CallbacksRow, EvaluationRow
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.runs.step_set import StepSet
from ps_cluster.runs.times import TrainingClock, TrainingTimes
from ps_cluster.server.vector_on_server import Extent
from ps_cluster.training import saver as module
from ps_cluster.training.aligned_states import LONGEST_PAUSE_S, PAUSE_FACTOR
from ps_cluster.training.run_progress import RunProgress
from ps_cluster.training.saver import SNAPSHOTS_KEPT, Saver, check_disk


class FakeBooks:
    """A version more with each snapshot; the second of two shards is one ahead."""

    def __init__(self, clock):
        self.clock, self.version, self.takes, self.refuse = clock, 0, 0.0, False
        self.changed_share, self.extents = 1.0, []

    @property
    def pieces(self):
        return [JournalPart(Path(f"shard-{index}"), self.version + index, 7) for index in range(2)]

    def snapshot(self, extent):
        self.extents.append(extent)
        if self.refuse:
            raise JournalNotWritten("a journal can't be written")
        self.version += 1
        self.clock.now += self.takes
        counts = np.zeros([2, len(COUNTS)], np.int64)
        counts[:, COUNTS.index("version")] = self.version, self.version + 1
        return {"weights": np.full(3, self.version, np.float32), "counts": counts}


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


BY_TIME = {"every_seconds": 10.0, "snapshot_every_seconds": 2.0, "keep": 2}


@pytest.fixture
def saving(tmp_path):
    """saving(seconds) lets so many seconds pass, one look a second."""
    return make_saving(tmp_path, BY_TIME)


def make_saving(tmp_path, settings, books=FakeBooks, **more):
    config = build_config(overrides={f"checkpoints.{name}": value for name, value in settings.items()} | more)
    clock, said = Clock(), []

    def let_pass(seconds):
        for _ in range(seconds):
            clock.now += 1
            let_pass.saver.save_when_due(let_pass.problem)

    let_pass.run_dir, let_pass.said, let_pass.problem = RunDir.create(tmp_path / "run"), said, ""
    let_pass.books = books(clock)
    let_pass.config, let_pass.progress = config, RunProgress(config, 100)
    let_pass.trained = Trained(let_pass.progress, applied=1)
    let_pass.saver = Saver(
        config, let_pass.run_dir, "synthetic", let_pass.books, let_pass.trained,
        saving=lambda: let_pass.while_saving(), notify=lambda line: said.append(str(line)), clock=clock,
    )  # fmt: skip
    let_pass.while_saving = lambda: None
    return let_pass


def test_snapshots_and_checkpoints_are_written_each_at_its_interval(saving):
    saving(1)
    assert not checkpoints.newest_first(saving.run_dir.states)
    saving(8)
    assert len(checkpoints.steps(saving.run_dir.snapshots)) == SNAPSHOTS_KEPT
    assert checkpoints.steps(saving.run_dir.checkpoints) == []
    saving(3)
    assert len(checkpoints.steps(saving.run_dir.checkpoints)) == 1


def test_before_the_first_update_there_is_no_snapshot(saving):
    saving.trained.applied = 0
    saving(9)
    assert not checkpoints.newest_first(saving.run_dir.states)


def test_a_save_may_be_due_after_a_round_during_which_its_time_comes(saving):
    saver, trained = saving.saver, saving.trained
    trained.applied, trained.next_checkpoint_at, trained.pace = 0, 1_000, SimpleNamespace(step_s=0.1)
    assert not saver.may_be_due_at(19) and saver.may_be_due_at(21), "a snapshot after two seconds, before any update"
    trained.applied = 1
    saver.save_when_due("")
    assert not checkpoints.newest_first(saving.run_dir.states), "looking saves nothing, and nothing is due yet"
    saving(2)
    assert not saver.may_be_due_at(15) and saver.may_be_due_at(22)


def test_a_save_may_be_due_after_a_round_that_ends_whole_epochs_whatever_the_time(exact):
    exact(3)
    assert not exact.saver.may_be_due_at(9) and exact.saver.may_be_due_at(10)
    exact(10)
    assert not exact.saver.may_be_due_at(19) and exact.saver.may_be_due_at(20)


class BooksOfTables(FakeBooks):
    """The weights are read in pieces."""

    def snapshot(self, extent):
        return super().snapshot(extent) | {"weights": Pieces.of(np.ones(3, np.float32))}


def test_a_full_snapshot_follows_once_those_of_changed_rows_would_be_as_large_and_where_one_was_not_written(tmp_path):
    saving = make_saving(tmp_path, BY_TIME, BooksOfTables)
    saving.books.changed_share = 0.4
    saving(10)
    extents = [Extent.FULL, Extent.CHANGED, Extent.CHANGED, Extent.FULL, Extent.WHOLE]
    assert saving.books.extents == extents, "a checkpoint is whole"
    since = [(state.step, state.since) for state in checkpoints.states(saving.run_dir.snapshots)]
    assert since == [(1, None), (3, 1), (4, None)], "the third one builds on the first"
    saving.books.changed_share, saving.books.refuse = 1.0, True
    saving(2)
    saving.books.changed_share, saving.books.refuse = 0.1, False
    saving(4)
    assert saving.books.extents[len(extents) :] == [Extent.FULL, Extent.FULL, Extent.CHANGED]


@pytest.mark.parametrize("in_pieces", [False, True])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_weights_that_are_no_numbers_are_seen_at_the_next_save_and_large_ones_are_not(tmp_path, bad, in_pieces):
    class Books(FakeBooks):
        weight = 3e38  # the sum of three is infinite

        def snapshot(self, extent):
            weights = np.array([self.weight, 3e38, 3e38], np.float32)
            pieces = Pieces(weights.shape, weights.dtype, lambda: iter([weights[:1], weights[1:]]))
            return super().snapshot(extent) | {"weights": pieces if in_pieces else weights}

    saving = make_saving(tmp_path, BY_TIME, Books)
    saving(3)
    assert not saving.saver.diverged
    saving.books.weight = bad
    saving(3)
    assert saving.saver.diverged


def test_a_state_says_which_leaders_made_it_and_how_many_rows_each_of_them_wrote(tmp_path):
    config, run_dir = build_config(), RunDir.create(tmp_path / "run")
    before, books = [CountedWork(term=1, step=9, rows=[9, 9], checksums=[3, 4])], FakeBooks(Clock())
    progress = Trained(RunProgress(config, 100), applied=1)
    Saver(config, run_dir, "synthetic", books, progress, term=3, before=before).save_last("")
    (state,) = checkpoints.states(run_dir.checkpoints)
    assert (state.term, state.step) == (3, 1)
    own = CountedWork(term=3, step=1, rows=[1, 2], checksums=[7, 7])
    assert checkpoints.load(state.path).meta.leaders == [*before, own]


def test_every_saved_state_contains_the_problem_that_was_known_when_it_was_saved(tmp_path):
    saving = make_saving(
        tmp_path, {"every_seconds": 10.0, "snapshot_every_seconds": 5.0}, **{"evaluation.after_training": True}
    )
    saving.trained.applied = 0
    saving.saver.save_first("first")
    saving.trained.applied = 1
    saving.problem = "due"
    saving(10)
    assert problems_in(saving.run_dir.snapshots) == ["due"]
    saving.saver.save_last("last")
    assert problems_in(saving.run_dir.checkpoints) == ["first", "due", "last"]


def problems_in(folder):
    """Return the problem that each state in a folder contains, in the order of the steps."""
    states = sorted(checkpoints.states(folder), key=lambda state: state.step)
    return [checkpoints.load(state.path).meta.leaders[-1].problem for state in states]


@pytest.mark.parametrize("room", [7_000, 6_999])
def test_a_disk_without_room_for_the_states_is_told_before_training(tmp_path, room):
    config, run_dir = build_config(overrides={"checkpoints.keep": 3}), RunDir.create(tmp_path / "run")
    with pytest.raises(UserError, match="checkpoints.keep: got 3") if room < 7_000 else contextlib.nullcontext():
        check_disk(config, run_dir, 1_000, lambda folder: room)


class Trained:
    """Progress that was made up in part."""

    def __init__(self, progress, **made_up):
        self._progress = progress
        vars(self).update(made_up)

    def __getattr__(self, name):
        return getattr(self._progress, name)


def test_checkpoints_are_written_after_so_many_images_where_that_is_asked_for_whatever_the_time(tmp_path):
    settings = {"every_seconds": 1.0, "every_epochs": 0.125, "snapshot_every_seconds": 1e6, "keep": 9}
    saving = make_saving(tmp_path, settings)
    written = []
    for epochs in (0.0, 0.12, 0.13, 0.24, 0.25, 0.26, 0.6, 0.61):
        saving.trained.epochs = epochs
        saving(100)
        written.append(len(checkpoints.steps(saving.run_dir.checkpoints)))
    assert written == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_checkpoint_of_whole_epochs_that_the_disk_refused_is_written_when_there_is_room_again(tmp_path, monkeypatch):
    settings = {"every_seconds": 1.0, "every_epochs": 0.125, "snapshot_every_seconds": 1e6, "keep": 9}
    saving = make_saving(tmp_path, settings)
    saving.trained.epochs = 0.13
    save = checkpoints.save

    def refuse(*_):
        raise checkpoints.CheckpointNotWritten("no room")

    monkeypatch.setattr(checkpoints, "save", refuse)
    saving(12)
    assert not checkpoints.steps(saving.run_dir.checkpoints) and 2 <= len(saving.said) <= 3, "not at every look"
    monkeypatch.setattr(checkpoints, "save", save)
    saving(20)
    assert len(checkpoints.steps(saving.run_dir.checkpoints)) == 1


def test_all_checkpoints_are_kept_where_they_are_scored_after_the_training(tmp_path):
    settings = {"every_seconds": 1.0, "snapshot_every_seconds": 1e6, "keep": 2}
    saving = make_saving(tmp_path, settings, **{"evaluation.after_training": True})
    saving(6)
    assert len(checkpoints.steps(saving.run_dir.checkpoints)) == 6


EVERY_EPOCH = {"every_seconds": 1.0, "every_epochs": 1.0, "snapshot_every_seconds": 1e6, "keep": 2}


def of_whole_epochs(tmp_path, settings=EVERY_EPOCH, **more):
    """Return (epochs, seconds=1) → the steps of the checkpoints when so many epochs are trained."""
    saving = make_saving(tmp_path, settings, **more)
    saving.trained.epochs = 0.0

    def trained(epochs, seconds=1):
        saving.trained.epochs = float(epochs)
        saving(seconds)
        return checkpoints.steps(saving.run_dir.checkpoints)

    trained.saving = saving
    return trained


def scored(run_dir, step):
    append_row(run_dir.evaluation, EvaluationRow(step=step, test_accuracy=0.5, test_loss=1.0))


def test_checkpoints_of_whole_epochs_are_kept_until_they_are_scored(tmp_path):
    trained = of_whole_epochs(tmp_path)
    run_dir = trained.saving.run_dir
    assert [trained(epochs) for epochs in (1, 2, 3, 4)][-1] == [1, 2, 3, 4]
    scored(run_dir, 1)
    scored(run_dir, 2)
    assert trained(5) == [3, 4, 5]
    for step in (3, 4, 5):
        scored(run_dir, step)
    assert trained(6) == [5, 6], "as many as checkpoints.keep"


@pytest.mark.parametrize("evaluator", [False, True])
def test_checkpoints_are_kept_until_the_callbacks_that_follow_the_run_had_them(tmp_path, evaluator):
    trained = of_whole_epochs(tmp_path, **{"cluster.evaluator": evaluator})
    run_dir = trained.saving.run_dir
    append_row(run_dir.callbacks, CallbacksRow(step=0))
    for epochs in (1, 2, 3, 4):
        trained(epochs)
        if evaluator:
            scored(run_dir, epochs)
    assert checkpoints.steps(run_dir.checkpoints) == [1, 2, 3, 4]
    append_row(run_dir.callbacks, CallbacksRow(step=2))
    assert trained(5) == [3, 4, 5]
    if evaluator:
        scored(run_dir, 5)
    append_row(run_dir.callbacks, CallbacksRow(step=5))
    assert trained(6) == [5, 6], "as many as checkpoints.keep"


def test_checkpoints_of_whole_epochs_are_kept_for_the_evaluator_after_a_roll_back_to_before_the_last_score(tmp_path):
    trained = of_whole_epochs(tmp_path)
    scored(trained.saving.run_dir, 1000)  # of what training has given up
    assert [trained(epochs) for epochs in (1, 2, 3, 4)][-1] == [1, 2, 3, 4]


def test_checkpoints_of_whole_epochs_wait_for_no_evaluator_where_there_is_none_and_only_as_far_as_there_is_room(
    tmp_path, monkeypatch
):
    trained = of_whole_epochs(tmp_path / "alone", **{"cluster.evaluator": False})
    assert [trained(epochs) for epochs in (1, 2, 3)][-1] == [2, 3]
    trained = of_whole_epochs(tmp_path / "small")
    trained(1)
    (state,) = checkpoints.states(trained.saving.run_dir.checkpoints)
    monkeypatch.setattr(module, "MOST_WAITING_BYTES", 3 * state.path.stat().st_size + 1)
    assert [trained(epochs) for epochs in (2, 3, 4, 5)][-1] == [3, 4, 5]


def test_a_checkpoint_of_whole_epochs_does_not_wait_for_the_pause_after_a_snapshot(tmp_path):
    trained = of_whole_epochs(tmp_path, EVERY_EPOCH | {"snapshot_every_seconds": 2.0})
    trained.saving.books.takes = 2.0  # so snapshots pause for 40 s
    assert trained(0, seconds=3) == [] and len(checkpoints.steps(trained.saving.run_dir.snapshots)) == 1
    assert len(trained(1, seconds=2)) == 1


def test_where_all_checkpoints_are_scored_after_the_training_the_first_is_that_of_the_initial_weights(tmp_path):
    for is_after, expected in ((True, 1), (False, 0)):
        trained = of_whole_epochs(tmp_path / str(is_after), **{"evaluation.after_training": is_after})
        trained.saving.trained.applied = 0
        trained.saving.saver.save_first("")
        assert len(checkpoints.steps(trained.saving.run_dir.checkpoints)) == expected
        trained.saving.trained.applied = 1  # a run that is resumed
        trained.saving.saver.save_first("")
        assert len(checkpoints.steps(trained.saving.run_dir.checkpoints)) == expected


def test_saving_that_takes_long_is_done_less_often(saving):
    saving.books.takes = 0.5  # of the snapshot at 2 s
    saving(10)
    assert saving.books.version == 1, "nothing for 20 times as long, not even the checkpoint that is due"
    saving(4)
    assert [len(checkpoints.steps(folder)) for folder in saving.run_dir.states] == [1, 1]
    saving.books.takes = 1000.0
    saving(12)
    assert saving.books.version == 3
    saving.books.takes = 0.0
    saving(65)
    assert saving.books.version > 4, "a minute at most"


def test_a_checkpoint_says_where_the_run_is_and_what_it_took(saving):
    saving(2)
    found = checkpoints.load_newest_good([saving.run_dir.snapshots], print)
    assert (found.step, found.arrays["weights"].tolist()) == (1, [1, 1, 1])
    assert (found.meta.dataset_kind, found.meta.examples, found.meta.train_seconds) == ("synthetic", 0, 0)
    assert found.meta.times == TrainingTimes()
    progress = RunProgress(build_config(), 100)
    assert found.meta.progress == progress.state


def test_training_goes_on_when_the_disk_refuses_a_snapshot_and_says_so(saving):
    saving.run_dir.snapshots.write_text("a file where the folder should be")
    saving(4)
    assert len(saving.said) == 2 and all("training continues, but: checkpoint" in line for line in saving.said)
    saving.run_dir.snapshots.unlink()
    saving(2)
    assert len(checkpoints.steps(saving.run_dir.snapshots)) == 1


def test_a_snapshot_whose_rows_are_not_on_the_disk_is_put_off_and_training_goes_on(saving):
    saving.books.refuse = True
    saving(4)
    assert saving.said == ["training continues, but: a journal can't be written"] * 2
    assert checkpoints.load_newest_good(saving.run_dir.states, print) is None
    saving.books.refuse = False
    saving(2)
    assert len(checkpoints.steps(saving.run_dir.snapshots)) == 1


def test_the_last_checkpoint_replaces_the_snapshots_or_fails_loudly(saving):
    saving(4)
    saving.saver.save_last("")
    assert not saving.run_dir.snapshots.exists() and len(checkpoints.steps(saving.run_dir.checkpoints)) == 1
    saving.run_dir.checkpoints.rename(saving.run_dir.root / "elsewhere")
    saving.run_dir.checkpoints.write_text("in the way")
    with pytest.raises(checkpoints.CheckpointNotWritten, match="checkpoint"):
        saving.saver.save_last("")


def test_snapshots_that_can_not_be_removed_do_not_fail_a_complete_training(saving, monkeypatch):
    saving(4)

    def refuse(path):
        raise OSError("refused")

    monkeypatch.setattr(checkpoints, "remove", refuse)
    saving.saver.save_last("")
    assert len(checkpoints.steps(saving.run_dir.checkpoints)) == 1
    assert saving.said == ["the last checkpoint is written, but the snapshots can't be removed: refused"]


def test_a_leader_that_wakes_up_late_leaves_the_snapshots_of_its_successor(tmp_path):
    config, run_dir = build_config(), RunDir.create(tmp_path / "run")
    progress = Trained(RunProgress(config, 100), applied=1)

    def saver(term):
        return Saver(config, run_dir, "synthetic", FakeBooks(Clock()), progress, term=term)

    for term in (1, 2, 3):
        saver(term)._save(run_dir.snapshots, "")
    saver(2).save_last("")  # its claim was looked at before it was frozen
    assert [state.term for state in checkpoints.states(run_dir.snapshots)] == [3]
    saver(3).save_last("")
    assert not run_dir.snapshots.exists()


@pytest.mark.parametrize(("before_s", "at"), [(0, [5, 10, 20, 40, 80, 140, 200, 260]), (100, [60, 120, 180, 240])])
def test_checkpoints_come_early_in_a_run_and_once_a_minute_later(tmp_path, before_s, at):
    """`at`: seconds of this session, which goes on after so many of an earlier one."""
    config, clock = build_config(overrides={"checkpoints.snapshot_every_seconds": 1e6}), Clock()
    assert config.checkpoints.every_seconds == "auto"
    progress = RunProgress(config, 100, TrainingClock(monotonic=clock, wall=clock))
    progress.clock.restart(TrainingTimes(seconds=float(before_s)), None)
    run_dir = RunDir.create(tmp_path / "run")
    saver = Saver(config, run_dir, "synthetic", FakeBooks(clock), progress, clock=clock)
    progress.clock.start()
    found = []
    for clock.now in range(1, 270):
        saver.save_when_due("")
        if max(checkpoints.steps(run_dir.checkpoints), default=0) > len(found):  # FakeBooks counts them
            found.append(clock.now)
    assert found == at


class BooksOfTwo(FakeBooks):
    """Two shards, with the same steps where `aligned`."""

    aligned = False

    def snapshot(self, extent):
        found = super().snapshot(extent)
        if self.aligned:
            found["counts"][:] = self.version
        return found | {"accepted_steps": np.zeros([2, 1], np.int64), "waiting": np.zeros([0, 2])}


@pytest.fixture
def saving_of_two(tmp_path):
    settings = {"every_seconds": 1e6, "snapshot_every_seconds": 2.0}
    saving = make_saving(tmp_path, settings, books=BooksOfTwo, **{"cluster.parameter_servers": 2})
    saving.is_paused = lambda: saving.saver.is_paused
    return saving


def test_the_first_aligned_snapshot_is_there_once_a_snapshot_is_due(saving_of_two):
    saving, books = saving_of_two, saving_of_two.books
    saving.trained.applied = 0
    saving.progress.note_scheduled(np.array([0]))
    saving(5)
    assert not saving.is_paused(), "before the first update there is nothing to save"
    saving.trained.applied = 1
    saving(2)
    assert saving.is_paused(), "a step is under way"
    saving.progress.scheduled_updates = StepSet()
    books.aligned = True
    saving(1)
    assert not saving.is_paused() and newest_aligned(saving.run_dir.snapshots) == books.version


def test_a_training_that_continues_from_an_aligned_snapshot_does_not_pause_for_another_one_at_once(saving_of_two):
    saving_of_two.books.aligned = True
    saving_of_two(3)
    config, run_dir, clock = saving_of_two.config, saving_of_two.run_dir, Clock()
    progress = Trained(RunProgress(config, 100), applied=1)
    saver = Saver(config, run_dir, "synthetic", FakeBooks(clock), progress, clock=clock)
    for clock.now in range(1, 60):
        saver.save_when_due("")
        assert not saver.is_paused


def test_while_snapshots_are_aligned_by_chance_there_is_no_pause_and_the_newest_aligned_one_is_kept(saving_of_two):
    saving, books = saving_of_two, saving_of_two.books
    books.aligned = True
    saving(58)
    newest = books.version
    books.aligned = False
    saving(58)
    assert not saving.is_paused()
    assert checkpoints.steps(saving.run_dir.snapshots) == [newest, books.version - 1, books.version]
    books.aligned = True
    saving(2)
    assert newest not in checkpoints.steps(saving.run_dir.snapshots), "there is a newer one"


def test_a_snapshot_that_is_not_aligned_does_not_replace_an_aligned_one_of_the_same_lowest_version(saving_of_two):
    saving, books = saving_of_two, saving_of_two.books
    books.aligned = True
    saving(2)
    newest, books.aligned = books.version, False
    for _ in range(3):
        books.version = newest - 1  # a step is long: one shard has it, and the other lacks it
        saving(2)
    assert checkpoints.steps(saving.run_dir.snapshots)[-1] == newest == newest_aligned(saving.run_dir.snapshots)


def test_without_an_aligned_snapshot_for_a_minute_nothing_is_handed_out_until_there_is_one(saving_of_two):
    saving, books = saving_of_two, saving_of_two.books
    books.aligned = True
    saving(2)
    books.aligned = False
    saving(59)
    assert not saving.is_paused()
    saving.progress.note_scheduled(np.array([0]))
    saving(3)
    assert saving.is_paused(), "a step is under way"
    saving.progress.scheduled_updates = StepSet()
    books.aligned = True
    saving(1)
    assert not saving.is_paused() and checkpoints.steps(saving.run_dir.snapshots)[-1] == books.version
    assert newest_aligned(saving.run_dir.snapshots) == books.version


def test_a_rest_that_leads_nowhere_ends_and_the_next_one_comes_much_later(saving_of_two):
    saving = saving_of_two
    saving.progress.note_scheduled(np.array([0]))
    limit = round(max(LONGEST_PAUSE_S, saving.progress.pace.longest_update_s)) + 1
    saving(3 + limit)
    assert not saving.is_paused()
    saving(PAUSE_FACTOR * (limit - 1) - 5)
    assert not saving.is_paused()
    saving(10)
    assert saving.is_paused()


def test_a_disk_that_refuses_at_rest_does_not_keep_training_waiting(saving_of_two):
    saving = saving_of_two
    saving.books.refuse, before = True, len(saving.said)
    saving(4)
    assert not saving.is_paused() and len(saving.said) <= before + 3


def test_a_save_that_takes_long_is_told_now_and_then_while_it_lasts(saving, monkeypatch):
    monkeypatch.setattr(module, "SAVE_TOLD_EVERY_S", 0.01)
    told = threading.Semaphore(0)
    saving.while_saving = told.release

    def slow(*arguments):
        assert all(told.acquire(timeout=10) for _ in range(3))
        save(*arguments)

    save = checkpoints.save
    monkeypatch.setattr(checkpoints, "save", slow)
    saving(2)
    monkeypatch.setattr(checkpoints, "save", lambda *arguments: (time.sleep(0.1), save(*arguments)))
    while told.acquire(blocking=False):
        pass
    saving(2)
    assert not told.acquire(blocking=False), "nothing was applied since: a standstill"
    assert len(checkpoints.steps(saving.run_dir.snapshots)) == 2
    assert not [thread for thread in threading.enumerate() if thread.name == "saving"]


@pytest.mark.parametrize("aligned", [True, False])
def test_a_last_checkpoint_that_no_other_number_of_shards_can_go_on_from_leaves_the_snapshots(saving_of_two, aligned):
    saving_of_two.books.aligned = True
    saving_of_two(3)
    saving_of_two.books.aligned = aligned
    saving_of_two.saver.save_last("")
    assert (newest_aligned(saving_of_two.run_dir.snapshots) is None) == aligned


def test_whole_epochs_are_over_though_their_quotient_is_rounded(tmp_path):
    assert 0.3 / 0.1 < 3
    trained = of_whole_epochs(tmp_path, EVERY_EPOCH | {"every_epochs": 0.1})
    assert trained(0.2) == trained(0.29) != trained(0.3)


def test_the_next_look_is_when_the_next_whole_epochs_are_over(tmp_path):
    trained = of_whole_epochs(tmp_path, EVERY_EPOCH | {"every_epochs": 0.5})
    saver, progress = trained.saving.saver, trained.saving.trained
    progress.epochs_per_second = lambda: 0.25
    progress.epochs = 0.3
    assert saver.seconds_to_checkpoint == pytest.approx(0.8)
    trained(0.5)
    assert saver.seconds_to_checkpoint == pytest.approx(2.0)
    progress.epochs_per_second = lambda: 0.0
    assert saver.seconds_to_checkpoint == math.inf
    assert make_saving(tmp_path / "by_time", {}).saver.seconds_to_checkpoint == math.inf


@pytest.fixture
def exact(tmp_path):
    """A saver of a run of 30 updates whose checkpoints are due after 10 and 20. exact(n): n updates are applied now."""

    class Progress(RunProgress):
        applied = 0
        examples = property(lambda self: 10 * self.applied)

    def applied(updates):
        applied.progress.applied = updates
        applied.clock.now += 1
        applied.saver.save_when_due("")
        return applied.progress.held_at

    settings = {"checkpoints.every_epochs": 1.0, "checkpoints.exact": True, "checkpoints.snapshot_every_seconds": 1e6}
    settings |= {"training.batch_size_per_worker": 10, "training.epochs": 3.0, "cluster.workers": 1}
    config, applied.clock, applied.run_dir = build_config(overrides=settings), Clock(), RunDir.create(tmp_path / "run")
    applied.progress, applied.books = Progress(config, 100), FakeBooks(applied.clock)
    applied.saver = Saver(
        config, applied.run_dir, "synthetic", applied.books, applied.progress, clock=applied.clock, notify=print
    )
    return applied


def test_training_is_held_at_each_checkpoint_until_it_is_written_without_a_pause_between_saves(exact):
    exact.books.takes = 100.0
    assert [exact(updates) for updates in (0, 9, 10, 20)] == [10, 10, 20, 30]
    assert len(checkpoints.steps(exact.run_dir.checkpoints)) == 2
    exact(30)
    assert len(checkpoints.steps(exact.run_dir.checkpoints)) == 2, "save_last writes the last one"


def test_a_disk_that_refuses_a_checkpoint_does_not_hold_training(exact):
    exact.books.refuse = True
    assert exact(10) is None
    exact.books.refuse = False
    assert [exact(updates) for updates in (11, 12, 13, 14, 15, 16)][-1] == 20, "and is asked again after five seconds"
    assert len(checkpoints.steps(exact.run_dir.checkpoints)) == 1
