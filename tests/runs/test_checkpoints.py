"""Checkpoints survive whatever may happen to files: cut short, damaged, thinned out while somebody reads."""

import errno
import io
import multiprocessing
import os
from dataclasses import replace

import numpy as np
import pytest
import safetensors.numpy

from ps_cluster.files.tensor_files import Pieces, write_tensors
from ps_cluster.files.writing import create_beside
from ps_cluster.runs import checkpoints
from ps_cluster.runs.checkpoints import (
    Checkpoint,
    CheckpointError,
    CheckpointGone,
    CheckpointHeader,
    CheckpointMeta,
    CheckpointNotWritten,
    EndedMark,
    StatesUnreadable,
)  # fmt: skip
from ps_cluster.runs.journal import CountedWork


def checkpoint(step: int, size: int = 100) -> Checkpoint:
    """All weights are the step, so that a mixture of two checkpoints is seen."""
    arrays = {
        "weights": np.full(size, step, np.float32),
        "statistics": np.zeros(0, np.float32),
        "ledger": np.arange(step, dtype=np.int64),
    }
    return Checkpoint(step, arrays, CheckpointMeta(train_seconds=1.5, dataset_kind="synthetic"))


def assert_equal(read: Checkpoint, written: Checkpoint) -> None:
    assert (read.step, read.meta, list(read.arrays)) == (written.step, written.meta, list(written.arrays))
    for name, array in written.arrays.items():
        assert read.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(read.arrays[name], array)


def test_what_is_saved_is_read_back_also_by_the_formats_own_library_and_equal_checkpoints_are_equal_files(tmp_path):
    path, other = (checkpoints.save(tmp_path / name, checkpoint(390), keep=3) for name in "ab")
    assert path.name == "step-000000390-term-000000.safetensors" and path.read_bytes() == other.read_bytes()
    assert_equal(checkpoints.load(path), checkpoint(390))
    for name, array in safetensors.numpy.load_file(path).items():
        np.testing.assert_array_equal(array, checkpoint(390).arrays[name])


def test_an_array_that_is_written_in_pieces_gives_the_same_file_and_one_that_lacks_some_gives_none(tmp_path):
    whole = checkpoint(7)
    weights = whole.arrays["weights"]
    others = {name: array for name, array in whole.arrays.items() if name != "weights"}

    def in_pieces(*sizes):
        parts = np.split(weights[: sum(sizes)], np.cumsum(sizes)[:-1])
        return replace(whole, arrays=others, pieces={"weights": Pieces((100,), np.dtype("f4"), lambda: iter(parts))})

    path = checkpoints.save(tmp_path, in_pieces(60, 1, 39), keep=1)
    assert_equal(checkpoints.load(path), replace(whole, arrays=others | {"weights": weights}))
    with pytest.raises(ValueError, match="'weights' has 400 bytes, but its pieces have 244"):
        checkpoints.save(tmp_path / "other", in_pieces(60, 1), keep=1)
    assert list((tmp_path / "other").iterdir()) == []


def test_a_write_that_ends_too_early_leaves_no_file_that_could_be_read():
    content, parts = io.BytesIO(), [np.zeros(60, np.float32)]
    with pytest.raises(ValueError, match="pieces"):
        write_tensors(content, CheckpointHeader(step=1, meta=CheckpointMeta(), arrays=["weights"]), {
            "weights": Pieces((100,), np.dtype(np.float32), lambda: iter(parts))
        })  # fmt: skip
    assert not any(content.getvalue()[: -parts[0].nbytes]), "the table of its arrays is written last"


def test_checkpoint_cut_short_at_any_length_is_refused(tmp_path):
    path = checkpoints.save(tmp_path, checkpoint(5), keep=1)
    content = path.read_bytes()
    for length in range(0, len(content), 31):
        path.write_bytes(content[:length])
        with pytest.raises(CheckpointError, match="damaged or cut short"):
            checkpoints.load(path)


