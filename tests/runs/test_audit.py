"""A proof that holds for a sound run, and says what is wrong with every other."""

import numpy as np
import pytest

from ps_cluster.runs import journal
from ps_cluster.runs.journal import RECORD
from ps_cluster.runs.ledger import COUNTS
from ps_cluster.runs.proof import (
    MOST_IDS,
    MOST_PROBLEMS,
    Audit,
    ExpectedRows,
    FactorsOfRates,
    RoundShape,
    audit,
    verdict,
)
from ps_cluster.runs.result_rows import Proof, ShardProof
from ps_cluster.runs.step_set import StepSet
from tests.helpers.ledgers import rows_of, write_journal

ONE, UPDATES = RoundShape(1, 1, 1), 6
BACKUP = RoundShape(steps_per_update=3, gradients_per_update=2, most=2)
GRACE = RoundShape(steps_per_update=3, gradients_per_update=2, most=3)
HANDED_OUT_5 = "6 updates were handed out, but 5 were applied"


class Run:
    """The files and counts of a sound run of 6 updates on two shards, which a test breaks before it asks for the proof."""

    def __init__(self, folder, rounds=ONE, rows=None):
        self.rounds, self.total = rounds, UPDATES
        self.scheduled = StepSet(UPDATES)
        # Accepted in another order than handed out.
        rows = rows_of([0, 2, 1, 3, 5, 4], version=np.arange(1, 7)) if rows is None else rows
        self.rows = [rows.copy(), rows.copy()]
        self.counts = [{"version": UPDATES, "accepted": len(rows), "refused": 4, "dropped": 0}] * 2
        self._paths = [folder / f"shard-{index}.bin" for index in range(2)]

    def change(self, *shards, steps=None, versions=None, **counts):
        """Give shards other rows, other versions in their rows, or other counts."""
        for index in shards:
            if steps is not None:
                self.rows[index] = rows_of(steps, version=np.arange(1, len(steps) + 1))
                counts = {"accepted": len(steps)} | counts
            if versions is not None:
                self.rows[index]["version"] = versions
            self.counts[index] = self.counts[index] | counts
        return self

    def stopped(self, scheduled):
        """Expect no certain number of updates."""
        self.scheduled, self.total = scheduled, None
        return self

    def proof(self, damage=None, **options):
        journals = [write_journal(path, rows) for path, rows in zip(self._paths, self.rows)]
        if damage is not None:
            content = bytearray(self._paths[1].read_bytes())
            content[damage * RECORD.itemsize + 20] ^= 1
            self._paths[1].write_bytes(content)
        counts = np.array([[own[name] for name in COUNTS] for own in self.counts])
        return audit(journals, counts, self.rounds, self.scheduled, self.total, **options)


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path)


def test_a_sound_run_holds_and_its_counts_and_progress_are_told(run):
    read = []
    shards = [ShardProof(index=index, rows=6, steps=6, **run.counts[index]) for index in range(2)]
    assert run.proof(on_rows=read.append) == Audit([], shards, duplicated=0)
    assert verdict(shards, []) == Proof(holds=True, problems=[], shards=shards)
    assert sum(read) == 2 * UPDATES


