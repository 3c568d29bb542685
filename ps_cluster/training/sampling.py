"""Let the servers record the inputs and results of a few updates, so that the evaluator can recompute these updates."""

from __future__ import annotations

import contextlib
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ps_cluster.config import RunConfig
from ps_cluster.files.json_rows import RowTail
from ps_cluster.runs.ledger import REMAINDERS
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.runs.update_samples import (
    MOST_WAITING,
    RecomputedRow,
    SampledGradient,
    SampledShard,
    SampleHeader,
    UpdateSample,
    settings_digest,
    waiting_samples,
    write_sample,
)
from ps_cluster.server.samples import ALL_WORKERS, ANY_WORKER
from ps_cluster.server.store import ParameterStore
from ps_cluster.training.run_progress import RunProgress

# One update of every worker is sampled in each session, whatever that costs. As long as recomputing the samples takes
# at most MOST_SHARE of the processors' time, more updates are sampled: up to ENOUGH_OF_A_WORKER updates of each worker,
# and then one update in SELDOM at random.
MOST_SHARE = 0.01
ENOUGH_OF_A_WORKER = 2
SELDOM = 512
# An incomplete sample is given up after this many further updates per worker. Each time a worker's sample is given up,
# the number doubles for this worker, up to 64 times its first value. So a slow worker is sampled too.
PATIENCE = 64


@dataclass
class _Reservation:
    """A buffer that each parameter server has reserved, to record the inputs and results of an update."""

    buffer: int  # the index of the buffer
    first: int  # the update to sample; if `worker` is set, the lowest number that the worker's next update may have
    worker: int  # the worker whose next update is sampled; ANY_WORKER to sample the update `first`
    rows: list[dict[int, np.void]]  # for each shard, step → row of the update