def test_flipped_bytes_are_noticed_or_without_effect(tmp_path):
    path = checkpoints.save(tmp_path, checkpoint(5, size=20), keep=1)
    content = path.read_bytes()
    refused = 0
    for position in range(0, len(content), 3):
        path.write_bytes(content[:position] + bytes([content[position] ^ 0xFF]) + content[position + 1 :])
        try:
            read = checkpoints.load(path)
        except CheckpointError as error:
            assert "\n" not in str(error)
            refused += 1
        else:
            assert_equal(read, checkpoint(5, size=20))
    assert refused > len(content) / 6


def test_missing_checkpoint_is_told_apart_from_a_damaged_one(tmp_path):
    with pytest.raises(CheckpointGone, match="does not exist"):
        checkpoints.load(checkpoints.path_of(tmp_path, 1))


def test_arrays_of_objects_are_never_written_and_a_directory_that_refuses_is_told_in_one_line(tmp_path):
    with pytest.raises(ValueError, match="'weights' is object, which these files never contain"):
        checkpoints.save(tmp_path, Checkpoint(1, {"weights": np.array([{}])}), keep=1)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointNotWritten, match="can't be written"):
        checkpoints.save(tmp_path / "file", checkpoint(1), keep=1)


def test_newest_good_checkpoint_is_found_behind_damaged_ones_if_there_is_one(tmp_path):
    assert checkpoints.load_newest_good([tmp_path, tmp_path / "missing"], print) is None
    for step in (1, 2, 3):
        checkpoints.save(tmp_path, checkpoint(step), keep=3)
    checkpoints.path_of(tmp_path, 3).write_bytes(b"PK")
    checkpoints.path_of(tmp_path, 2).write_bytes(b"")
    said = []
    assert checkpoints.load_newest_good([tmp_path], said.append).step == 1
    assert ["step-000000003" in said[0], "step-000000002" in said[1], len(said)] == [True, True, 2]


@pytest.fixture
def refusing(monkeypatch):
    """refusing(path, code, times): let the system refuse `times` times to read a file."""
    read = checkpoints.open_tensors

    def refuse(path, code, times):
        left = [times]

        def asked(file, model):
            if file == path and left[0]:
                left[0] -= 1
                raise OSError(code, os.strerror(code))
            return read(file, model)

        monkeypatch.setattr(checkpoints, "open_tensors", asked)

    return refuse


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.EMFILE])
def test_a_state_that_the_system_refuses_to_read_is_asked_for_again_and_no_older_one_is_taken(tmp_path, refusing, code):
    for step in (1, 2):
        checkpoints.save(tmp_path, checkpoint(step), keep=3)
    newest, files = checkpoints.path_of(tmp_path, 2), sorted(tmp_path.iterdir())
    said, slept = [], []
    refusing(newest, code, times=2)
    assert checkpoints.load_to_resume([tmp_path], said.append, lambda found: None, slept.append).step == 2
    assert (
        slept == [0.5, 2.0]
        and len(said) == 2
        and str(newest) in said[0]
        and "trying to read it again in 0.5 s" in said[0]
    )
    refusing(newest, code, times=99)
    with pytest.raises(StatesUnreadable, match=f"{newest}.*{os.strerror(code)}.*All files are unchanged"):
        checkpoints.load_to_resume([tmp_path], said.append, lambda found: None, slept.append)
    assert sorted(tmp_path.iterdir()) == files


def test_a_folder_of_states_that_can_not_be_listed_is_not_an_empty_one(tmp_path, monkeypatch):
    checkpoints.save(tmp_path, checkpoint(1), keep=3)
    refusal = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    answers = iter([refusal, refusal])

    def listed(folder, given=os.listdir):
        if (error := next(answers, None)) is not None:
            raise error
        return given(folder)

    monkeypatch.setattr(checkpoints.os, "listdir", listed)
    assert checkpoints.load_to_resume([tmp_path], lambda line: None, lambda found: None, lambda s: None).step == 1


def test_newest_ones_are_kept_and_foreign_files_are_left_alone(tmp_path):
    odd = ("step-0000000030-term-000001", "step-٠٠٠٠٠٠٠٤٠-term-000001", "step-000000050-term-0000001", "step-12")
    foreign = {"notes.txt", *(f"{name}.safetensors" for name in odd)}
    for name in foreign:
        (tmp_path / name).write_text("mine")
    for step in (10, 20, 30, 40):
        checkpoints.save(tmp_path, checkpoint(step), keep=2)
    assert checkpoints.steps(tmp_path) == [30, 40]
    ours = {checkpoints.path_of(tmp_path, step).name for step in (30, 40)}
    assert {path.name for path in tmp_path.iterdir()} == foreign | ours


