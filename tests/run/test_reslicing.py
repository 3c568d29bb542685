"""A checkpoint is cut for another number of parameter servers only where all slices have the same steps."""

import numpy as np
import pytest

from ps_cluster.run import checkpoints, journal
from ps_cluster.run.checkpoints import Checkpoint
from ps_cluster.run.ledger import COUNTS
from ps_cluster.run.reslicing import is_even, put_back, resliced
from ps_cluster.run.rows.checkpoint import Meta
from ps_cluster.run.run_dir import RunDir
from tests.helpers.ledgers import random_rows, write_journal

ACCEPTED = COUNTS.index("accepted")


def arrays_of(slices, accepted=5):
    counts = np.zeros([slices, len(COUNTS)], np.int64)
    counts[:, :3] = accepted
    steps = np.tile(np.arange(8, dtype=np.int64), [slices, 1])
    weights = np.arange(9, dtype=np.float32)
    return {"counts": counts, "accepted_steps": steps, "waiting": np.zeros([0, 3]), "weights": weights}


def test_slices_with_the_same_steps_are_even_whatever_each_has_refused_or_dropped():
    arrays = arrays_of(2)
    arrays["counts"][0, COUNTS.index("refused")] = 3
    assert is_even(arrays) and is_even(arrays_of(1))


@pytest.mark.parametrize("uneven", ["a row waits", "another count", "other steps"])
def test_slices_of_which_one_has_a_step_more_are_not_even(uneven):
    arrays = arrays_of(2)
    if uneven == "a row waits":
        arrays["waiting"] = np.zeros([1, 3])
    elif uneven == "another count":
        arrays["counts"][1, ACCEPTED] += 1
    else:
        arrays["accepted_steps"][1, 4] = 99
    assert not is_even(arrays)


def test_what_is_of_each_slice_is_repeated_and_what_is_told_of_all_is_the_largest():
    arrays = arrays_of(2) | {"each_rate": np.full(2, 0.5, np.float32)}
    arrays["counts"][:, COUNTS.index("refused")] = 1, 4
    meta = Meta(config={"cluster": {"workers": 3, "parameter_servers": 2}, "mode": {}})
    found = resliced(Checkpoint(5, arrays, meta), 3)
    assert found.arrays["counts"].tolist() == [[5, 5, 5, 4, 0]] * 3
    assert found.arrays["accepted_steps"].shape == (3, 8) and found.arrays["each_rate"].tolist() == [0.5] * 3
    assert found.arrays["weights"] is arrays["weights"]
    assert found.meta.config == {"cluster": {"workers": 3, "parameter_servers": 3}, "mode": {}}


def journals(run_dir):
    return [
        np.concatenate(list(journal.read(path)))["step"].tolist()
        for path in sorted(run_dir.journal(0).parent.glob("slice-*"))
    ]


@pytest.mark.parametrize(("slices", "left"), [(1, 1), (3, 3)])
def test_the_run_directory_has_one_journal_a_slice_and_the_new_checkpoint(tmp_path, slices, left):
    run_dir = RunDir.create(tmp_path / "run")
    for index in range(2):
        write_journal(run_dir.journal(index), random_rows(7 + index))
    found = Checkpoint(5, arrays_of(2))
    checkpoints.save(run_dir.checkpoints, found, keep=1)
    put_back(run_dir, 2, resliced(found, slices))
    assert [rows[:5] for rows in journals(run_dir)] == [[0, 1, 2, 3, 4]] * left
    assert [len(rows) for rows in journals(run_dir)][2:] == [5] * (left - 2)
    newest = checkpoints.load_newest_good(run_dir.states, pytest.fail)
    assert len(newest.arrays["counts"]) == slices, "the next start goes on from it as it is now"


def test_a_new_slice_gets_no_rows_of_an_old_journal_that_was_left_there(tmp_path):
    run_dir = RunDir.create(tmp_path / "run")
    write_journal(run_dir.journal(0), random_rows(6))
    write_journal(run_dir.journal(1), random_rows(9, seed=1))
    put_back(run_dir, 1, resliced(Checkpoint(5, arrays_of(1)), 2))
    one, other = (np.concatenate(list(journal.read(run_dir.journal(index)))) for index in range(2))
    assert other.tobytes() == one[:5].tobytes()