class UpdateSampler:
    """Chooses a few updates, and writes their inputs and results to files, from which the evaluator recomputes them.

    Call its methods only from the thread that also reads the ledger.
    """

    def __init__(self, config: RunConfig, run_dir: RunDir, store: ParameterStore, progress: RunProgress, term: int):
        """Create a sampler for the updates that are not handed out yet. `term`: the leader's term number."""
        self._store, self._run_dir, self._progress, self._term = store, run_dir, progress, term
        self._seed, self._steps_per_update = config.training.seed, config.steps_per_update
        self._fewest = config.gradients_per_update
        self._one_worker_each = not config.chosen_mode.averages and not config.chosen_mode.shares_steps
        self._free = list(range(store.sample_buffers))
        self._reservations: list[_Reservation] = []
        # Worker → the number of its updates that were sampled in this session.
        self._sampled: Counter[int] = Counter(dict.fromkeys(range(config.training_workers), 0))
        self._given_up: Counter[int] = Counter()  # worker → the number of its samples that were given up
        self._absent: set[int] = set()  # workers that have pushed nothing since a sample of theirs was given up
        # Worker → the step of its first push in the whole training. After a resume this stays empty, because the files of a
        # worker may be ahead of the state from which training continues.
        self._first_steps: dict[int, int] = {}
        self._is_new = not progress.scheduled_updates.end
        self._settings = settings_digest(config)
        self._recomputed = RowTail(run_dir.recomputed, RecomputedRow)
        self._recomputed_s = 0.0  # the seconds that recomputing updates took, in this and earlier sessions
        self._next = 0  # the first update that has not been a candidate yet

    def start(self) -> None:
        """Tell the parameter servers which updates to record first: reserve a buffer for each of them.

        Call this before the first step is handed out.
        """
        self._reserve()

    def poll(self, rows: Sequence[np.ndarray]) -> None:
        """Process the new ledger rows of each shard.

        Write the samples of updates that all shards have applied. Then reserve free buffers for later updates.

        Args:
          rows: for each shard, a structured array [k] of `ledger.ROW`.
        """
        if not self._store.sample_buffers:
            return
        self._note(rows)
        for reservation in list(self._reservations):
            if self._is_complete(reservation):
                self._collect(reservation)
            elif self._is_overdue(reservation):
                self._give_up(reservation)
            else:
                continue
            self._reservations.remove(reservation)
            self._free.append(reservation.buffer)
        self._reserve()

    def _note(self, rows: Sequence[np.ndarray]) -> None:
        for index, of_shard in enumerate(rows):
            workers, steps = of_shard["worker"].astype(np.int64), of_shard["step"].astype(np.int64)
            for worker in np.unique(workers).tolist():
                self._sampled.setdefault(worker, 0)
                self._absent.discard(worker)
                if self._is_new:
                    self._first_steps.setdefault(worker, int(steps[workers == worker][0]))
            for reservation in self._reservations:
                if reservation.worker == ANY_WORKER:
                    chosen = np.flatnonzero(steps // self._steps_per_update == reservation.first)
                elif reservation.rows[index]:
                    continue
                else:
                    chosen = np.flatnonzero((workers == reservation.worker) & (steps >= reservation.first))[:1]
                reservation.rows[index] |= {int(steps[number]): of_shard[number] for number in chosen}

    def _is_complete(self, reservation: _Reservation) -> bool:
        """Return whether every shard has applied the update for which a buffer is reserved."""
        fewest = min(map(len, reservation.rows))
        if self._steps_per_update == 1:
            return fewest > 0
        return fewest >= self._fewest and self._progress.applied > reservation.first

    def _is_overdue(self, reservation: _Reservation) -> bool:
        """Return whether to stop waiting for the reserved update, because many later updates were applied."""
        patience = PATIENCE * max(1, len(self._sampled)) << min(6, self._given_up[reservation.worker])
        return self._progress.applied > reservation.first + patience

    def _give_up(self, reservation: _Reservation) -> None:
        """Free the buffer on the shards that still wait for the update. If it awaits a worker, the worker counts as absent."""
        self._store.take_sample(reservation.buffer)
        if reservation.worker != ANY_WORKER:
            self._given_up[reservation.worker] += 1
            self._absent.add(reservation.worker)

    def _collect(self, reservation: _Reservation) -> None:
        """Write the sampled update of a buffer if every shard has kept its part of the update."""
        rows = reservation.rows
        shards = [shard for shard in self._store.take_sample(reservation.buffer) if shard is not None]
        if len(shards) < len(rows) or not rows[0] or any(of_shard.keys() != rows[0].keys() for of_shard in rows):
            return
        if not all(map(self._belong_together, shards, rows)):
            return  # the step was handed out again, or the buffer was reserved too late
        if not all(np.isfinite(row[name]) for of_shard in rows for row in of_shard.values() for name in REMAINDERS):
            return  # the training has diverged
        gradients = [
            SampledGradient(
                step=step,
                worker=int(row["worker"]),
                examples=int(row["examples"]),
                learning_rate=float(row["learning_rate"] * row["rate_factor"]),
                remainders=sum(math.hypot(*(of_shard[step][name] for of_shard in rows)) for name in REMAINDERS),
                first_of_worker=self._first_steps.get(int(row["worker"])) == step,
            )
            for step, row in sorted(rows[0].items())
        ]
        header = SampleHeader(
            update=gradients[0].step // self._steps_per_update,
            term=self._term,
            gradients=gradients,
            workers=sorted({int(row["worker"]) for of_shard in rows for row in of_shard.values()}),
            versions=[int(next(iter(of_shard.values()))["version"]) - 1 for of_shard in rows],
            pulled=[shard.version for shard in shards],
            pullers=[shard.worker for shard in shards],
            lengths=self._store.lengths,
            settings=self._settings,
        )
        with contextlib.suppress(OSError):  # the writer of the ledger reports a full disk
            write_sample(self._run_dir.samples, UpdateSample(header, shards))
            self._sampled.update(header.workers)

    def _belong_together(self, shard: SampledShard, rows: Mapping[int, np.void]) -> bool:
        """Return whether the sample that a shard kept is of the same update as that shard's rows. `rows`: step → row."""
        return all(
            step // self._steps_per_update == shard.update
            and shard.version == int(row["version"] - 1 - row["staleness"])
            and shard.worker in (ALL_WORKERS, int(row["worker"]))
            for step, row in rows.items()
        )

    def _reserve(self) -> None:
        """Reserve the free buffers for updates that are not handed out yet, unless the evaluator lags behind."""
        first = self._progress.end_of_scheduled
        while self._free and first < self._progress.total:
            if len(waiting_samples(self._run_dir.samples)) + len(self._reservations) >= MOST_WAITING:
                return
            worker, update = self._worker_to_sample(), first
            if worker is None:
                if not self.is_cheap():
                    return
                self._next = max(first, self._next)
                candidates = range(self._next, min(self._next + SELDOM, self._progress.total))
                found = next((one for one in candidates if _mixed(self._seed, one) % SELDOM == 0), None)
                if found is None or any(reservation.worker == ANY_WORKER for reservation in self._reservations):
                    return
                worker, update, self._next = ANY_WORKER, found, found + 1
            buffer = self._free.pop()
            self._reservations.append(_Reservation(buffer, update, worker, [{} for _ in self._store.shards]))
            self._store.reserve_sample(buffer, update, worker=worker, offset=_mixed(self._seed, update))

    def is_cheap(self) -> bool:
        """Return whether recomputing the samples so far took little time, and no sample waits to be recomputed."""
        self._recomputed_s += sum(row.seconds for row in self._recomputed.new_rows())
        budget_s = MOST_SHARE * (os.cpu_count() or 1) * self._progress.clock.times.seconds
        return self._recomputed_s <= budget_s and not waiting_samples(self._run_dir.samples)

    def _worker_to_sample(self) -> int | None:
        """Return the worker with the fewest sampled updates if these are too few; None if all workers have enough.

        Absent workers are left out, because they would block the buffers for the others. If every worker takes part in
        each update, return ANY_WORKER instead of a worker.
        """
        under_way = Counter(reservation.worker for reservation in self._reservations)
        sampled = {worker: count for worker, count in self._sampled.items() if worker not in self._absent}
        fewest = min(sampled.values(), default=0)
        enough = ENOUGH_OF_A_WORKER if fewest and self.is_cheap() else 1
        if not self._one_worker_each:
            return ANY_WORKER if fewest < enough and not under_way[ANY_WORKER] else None
        counts = {worker: count + 2 * under_way[worker] for worker, count in sampled.items()}
        worker = min(counts, key=lambda index: (counts[index], index), default=None)
        return worker if worker is not None and counts[worker] < enough else None


def _mixed(seed: int, update: int) -> int:
    """Return 47 bits that look random, from a seed and the number of an update (SplitMix64)."""
    bits = (seed * 0xD1342543DE82EF95 + update * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) % 2**64
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ bits >> shift) * factor % 2**64
    return (bits ^ bits >> 31) >> 17
