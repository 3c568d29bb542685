"""A checkpoint is cut for another number of parameter servers only where all shards have the same steps."""

import numpy as np
import pytest

from ps_cluster.runs import journal
from ps_cluster.runs.checkpoints import Checkpoint
from ps_cluster.runs.ledger import COUNTS
from ps_cluster.runs.resharding import is_aligned, resharded
from ps_cluster.runs.run_dir import RunDir
from tests.helpers.ledgers import rows_of, write_journal

ACCEPTED = COUNTS.index("accepted")


def arrays_of(shards, accepted=5):
    counts = np.zeros([shards, len(COUNTS)], np.int64)
    counts[:, :3] = accepted
    steps = np.tile(np.arange(8, dtype=np.int64), [shards, 1])
    weights = np.arange(9, dtype=np.float32)
    return {"counts": counts, "accepted_steps": steps, "waiting": np.zeros([0, 3]), "weights": weights}


def test_shards_with_the_same_steps_are_aligned_whatever_each_has_refused_or_dropped():
    arrays = arrays_of(2)
    arrays["counts"][0, COUNTS.index("refused")] = 3
    assert is_aligned(arrays) and is_aligned(arrays_of(1))


@pytest.mark.parametrize("uneven", ["a row waits", "another count", "other steps"])
def test_shards_of_which_one_has_a_step_more_are_not_aligned(uneven):
    arrays = arrays_of(2)
    if uneven == "a row waits":
        arrays["waiting"] = np.zeros([1, 3])
    elif uneven == "another count":
        arrays["counts"][1, ACCEPTED] += 1
    else:
        arrays["accepted_steps"][1, 4] = 99
    assert not is_aligned(arrays)


def test_what_is_of_each_shard_is_repeated_and_what_is_told_of_all_is_the_largest():
    arrays = arrays_of(2) | {"each_rate": np.full(2, 0.5, np.float32)}
    arrays["counts"][:, COUNTS.index("refused")] = 1, 4
    found = resharded(Checkpoint(5, arrays), 3)
    assert found.arrays["counts"].tolist() == [[5, 5, 4, 0]] * 3
    assert found.arrays["accepted_steps"].shape == (3, 8) and found.arrays["each_rate"].tolist() == [0.5] * 3
    assert found.arrays["weights"] is arrays["weights"]


@pytest.mark.parametrize("shards", [1, 3])
def test_a_new_shard_has_the_rows_of_the_first_one_and_all_that_were_there_keep_their_own(tmp_path, shards):
    """Two shards accepted the same five steps, each in an order of its own; then others go on, and then two again."""
    run_dir = RunDir.create(tmp_path / "run")
    orders = [[0, 1, 2, 3, 4], [1, 0, 2, 4, 3]]
    pieces = [write_journal(run_dir.journal(index, 1), rows_of(order))[0] for index, order in enumerate(orders)]
    leaders = [journal.counted_work(pieces, term=1, step=5)]
    for term, count in ((2, shards), (3, 2)):
        pieces = []
        for index in range(count):
            before = journal.history_of(run_dir, leaders, index)[-1].checksum
            ours = journal.Journal(run_dir.journal(index, term), before)
            ours.append(rows_of([10 * term + index]))
            pieces.append(ours.piece)
        leaders.append(journal.counted_work(pieces, term=term, step=5 + term - 1))

    def steps(index, until):
        history = journal.history_of(run_dir, leaders[:until], index)
        return np.concatenate(list(journal.read(history)))["step"].tolist()

    assert [steps(index, 2) for index in range(shards)] == [
        [*orders[index if index < 2 else 0], 20 + index] for index in range(shards)
    ]
    second = orders[1] if shards > 1 else orders[0]
    assert [steps(index, 3) for index in range(2)] == [[*orders[0], 20, 30], [*second, 20 + (shards > 1), 31]]
