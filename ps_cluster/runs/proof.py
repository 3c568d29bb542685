"""Prove that each update was applied exactly once, by comparing the ledger's rows with the parameter servers' counters.

The rows of each shard are read from its journal, the file into which the leader has written them. No TensorFlow.

Three numbers of a shard have to agree. Its version is incremented by each change of its weights. The number of accepted
gradients is incremented by the ledger on the parameter server, with each row that it writes. The rows are counted as they
are read from the journal. (If the last two differ during training, the chief ends the run.)

The steps in the rows of every shard must be the steps that the chief handed out. The values in a row (learning rate,
number of examples, checksum of their ids) must be those that follow from the step id and the settings.

The counts do not show what an update computed. Therefore a sample of the updates is computed again
(`evaluation/recomputation.py`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from ps_cluster.files.json_rows import read_rows
from ps_cluster.files.values import Malformed
from ps_cluster.notices import Notify
from ps_cluster.runs import journal
from ps_cluster.runs.ledger import RATE_RETURNS_OVER, TAKES_PART_FOR, WHOLE, Counts, counts_of
from ps_cluster.runs.result_rows import Proof, Recomputed, ShardProof
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.runs.step_set import StepSet
from ps_cluster.runs.update_samples import RecomputedRow

MOST_PROBLEMS = 10
RATE_TOLERANCE = 1e-5  # other processors round float32 differently
_NEVER = 2**40  # stands for the number of updates since a worker's newest update if the worker has had none
FACTOR_TOLERANCE = 1e-3  # the error of hundreds of float32 roundings in a row
NORM_TOLERANCE = 1e-4  # relative error of a norm in float32
MOST_IDS = 20_000_000  # the ids of this many examples can be computed again in about 7 s
OnRows = Callable[[int], None]


@dataclass(frozen=True)
class RoundShape:
    """The size of a round, in which an update applies the mean of several workers' gradients.

    Each update has `steps_per_update` step ids. It averages the gradients of at least `gradients_per_update` and at
    most `most` of these steps. In modes without rounds each update applies one gradient, and all three numbers are 1.
    """

    steps_per_update: int
    gradients_per_update: int
    most: int


@dataclass(frozen=True)
class ExpectedRows:
    """The values that the rows of a run must have, according to its settings. By default any value is allowed.

    Attributes:
      examples: for each shard, the largest number of examples that one row may count; empty: any number.
      most_staleness: the largest staleness that an update may have [versions]; None: any.
      rates: a function that maps step ids, int64 [k], to their learning rates, float32 [k]; None: any.
      ids_checksums: a function that maps rows, a structured array [k] of dtype ROW, to the checksums of their examples'
        ids, int64 [k]; None: any.
      examples_in_all: the approximate number of examples in all rows. If it is above `MOST_IDS`, the ids of
        only some rows are computed again.
      highest_rate: the highest learning rate of the schedule. The tolerance for rounding is a fixed share of this rate,
        even for rows whose rate is small.
      first_rows: for each shard, the index of the first row for which `rates`, `examples`, `most_staleness` and
        `ids_checksums` hold. Earlier rows were made with other settings.
      examples_unit: a batch size. The number of examples in each row is a multiple of it, but may be less than the
        shard's `examples`, because steps may have fewer batches. 0: each row has exactly the shard's `examples`.
      checks_factors: whether the factors of the learning rate, column `rate_factor`, are checked. If not,
        `workers_at_start` has no effect.
      workers_at_start: the number of workers at the start of the training. While more workers take part, the learning
        rate has to be lowered (`FactorsOfRates`). None: it is never lowered, so all factors have to be 1.
    """

    examples: Sequence[int] = ()
    most_staleness: int | None = None
    rates: Callable[[np.ndarray], np.ndarray] | None = None
    ids_checksums: Callable[[np.ndarray], np.ndarray] | None = None
    examples_in_all: int = 0
    highest_rate: float = 0.0
    first_rows: Sequence[int] = ()
    examples_unit: int = 0
    checks_factors: bool = False
    workers_at_start: int | None = None


class FactorsOfRates:
    """Recomputes the factors that lower the learning rate while more workers take part than at the start.

    It uses only the worker of each row of the ledger. The parameter server computes the same factors in
    server/rate_of_more_workers.py.
    """

    def __init__(self, workers_at_start: int):
        self._begun = workers_at_start
        self._ages: dict[int, int] = {}  # worker → number of updates since its newest update
        self._before = 0.0  # logarithm of the newest factor

    def read(self, workers: np.ndarray) -> np.ndarray:
        """Return the factors of the next updates, float64 [k]. `workers`: the worker of each gradient, int64 [k].

        f[i] = min(s[i], f[i-1] * (1 + g)). Here s[i] is the factor for the number of workers that take part in update
        i, and g is 1 / RATE_RETURNS_OVER. So log(f[i]) is i * log(1 + g) plus the lowest value so far of
        log(s[i]) - i * log(1 + g).
        """
        places = np.arange(len(workers))
        suits = -2 * np.log(np.maximum(1.0, self._taking_part(workers) / self._begun))
        growth = math.log1p(1 / RATE_RETURNS_OVER) * (places + 1)
        logarithms = growth + np.minimum(self._before, np.minimum.accumulate(suits - growth))
        self._before = float(logarithms[-1])
        factors: np.ndarray = np.exp(logarithms)
        return factors

    def _taking_part(self, workers: np.ndarray) -> np.ndarray:
        """Return how many workers take part at each update, int64 [k]."""
        places, counts, found = np.arange(len(workers)), np.zeros(len(workers), np.int64), np.unique(workers).tolist()
        firsts = np.zeros(len(workers), np.int64)
        for worker in set(found) - self._ages.keys():
            firsts[np.argmax(workers == worker)] += 1
        ever = len(self._ages) + np.cumsum(firsts)
        for worker in {*self._ages, *found}:
            before = -self._ages.get(worker, _NEVER) - 1
            ages = places - np.maximum.accumulate(np.where(workers == worker, places, before))
            counts += ages < TAKES_PART_FOR * np.maximum(self._begun, ever)
            self._ages[worker] = int(ages[-1])
        return counts


class ShardAudit:
    """The audit of one shard, which reads the shard's rows in order and counts violations.

    Attributes:
      rows: the number of rows read so far.
      repeated: the number of rows whose step already had a row.
      wrong_version: a line about the first row with a wrong version; empty without such a row.
      wrong_round: a line about the first row whose step belongs to another round than its version; empty without such a
        row.
      wrong_values: for each column with a wrong value, a line about the first row that has one.
    """

    def __init__(self, rounds: RoundShape, expected: ExpectedRows = ExpectedRows(), shard: int = 0):
        """Create the audit of shard number `shard`. No row has been read yet."""
        self._rounds = rounds
        self._expected = expected
        self._first_rows = expected.first_rows[shard] if expected.first_rows else 0
        self._examples = expected.examples[shard] if expected.examples else None
        self._steps = StepSet()
        # The version of the last row, and the number of consecutive rows with it.
        self._newest, self._rows_of_newest = 0, rounds.most
        self._begun = 0  # number of updates that have at least one row
        self._factors = None if expected.workers_at_start is None else FactorsOfRates(expected.workers_at_start)
        self.rows = self.repeated = 0
        self.wrong_version = self.wrong_round = ""
        self.wrong_values: dict[str, str] = {}
        self._remainders: dict[tuple[int, int], float] = {}  # (worker, pid) → norm of what its newest push left out

    @property
    def distinct(self) -> int:
        return self._steps.count

    def forget_remainders(self) -> None:
        """Forget what earlier pushes have left out. Call this before the rows of another leader are read.

        Under another leader, a worker loads from its files what it has left out. This may differ from the rows here.
        """
        self._remainders.clear()

    def read(self, rows: np.ndarray) -> None:
        """Check the next rows, a structured array of dtype ROW, in the order in which the shard accepted them."""
        self._check_versions(rows["version"].astype(np.int64))
        self._check_rounds(rows)
        self._check_values(rows)
        self._check_remainders(rows)
        self.repeated += self._steps.add(rows["step"].astype(np.int64))
        self.rows += len(rows)
        if self._rounds.steps_per_update > 1:  # late steps of closed rounds get no rows
            self._steps.close_below(self._updates() * self._rounds.steps_per_update)

    def _updates(self, version: int = 0) -> int:
        """Return the number of updates in the rows.

        In rounds with backup workers, an update may have more gradients than it needs. So the rows alone do not always
        show whether the newest update is complete, but the shard's `version` shows it. If `version` is left out, the
        newest update is counted only if it has the largest number of gradients that an update may have.
        """
        of_newest = (self._rows_of_newest - 1) % self._rounds.most + 1
        is_over = of_newest == self._rounds.most or (
            version >= self._begun and of_newest >= self._rounds.gradients_per_update
        )
        return self._begun - (not is_over)

    def _check_versions(self, versions: np.ndarray) -> None:
        """Check that versions follow each other, and that each version has a possible number of rows (`RoundShape`)."""
        before, numbers = np.concatenate([[self._newest], versions[:-1]]), np.arange(len(versions))
        # For each row, the number of consecutive rows with its version so far. The first of them may be in an earlier chunk.
        begins = np.maximum.accumulate(np.where(versions != before, numbers, -self._rows_of_newest))
        runs = np.concatenate([[self._rows_of_newest], numbers - begins + 1])
        counts = (runs - 1) % self._rounds.most + 1  # the gradients of the update up to each row
        self._newest, self._rows_of_newest = int(versions[-1]), int(runs[-1])
        self._begun += int(np.count_nonzero(counts[1:] == 1))
        same = (versions == before) & (counts[:-1] < self._rounds.most)
        next_one = (versions == before + 1) & (counts[:-1] >= self._rounds.gradients_per_update)
        wrong = np.flatnonzero(~(same | next_one))
        if len(wrong) and not self.wrong_version:
            first = int(wrong[0])
            right = before[first] + (counts[first] == self._rounds.most)
            self.wrong_version = f"row {self.rows + first}: its version is {versions[first]}, but has to be {right}"

    def _check_rounds(self, rows: np.ndarray) -> None:
        if self._rounds.steps_per_update == 1:
            return
        wrong = np.flatnonzero(rows["step"] // self._rounds.steps_per_update != rows["version"] - 1)
        if len(wrong) and not self.wrong_round:
            first = int(wrong[0])
            step = f"step {rows['step'][first]:.0f}"
            self.wrong_round = (
                f"row {self.rows + first}: {step} does not belong to the round of version {rows['version'][first]:.0f}"
            )

    def _check_values(self, rows: np.ndarray) -> None:
        staleness, expected = rows["staleness"], self._expected
        counts = self.rows + np.arange(len(rows)) >= self._first_rows
        # A worker can't have pulled a version that did not exist yet, nor a version below 0.
        versions = rows["version"]
        impossible = (staleness < 0) | (staleness >= versions)
        self._note(
            "staleness",
            impossible,
            rows,
            lambda place: (
                f"but its update produced version {versions[place]:.0f}, so its staleness must be from 0 to "
                f"{versions[place] - 1:.0f}"
            ),
        )
        if expected.most_staleness is not None:
            bound = f"but the staleness bound is {expected.most_staleness}"
            self._note("staleness", counts & (staleness > expected.most_staleness), rows, lambda _: bound)
        if (most := self._examples) is not None:
            unit = expected.examples_unit or most
            wrong = (rows["examples"] % unit != 0) | (rows["examples"] < unit) | (rows["examples"] > most)
            up_to = f"a multiple of {unit} from {unit} to {most}" if expected.examples_unit else most
            self._note("examples", counts & wrong, rows, lambda _: f"but it must be {up_to}")
        if expected.rates is not None:
            rates = expected.rates(rows["step"].astype(np.int64))
            rounding = RATE_TOLERANCE * expected.highest_rate
            wrong = counts & ~np.isclose(rows["learning_rate"], rates, rtol=RATE_TOLERANCE, atol=rounding)
            self._note(
                "learning_rate", wrong, rows, lambda place: f"but the schedule sets {rates[place]:.6g} for this step"
            )
        if expected.checks_factors:
            if self._factors is None:
                factors, source = np.ones(len(rows)), "in this mode it"
            else:
                factors = self._factors.read(rows["worker"].astype(np.int64))
                source = "for the workers that took part so far it"
            wrong = ~np.isclose(rows["rate_factor"], factors, rtol=FACTOR_TOLERANCE, atol=0)
            self._note("rate_factor", wrong, rows, lambda place: f"but {source} must be {factors[place]:.6g}")
        if expected.ids_checksums is not None:
            every = 1 + expected.examples_in_all // MOST_IDS
            chosen = counts & ((self.rows + np.arange(len(rows))) % every == 0)
            checksums = rows["ids_checksum"].copy()
            checksums[chosen] = expected.ids_checksums(rows[chosen])
            self._note(
                "ids_checksum",
                rows["ids_checksum"] != checksums,
                rows,
                lambda place: (
                    f"but it must be {checksums[place]:.0f}: the step trained on other examples than it should"
                ),
            )

    def _check_remainders(self, rows: np.ndarray) -> None:
        """Check that each push contains what the previous push of the same process had left out.

        The first push of a process under each leader is not checked. It may contain what an earlier process of the
        worker had left out, and this shard may have no row of that process's last push.
        """
        expected = np.full(len(rows), np.nan)
        for place in np.flatnonzero((rows["remainder_after"] > 0) | (rows["remainder_before"] > 0)).tolist():
            row = rows[place]
            expected[place] = self._remainders.get(who := (int(row["worker"]), int(row["pid"])), np.nan)
            self._remainders[who] = float(row["remainder_after"])
        wrong = ~np.isnan(expected) & ~np.isclose(rows["remainder_before"], expected, rtol=NORM_TOLERANCE, atol=0)
        self._note(
            "remainder_before",
            wrong,
            rows,
            lambda place: f"but the worker's previous push had left out {expected[place]:.6g}",
        )

    def _note(self, column: str, wrong: np.ndarray, rows: np.ndarray, why: Callable[[int], str]) -> None:
        """Remember a message about the first `wrong` row. `why`: takes a row's index and returns the message's end."""
        if wrong.any() and column not in self.wrong_values:
            place = int(np.argmax(wrong))
            row = rows[place]
            value = f"{row[column]:.0f}" if column in WHOLE else f"{row[column]:.6g}"
            self.wrong_values[column] = (
                f"row {self.rows + place}: step {row['step']:.0f} has {column} {value}, {why(place)}"
            )

    def problems(self, counts: Counts, scheduled: StepSet) -> Iterator[str]:
        """Yield each problem as a line. `scheduled`: the steps that the chief handed out."""
        if self.repeated:
            yield f"{self.repeated} rows belong to steps that already had a row"
        yield from filter(None, (self.wrong_version, self.wrong_round, *self.wrong_values.values()))
        if counts.accepted != self.rows:
            yield f"{counts.accepted} gradients were accepted, but there are {self.rows} rows"
        if counts.version != (updates := self._updates(counts.version)):
            yield f"its version is {counts.version}, but its ledger has the rows of {updates} updates"
        if len(strange := self._never_handed_out(updates, scheduled)):
            yield f"{len(strange)} rows belong to steps that were never handed out; the first is step {strange[0]}"

    def _never_handed_out(self, updates: int, scheduled: StepSet) -> np.ndarray:
        """Return the steps that have a row but were never scheduled, int64 [k].

        In a mode with rounds, return only the first step of each round that was never scheduled.
        """
        if self._rounds.steps_per_update > 1:  # the rows of version v belong to round v - 1 (`_check_rounds`)
            return scheduled.missing_below(updates) * self._rounds.steps_per_update
        # If there is no such step, and the shard has as many steps as were scheduled, these are the scheduled steps.
        unscheduled = scheduled.missing_below(self._steps.end)
        strange: np.ndarray = unscheduled[self._steps.holds(unscheduled)]
        return strange

    def applied(self, counts: Counts) -> int:
        """Return the number of updates in the rows, without those that repeat earlier steps."""
        return self._updates(counts.version) - math.ceil(self.repeated / self._rounds.gradients_per_update)

    def excess(self, counts: Counts) -> int:
        """Return how many gradients were applied too often, according to the counter with the largest excess."""
        more = counts.version - self._updates(counts.version)
        changes = more * self._rounds.gradients_per_update + self.rows
        return max(0, changes - self.distinct, counts.accepted - self.distinct, self.repeated)


@dataclass(frozen=True)
class Audit:
    """The result of comparing the rows in the journals with the parameter servers' counters.

    `problems`: one line for each disagreement. `duplicated`: the number of gradients that were applied too often.
    """

    problems: list[str]
    shards: list[ShardProof]
    duplicated: int


def audit(
    journals: Sequence[journal.History],
    counts: np.ndarray,
    rounds: RoundShape,
    scheduled: StepSet,
    total: int | None,
    expected: ExpectedRows = ExpectedRows(),
    on_rows: OnRows = lambda rows: None,
    *,
    may_lack_updates: bool = False,
) -> Audit:
    """Compare the rows of all shards' ledgers with the parameter servers' counters.

    Args:
      journals: for each shard, the files with the rows of its ledger.
      counts: the counters of the parameter servers, int64 [shards, len(COUNTS)].
      scheduled: the ids of the updates that the chief handed out.
      total: the number of updates that the run should have; None if it was stopped early.
      on_rows: called from time to time with the number of rows read since the last call.
      may_lack_updates: whether updates that were handed out may be missing, because they were lost or the next leader
        repeats them.
    """
    problems: list[str] = []
    shards, audits = [], []
    for index, (history, counters) in enumerate(zip(journals, counts_of(counts), strict=True)):
        shard_audit = ShardAudit(rounds, expected, index)
        leaders_begin = set(accumulate(part.rows for part in history))
        try:
            for rows in journal.read(history):
                if shard_audit.rows in leaders_begin:
                    shard_audit.forget_remainders()
                shard_audit.read(rows)
                on_rows(len(rows))
        except (journal.JournalDamaged, Malformed, OSError) as error:
            problems.append(str(error))
        problems += (f"shard {index}: {problem}" for problem in shard_audit.problems(counters, scheduled))
        shards.append(
            ShardProof(
                index=index,
                rows=shard_audit.rows,
                steps=shard_audit.distinct,
                version=counters.version,
                accepted=counters.accepted,
                refused=counters.refused,
                dropped=counters.dropped,
            )
        )
        audits.append((shard_audit, counters))
    problems += _schedule_problems(
        min(one.applied(counters) for one, counters in audits), scheduled, total, may_lack_updates
    )
    return Audit(problems, shards, max(shard_audit.excess(counters) for shard_audit, counters in audits))


def _schedule_problems(applied: int, scheduled: StepSet, total: int | None, may_lack_updates: bool) -> Iterator[str]:
    if scheduled.count < applied or (scheduled.count > applied and not may_lack_updates):
        yield f"{scheduled.count} updates were handed out, but {applied} were applied"
    if total is not None and scheduled.count != total:
        yield (
            f"{total} updates should have been handed out, but {scheduled.count} were; "
            f"the first missing update is {scheduled.first_missing}"
        )


def verdict(shards: list[ShardProof], problems: Iterable[str], recomputed: Recomputed = Recomputed()) -> Proof:
    """Return the result of the proof. It holds if there are no problems; only the first few problems are listed."""
    distinct = list(dict.fromkeys(problems))
    return Proof(holds=not distinct, problems=distinct[:MOST_PROBLEMS], shards=shards, recomputed=recomputed)


def with_recomputed(proof: Proof, run_dir: RunDir, applied: int, notify: Notify) -> Proof:
    """Return the leader's proof with the results of the updates that were computed again.

    The proof is the check that each update was applied exactly once. An update whose recomputed result differs from the
    cluster's result is a problem. `applied`: the number of all applied updates. `notify` is called with one line if
    rows of metrics/recomputed.jsonl are damaged.
    """
    rows = {(row.term, row.update): row for row in read_rows(run_dir.recomputed, RecomputedRow, notify)}.values()
    deviations: dict[str, float] = {}
    for row in rows:
        deviations |= {name: max(one, deviations.get(name, 0.0)) for name, one in row.deviations.items()}
    recomputed = Recomputed(
        updates=sum(1 for row in rows if row.deviations),
        of=applied,
        workers={str(index): count for index, count in sorted(Counter(w for row in rows for w in row.workers).items())},
        largest_deviations=deviations,
        unchecked=list(dict.fromkeys(line for row in rows for line in row.unchecked)),
    )
    return verdict(proof.shards, [*proof.problems, *(problem for row in rows for problem in row.problems)], recomputed)