def test_checkpoints_of_a_history_that_was_rolled_back_are_removed(tmp_path):
    for step in (10, 20, 30):
        checkpoints.save(tmp_path, checkpoint(step), keep=3)
    checkpoints.path_of(tmp_path, 30).write_bytes(b"damaged")
    checkpoints.save(tmp_path, checkpoint(25), keep=1)
    assert checkpoints.steps(tmp_path) == [25]


def build_on(path, full, step, changed, keep=2):
    """Save a snapshot at `path` of some numbers that have changed since the checkpoint `full`."""
    arrays = {"weights": np.full(len(changed), step, np.float32), "statistics": np.zeros(0, np.float32)}
    ranges = np.array([[number, number + 1] for number in changed], np.int64)
    since = checkpoints.as_full_state(checkpoints.path_of(path, full.step), full)
    return checkpoints.save(path, Checkpoint(step, arrays | {"changed": ranges}, since=since), keep)


def test_what_has_changed_is_read_over_the_full_state_which_stays_as_long_as_a_snapshot_builds_on_it(tmp_path):
    first, second = checkpoint(10), checkpoint(40)
    checkpoints.save(tmp_path, first, keep=2)
    paths = [build_on(tmp_path, first, step, [3, 4, 99]) for step in (20, 30)]
    assert checkpoints.steps(tmp_path) == [10, 20, 30]
    found = checkpoints.load(paths[1])
    assert found.step == 30 and found.arrays.keys() == {"statistics"}
    assert found.changed["weights"][:6].tolist() == [10, 10, 10, 30, 30, 10]
    assert found.changed["weights"][:].tolist() == [30 if place in (3, 4, 99) else 10 for place in range(100)]
    checkpoints.save(tmp_path, second, keep=2)
    assert checkpoints.steps(tmp_path) == [10, 30, 40]
    build_on(tmp_path, second, 50, [0])
    assert checkpoints.steps(tmp_path) == [40, 50]


@pytest.mark.parametrize("harm", ["damaged", "gone", "another"])
def test_a_snapshot_whose_full_state_is_not_the_right_one_is_passed_over_for_an_older_sound_one(tmp_path, harm):
    old, full = checkpoint(10), checkpoint(20)
    for state in (old, full):
        checkpoints.save(tmp_path, state, keep=2)
    build_on(tmp_path, full, 30, [7], keep=3)
    assert checkpoints.load_newest_good([tmp_path], print).step == 30
    path = checkpoints.path_of(tmp_path, 20)
    if harm == "gone":
        path.unlink()
    elif harm == "damaged":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        checkpoints.write(path, checkpoint(20, size=101))
    said = []
    found = checkpoints.load_newest_good([tmp_path], said.append)
    assert found.step == (20 if harm == "another" else 10)
    assert str(path) in said[0] and "step-000000030-term-000000-since-000000020" in said[0]


def test_left_overs_of_dead_writers_are_removed_and_those_of_living_ones_are_not(tmp_path):
    # In a container somebody else may have that pid.
    of_dead = tmp_path / f".step-000000001-term-000001.safetensors.{os.getppid()}.tmp"
    of_dead.touch()
    with create_beside(checkpoints.path_of(tmp_path, 1)):
        (of_living,) = set(tmp_path.iterdir()) - {of_dead}
        checkpoints.save(tmp_path, checkpoint(2), keep=1)
        assert not of_dead.exists() and of_living.exists()


def test_end_is_marked_and_taken_back(tmp_path):
    assert checkpoints.ended(tmp_path) is None
    checkpoints.mark_ended(tmp_path, last_step=390, outcome="completed")
    assert checkpoints.ended(tmp_path) == EndedMark(last_step=390, outcome="completed")
    checkpoints.clear_ended(tmp_path)
    checkpoints.clear_ended(tmp_path)
    assert checkpoints.ended(tmp_path) is None