FIVE = [0, 2, 1, 5, 4]
BROKEN = {
    "a row was written twice": (
        lambda run: run.change(1, steps=[0, 2, 1, 1, 3, 5, 4], version=7),
        ["shard 1: 1 rows belong to steps that already had a row"], 1,
    ),
    "a version was skipped": (
        lambda run: run.change(0, versions=[1, 2, 4, 5, 6, 7]), ["shard 0: row 2: its version is 4, but has to be 3"], 0,
    ),
    "two rows have one version": (
        lambda run: run.change(1, versions=[1, 2, 3, 4, 4, 5]), ["shard 1: row 4: its version is 4, but has to be 5"], None,
    ),
    "a gradient less was accepted": (
        lambda run: run.change(0, accepted=5), ["shard 0: 5 gradients were accepted, but there are 6 rows"], 0,
    ),
    "a gradient more was accepted": (
        lambda run: run.change(0, accepted=7), ["shard 0: 7 gradients were accepted, but there are 6 rows"], 1,
    ),
    "a version has no row": (
        lambda run: run.change(0, version=7), ["shard 0: its version is 7, but its ledger has the rows of 6 updates"], 1,
    ),
    "an update was never applied": (lambda run: run.change(0, 1, steps=FIVE, version=5), [HANDED_OUT_5], 0),
    "a single shard lacks an update": (lambda run: run.change(1, steps=FIVE, version=5), [HANDED_OUT_5], 0),
    "a shard has steps that were never handed out": (
        lambda run: run.change(1, steps=[0, 2, 888, 3, 777, 4]),
        ["shard 1: 2 rows belong to steps that were never handed out; the first is step 777"], 0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("broken", BROKEN)
def test_what_is_wrong_with_a_run_is_told(run, broken):
    change, problems, duplicated = BROKEN[broken]
    proof = change(run).proof()
    assert proof.problems == problems
    assert duplicated is None or proof.duplicated == duplicated


def test_a_damaged_row_is_named_and_what_lies_before_it_is_counted(run, tmp_path):
    proof = run.proof(damage=4)
    assert proof.problems == [
        f"row 4 of '{tmp_path / 'shard-1.bin'}' is damaged: its checksum is wrong",
        "shard 1: 6 gradients were accepted, but there are 4 rows",
        "shard 1: its version is 6, but its ledger has the rows of 4 updates",
        "6 updates were handed out, but 4 were applied",
    ]
    assert [own.rows for own in proof.shards] == [6, 4]


def test_an_update_that_was_never_handed_out(run):
    run.scheduled = StepSet(3, np.array([4, 5]))
    proof = run.change(0, 1, steps=FIVE, version=5).proof()
    (problem,) = proof.problems
    assert "6 updates should have been handed out, but 5 were" in problem and problem.endswith(" 3")
    assert proof.duplicated == 0


def test_an_update_that_a_leader_leaves_is_no_problem_and_one_that_nobody_handed_out_is(run):
    run.change(0, 1, steps=FIVE, version=5).total = None
    assert not run.proof(may_lack_updates=True).problems, "it is lost, or done by the next leader"
    assert run.stopped(StepSet(3)).proof(may_lack_updates=True).problems


def test_a_run_that_was_stopped_has_as_many_updates_as_were_handed_out(run):
    assert not run.change(0, 1, steps=[0, 2, 1, 3, 4], version=5).stopped(StepSet(5)).proof().problems
    run.total = UPDATES
    (problem,) = run.proof().problems
    assert "6 updates should have been handed out, but 5 were" in problem and problem.endswith(" 5")


def test_a_run_that_was_stopped_before_its_first_update_holds(tmp_path):
    run = Run(tmp_path, rows=rows_of([])).stopped(StepSet())
    run.counts = [dict.fromkeys(COUNTS, 0)] * 2
    assert not run.proof().problems


def test_a_journal_that_the_system_refuses_to_read_is_a_problem_and_no_error(run, monkeypatch):
    def refuse(history):
        raise OSError(5, "Input/output error", "shard-0.bin")

    monkeypatch.setattr("ps_cluster.runs.journal.read", refuse)
    assert "Input/output error: 'shard-0.bin'" in run.proof().problems[0]


def test_there_are_no_more_lines_than_anybody_reads(tmp_path):
    journals = [write_journal(tmp_path / f"shard-{index}.bin", rows_of([0, 0, 0], version=7)) for index in range(4)]
    counts = np.array([[3, 2, 1, 0]] * 4)
    found = audit(journals, counts, ONE, StepSet(9), 10)
    proof = verdict(found.shards, ["noted before", *found.problems, "noted before"])
    assert len(found.problems) > MOST_PROBLEMS and not proof.holds
    assert proof.problems == ["noted before", *found.problems[: MOST_PROBLEMS - 1]]


def rounds_of(*steps):
    """Return the rows of rounds of three workers, two of whom count, in this order."""
    return rows_of(steps, version=np.arange(len(steps)) // 2 + 1)


# Round v has the steps 3 v, 3 v + 1 and 3 v + 2; the one that is missing came too late.
OF_ROUNDS = (0, 2, 4, 3, 7, 8, 9, 11, 13, 12, 17, 16)


def test_rounds_with_a_backup_worker_hold_without_the_steps_that_came_too_late(tmp_path):
    proof = Run(tmp_path, BACKUP, rounds_of(*OF_ROUNDS)).proof()
    assert not proof.problems and proof.duplicated == 0
    assert [(own.rows, own.steps) for own in proof.shards] == [(12, 12)] * 2


def on_both(problem):
    return [f"shard {index}: {problem}" for index in range(2)]


@pytest.mark.parametrize(
    ("steps", "problems", "duplicated"),
    [
        ((*OF_ROUNDS[:-1], 17), [*on_both("1 rows belong to steps that already had a row"), HANDED_OUT_5], 1),
        (
            (*OF_ROUNDS[:2], 1, *OF_ROUNDS[3:]),
            on_both("row 2: step 1 does not belong to the round of version 2"),
            0,
        ),
    ],
    ids=["one gradient counted twice", "a late gradient counted in a later round"],
)
def test_what_is_wrong_with_rounds_is_told(tmp_path, steps, problems, duplicated):
    proof = Run(tmp_path, BACKUP, rounds_of(*steps)).proof()
    assert (proof.problems, proof.duplicated) == (problems, duplicated)


def test_a_late_gradient_is_named_by_its_place_in_the_whole_journal(tmp_path, monkeypatch):
    run = Run(tmp_path, BACKUP, rounds_of(*OF_ROUNDS[:5], 2, *OF_ROUNDS[6:]))
    monkeypatch.setattr(journal, "read", lambda history, read=journal.read: read(history, 4))
    assert set(run.proof().problems) >= set(on_both("row 5: step 2 does not belong to the round of version 3"))


def test_a_round_that_took_a_gradient_too_many(tmp_path):
    run = Run(tmp_path, BACKUP, rounds_of(*OF_ROUNDS, 18)).change(0, versions=[1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6])
    assert "shard 0: row 2: its version is 1, but has to be 2" in run.proof().problems


def graced(counts, open_ones=0):
    """Return the rows of rounds of three workers, with these counts of gradients, and of an open round after them."""
    counts = [*counts, open_ones]
    steps = [3 * number + place for number, count in enumerate(counts) for place in range(count)]
    return rows_of(steps, version=np.repeat(np.arange(1, len(counts) + 1), counts))


GRACED = [2, 3, 3, 2, 2, 3]
OPEN = {"backup": (BACKUP, rounds_of(*OF_ROUNDS, 18)), "grace": (GRACE, graced(GRACED, open_ones=1))}


@pytest.mark.parametrize("rounds", OPEN)
def test_a_gradient_of_an_open_round_is_no_duplicate_and_an_update_too_many_is_two_gradients_too_many(tmp_path, rounds):
    run = Run(tmp_path, *OPEN[rounds])
    run.total = None
    assert not run.proof().problems and run.proof().duplicated == 0
    proof = run.change(0, version=UPDATES + 1).proof()
    assert (
        proof.problems == ["shard 0: its version is 7, but its ledger has the rows of 6 updates"]
        and proof.duplicated == 2
    )


@pytest.mark.parametrize("open_ones", [0, 1, 2])
@pytest.mark.parametrize("chunk", [1, 4, 100])
def test_rounds_with_a_grace_period_hold_with_as_many_gradients_as_came(tmp_path, monkeypatch, chunk, open_ones):
    run = Run(tmp_path, GRACE, graced(GRACED, open_ones))
    run.total = None
    monkeypatch.setattr(journal, "read", lambda history, read=journal.read: read(history, chunk))
    proof = run.proof()
    assert not proof.problems and proof.duplicated == 0, proof.problems


@pytest.mark.parametrize(
    ("versions", "problem"),
    [
        ([1, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 5, 5, 6], "row 3: its version is 1, but has to be 2"),
        ([1, 1, 2, 3, 3, 3, 3, 3, 3, 4, 4, 4, 5, 5, 6], "row 3: its version is 3, but has to be 2"),
        ([1, 1, 3, 3, 3, 3, 3, 4, 4, 4, 5, 5, 5, 6, 6], "row 2: its version is 3, but has to be 1"),
        ([1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 5, 5, 6, 6, 5], "row 14: its version is 5, but has to be 6"),
    ],
)
def test_a_round_with_a_grace_period_of_too_few_or_too_many_gradients_is_named(tmp_path, versions, problem):
    run = Run(tmp_path, GRACE, graced(GRACED)).change(0, 1, versions=versions)
    assert f"shard 0: {problem}" in run.proof().problems


def test_a_step_that_nobody_can_have_handed_out_is_a_problem_and_takes_no_memory(run):
    proof = run.change(1, steps=[0, 1, 2, 3, 4, 2**45]).proof()
    assert proof.problems[0] == f"step {2**45} is too far above step 0, the first missing step"


@pytest.mark.parametrize("column", ["step", "version", "staleness", "worker", "pid", "applied_time"])
@pytest.mark.parametrize("value", [-1.0e300, np.nan, np.inf])
def test_a_value_that_no_row_can_have_is_a_problem_though_its_checksum_is_right(run, column, value):
    run.rows[1][column][5] = value
    proof = run.proof()
    assert f"in column '{column}'" in proof.problems[0]


@pytest.mark.parametrize("column", ["remainder_before", "remainder_after"])
def test_a_diverged_training_may_have_pushes_whose_remainders_are_not_numbers(run, column):
    for rows in run.rows:
        rows[column][5] = np.nan
    assert run.proof().problems == []


def pushes(before, after):
    """Return rows of one process whose pushes have these remainders before and after them."""
    return rows_of(range(len(before)), version=np.arange(1, len(before) + 1), pid=9, remainder_before=before,
                   remainder_after=after)  # fmt: skip


def audit_of(*journals, rows):
    counts = np.array([[{"version": rows, "accepted": rows}.get(name, 0) for name in COUNTS]])
    return audit([journals], counts, ONE, StepSet(rows), rows)


def test_a_push_that_lacks_what_the_previous_one_left_out_is_a_problem(tmp_path):
    (part,) = write_journal(tmp_path / "journal", pushes([0, 0.5, 0], [0.5, 0.7, 0.4]))
    assert audit_of(part, rows=3).problems == [
        "shard 0: row 2: step 2 has remainder_before 0, but the worker's previous push had left out 0.7"
    ]


def test_after_a_change_of_leaders_the_remainder_of_a_living_worker_may_differ_from_the_last_one(tmp_path):
    rows = pushes([0, 0.5, 0, 0.4], [0.5, 0.7, 0.4, 0.6])
    (first,) = write_journal(tmp_path / "first", rows[:2])
    (second,) = write_journal(tmp_path / "second", rows[2:], first.checksum)
    assert audit_of(first, second, rows=4).problems == []


WORKERS = [0, 1, 3, 2, 4, 0]
OF_MORE = {"worker": WORKERS, "rate_factor": FactorsOfRates(3).read(np.array(WORKERS))}


def test_a_rate_that_was_lowered_as_the_workers_in_the_rows_demand(tmp_path):
    run = Run(tmp_path, rows=rows_of(range(6), version=np.arange(1, 7), **OF_MORE))
    assert not run.proof(expected=ExpectedRows(checks_factors=True, workers_at_start=3)).problems
    assert run.rows[0]["rate_factor"] == pytest.approx([1, 1, 1, 9 / 16, 9 / 25, 9 / 25])


def test_a_rate_that_is_never_lowered_holds_whatever_workers_take_part(tmp_path):
    run = Run(tmp_path, rows=rows_of(range(6), version=np.arange(1, 7), worker=WORKERS, rate_factor=1.0))
    assert not run.proof(expected=ExpectedRows(checks_factors=True)).problems


@pytest.mark.parametrize(
    ("workers_at_start", "row", "factor", "told"),
    [
        (3, 3, 1.0, "row 3: step 3 has rate_factor 1, but for the workers that took part so far it must be 0.5625"),
        (3, 1, 0.5, "row 1: step 1 has rate_factor 0.5, but for the workers that took part so far it must be 1"),
        (5, 3, None, "row 3: step 3 has rate_factor 0.5625, but for the workers that took part so far it must be 1"),
        (None, 3, None, "row 3: step 3 has rate_factor 0.5625, but in this mode it must be 1"),
    ],
    ids=[
        "the whole rate with a worker more",
        "lowered without one",
        "all five were there from the start",
        "never lowered",
    ],
)
def test_a_rate_that_was_lowered_otherwise_than_the_workers_demand(tmp_path, workers_at_start, row, factor, told):
    run = Run(tmp_path, rows=rows_of(range(6), version=np.arange(1, 7), **OF_MORE))
    if factor is not None:
        run.rows[1]["rate_factor"][row] = factor
    problems = run.proof(expected=ExpectedRows(checks_factors=True, workers_at_start=workers_at_start)).problems
    assert any(f"shard 1: {told}" in problem for problem in problems)


@pytest.mark.parametrize(
    ("examples", "unit", "must_be"),
    [
        (12, 0, None),
        (8, 0, "12"),
        (4, 4, None),
        (8, 4, None),
        (12, 4, None),
        (16, 4, "a multiple of 4 from 4 to 12"),
        (6, 4, "a multiple of 4 from 4 to 12"),
        (0, 4, "a multiple of 4 from 4 to 12"),
    ],
)
def test_a_row_has_the_examples_of_its_step_or_fewer_whole_batches_where_a_step_may_have_fewer(
    run, examples, unit, must_be
):
    for rows in run.rows:
        rows["examples"] = 12
    run.rows[1]["examples"][3] = examples
    problems = run.proof(expected=ExpectedRows(examples=(12, 12), examples_unit=unit)).problems
    told = f"shard 1: row 3: step 3 has examples {examples}, but it must be {must_be}"
    assert problems == ([] if must_be is None else [told])


@pytest.mark.parametrize(
    ("row", "rows_before", "examples_in_all", "is_found"),
    [
        (3, 0, MOST_IDS - 1, True),
        (3, 0, 2 * MOST_IDS, True),  # every third row is checked
        (4, 0, 2 * MOST_IDS, False),
        (3, 4, 0, False),
        (4, 4, 0, True),
    ],
    ids=["every row", "a third row", "between them", "before other settings", "after other settings"],
)
def test_the_ids_of_the_examples_of_a_row_are_those_of_its_step(run, row, rows_before, examples_in_all, is_found):
    for rows in run.rows:
        rows["ids_checksum"] = 10 * rows["step"]
    run.rows[1]["ids_checksum"][row] = 77
    expected = ExpectedRows(
        ids_checksums=lambda rows: (10 * rows["step"]).astype(np.int64), examples_in_all=examples_in_all,
        first_rows=(0, rows_before),
    )  # fmt: skip
    right = f"it must be {10 * run.rows[1]['step'][row]:.0f}: the step trained on other examples than it should"
    told = f"shard 1: row {row}: step {run.rows[1]['step'][row]:.0f} has ids_checksum 77, but {right}"
    assert run.proof(expected=expected).problems == ([told] if is_found else [])