def _write_many(directory, count):
    for step in range(1, count + 1):
        checkpoints.save(directory, checkpoint(step, size=50_000), keep=2)


@pytest.mark.slow
def test_reader_never_sees_half_a_checkpoint_while_a_writer_writes_and_thins(tmp_path):
    writer = multiprocessing.get_context("spawn").Process(target=_write_many, args=(tmp_path, 30))
    said, seen = [], []
    writer.start()
    while writer.is_alive():
        if found := checkpoints.load_newest_good([tmp_path], said.append):
            assert np.all(found.arrays["weights"] == found.step)
            seen.append(found.step)
    writer.join()
    assert writer.exitcode == 0 and said == [] and seen == sorted(seen) and len(set(seen)) > 1
    assert checkpoints.steps(tmp_path) == [29, 30]


def test_states_behind_which_training_goes_back_are_removed_also_unreadable_ones(tmp_path):
    for step in (5, 7, 9):
        checkpoints.path_of(tmp_path, step).write_bytes(b"not a checkpoint")
    checkpoints.remove_abandoned(tmp_path, checkpoint(7), 0)
    assert checkpoints.steps(tmp_path) == [5, 7]
    checkpoints.remove_abandoned(tmp_path / "nothing there", checkpoint(7), 0)


def led(step: int, *leaders: tuple[int, int]) -> Checkpoint:
    """A state of `step`. `leaders`: term of each leader until now, and the step from which the next one went on."""
    done = [CountedWork(term=term, step=last, rows=[last], checksums=[0]) for term, last in leaders]
    return replace(checkpoint(step), meta=CheckpointMeta(leaders=done))


def test_the_newest_state_is_that_of_the_newest_leader_and_those_it_did_not_go_on_from_are_ignored(tmp_path):
    for state in (led(10, (1, 10)), led(20, (1, 20)), led(25, (1, 10), (2, 25)), led(40, (1, 40))):  # 1 woke up late
        checkpoints.write(tmp_path / checkpoints.name_of(state.step, state.term), state)
    assert [(state.term, state.step) for state in checkpoints.states(tmp_path)] == [(1, 10), (1, 20), (2, 25)]
    assert checkpoints.load_newest_good([tmp_path], print).step == 25 and checkpoints.steps(tmp_path) == [10, 20, 25]
    checkpoints.path_of(tmp_path, 25).write_bytes(b"damaged")
    assert checkpoints.load_newest_good([tmp_path], lambda line: None).step == 20


def test_a_leader_removes_what_it_has_given_up_and_nothing_of_a_newer_leader(tmp_path):
    for state in (led(10, (1, 10)), led(20, (1, 20)), led(15, (1, 10), (3, 15)), led(30, (1, 10), (2, 30))):
        checkpoints.write(tmp_path / checkpoints.name_of(state.step, state.term), state)
    checkpoints.write(tmp_path / checkpoints.name_of(1, 0), led(1, (0, 1)))  # of a leader that nobody went on from
    checkpoints.save(tmp_path, led(12, (1, 10), (2, 12)), keep=9)  # leader 2 wakes up, and 3 leads
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {checkpoints.name_of(step, term) for step, term in ((10, 1), (12, 2), (15, 3))}
    checkpoints.save(tmp_path, led(13, (1, 10), (2, 13)), keep=1)
    assert checkpoints.path_of(tmp_path, 15).exists(), "a newer leader's, though only one may be kept"


def test_a_state_of_another_leader_than_its_name_says_is_damaged(tmp_path):
    path = tmp_path / checkpoints.name_of(10, 2)
    checkpoints.write(path, led(10, (1, 10)))
    with pytest.raises(CheckpointError, match="its content is that of step-000000010-term-000001"):
        checkpoints.load(path)


def test_the_mark_of_an_end_does_not_count_where_a_newer_leader_has_saved(tmp_path):
    checkpoints.save(tmp_path, led(10, (1, 10)), keep=1)
    checkpoints.mark_ended(tmp_path, last_step=10, outcome="stopped", term=1)
    assert checkpoints.ended(tmp_path).last_step == 10
    checkpoints.save(tmp_path, led(12, (1, 10), (2, 12)), keep=1)
    assert checkpoints.ended(tmp_path) is None
