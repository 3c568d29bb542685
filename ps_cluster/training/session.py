"""What every training has around its own loop: where it starts, its rows and checkpoints on the way, and its end."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from ps_cluster.catalogue.imports import find
from ps_cluster.config import RunConfig
from ps_cluster.data.packed import PackedDataset
from ps_cluster.files.json_rows import append_row, last_row
from ps_cluster.files.malformed import Malformed
from ps_cluster.files.writing import write_json
from ps_cluster.models import build as networks
from ps_cluster.models import flat
from ps_cluster.reporting.tensorboard import TrainingWriter
from ps_cluster.rows.progress import ProgressRow
from ps_cluster.rows.training import Proof, Server, TrainingResult
from ps_cluster.run_dir import LIFE, RunDir, say
from ps_cluster.training import checkpoints, tables
from ps_cluster.training.audit import Rounds, audit
from ps_cluster.training.bookkeeper import Bookkeeper
from ps_cluster.training.journal import Journal, JournalDamaged
from ps_cluster.training.parameter_store import ParameterStore
from ps_cluster.training.resume import check_journals, newest_checkpoint
from ps_cluster.training.run_progress import RunProgress
from ps_cluster.training.saver import Saver
from ps_cluster.training.slice import Start
from ps_cluster.training.step import TrainStep
from ps_cluster.training.training_clock import Times
from ps_cluster.training.worker import Compute

LOCAL_DEVICE = "/device:CPU:0"
ROW_EVERY_S = 0.5


class Session:
    """A training in one process, from `begin` over `build` and `start` to `end`; between them its own loop.

    Attributes:
      progress: what is scheduled and applied, as of the last look at the ledger.
      leads: whether this process writes into the run directory; where several train, one does.
    """

    def __init__(self, config: RunConfig, run_dir: RunDir, dataset: PackedDataset, *, leads: bool = True):
        self.progress = RunProgress(config, dataset.train_examples)
        self.leads = leads
        self._config = config
        self._run_dir = run_dir
        self._dataset = dataset
        self._reporter = Reporter(run_dir, self.progress)
        self._resumed: checkpoints.Checkpoint | None = None
        self._store: ParameterStore  # from `build` on, like the others
        self._books: Bookkeeper
        self._saver: Saver

    def begin(self, *, resume: bool) -> None:
        """Before connecting: takes in how far the training was when it is resumed.

        Raises:
          UserError: there is no checkpoint to resume from, or it is of other work.
        """
        if resume:
            self._resumed = newest_checkpoint(self._config, self._run_dir, self._dataset.train_examples, say)
            self.progress.resume(self._resumed.arrays, self._resumed.meta.progress)
            if self.leads:
                check_journals(self._resumed, self._run_dir)
        self._restart_clock()
        if self.leads:
            checkpoints.clear_ended(self._run_dir.checkpoints)
            self._reporter.row("connecting")

    def _restart_clock(self) -> None:
        """Goes on with the times of the leader before this one, which may have come further than what is resumed."""
        stands = self._resumed.meta.times if self._resumed else Times()
        last = last_row(self._run_dir.progress, ProgressRow) if self.leads else None
        if last is None:
            self.progress.clock.restart(stands, stands.last_update)
            return
        since = last.monotonic if last.life is not None and last.life == os.environ.get(LIFE) else None
        self.progress.clock.restart(last.times, stands.last_update, since=since)

    def build(self, devices: Sequence[str], own_device: str) -> tuple[ParameterStore, Compute]:
        """The module's `build`, with the parameters of the checkpoint that is resumed.

        Raises:
          UserError: the checkpoint is of another model.
        """
        if self.leads:
            self._reporter.row("building")
        self._store, compute = build(self._config, self._dataset, devices, own_device)
        if self._resumed is not None:
            self._store.restore({name: a for name, a in self._resumed.arrays.items() if name != "waiting"})
        self._books = Bookkeeper(self._store, self.progress, self._open_journals())
        self._saver = Saver(self._config, self._run_dir, self._dataset.kind, self._books, self.progress)
        return self._store, compute

    def _open_journals(self) -> list[Journal]:
        """The leader's, cut to what is resumed. Later states are of the history that is cut off."""
        if not self.leads:
            return []
        for directory in self._run_dir.states if self._resumed else ():
            checkpoints.remove_later(directory, self._resumed.step)
        self._run_dir.journal(0).parent.mkdir(exist_ok=True)
        return [Journal(self._run_dir.journal(index), rows) for index, rows in enumerate(self.progress.positions)]

    def start(self) -> None:
        """The first step is about to be scheduled."""
        self.progress.clock.start()
        self._books.look()  # after a resume there may be nothing left to do, and the counts have to be known all the same

    def keep_up(self, phase: str) -> None:
        """Looks at the ledger, and writes what is due: a row that says `phase`, a checkpoint or a snapshot."""
        self._books.look()
        if self.leads:
            self._saver.save_when_due()
            self._reporter.save_seconds = self._saver.last_seconds
            self._reporter.row_when_due(phase)

    def end(self, *, stopped: bool) -> None:
        """The last checkpoint, the ledger, the result, and the mark that no checkpoint comes after.

        Args:
          stopped: somebody asked for the end; otherwise every update should be there.
        """
        self._saver.save_last()
        outcome = "completed" if self.progress.completed else "stopped"
        self._reporter.end(self._result(None if stopped else self.progress.total))
        checkpoints.mark_ended(self._run_dir.checkpoints, last_step=self.progress.applied, outcome=outcome)

    def _result(self, total: int | None) -> TrainingResult:
        """Return what training.json says, and write updates.csv and applies.csv on the way. `total`: as for `audit`."""
        config, journals = self._config, [self._run_dir.journal(index) for index in range(self._config.slices)]
        rounds = Rounds(config.steps_per_update, config.gradients_per_update)
        told = self._reporter.written
        proof = audit(journals, self.progress.counts, rounds, self.progress.scheduled_updates, total, told)
        servers = [Server(index=index, parameters=part.length) for index, part in enumerate(self._store.slices)]
        try:
            tables.write_updates(self._run_dir.updates, journals, rounds, config.ledger_window, told)
            if config.on_parameter_servers:  # elsewhere each process applies for itself
                tables.write_applies(self._run_dir.applies, journals, told)
        except (JournalDamaged, Malformed, OSError) as error:  # of a damaged one the proof tells too
            say(f"the ledger can't be written as a table: {error}")
        result = self.progress.result()
        updates = result.updates.model_copy(update={"duplicated": proof.pop("duplicated")})
        found = {"updates": updates, "proof": Proof.model_validate(proof)}
        return result.model_copy(update=found | {"parameter_servers": servers if config.on_parameter_servers else []})


def build(
    config: RunConfig, dataset: PackedDataset, devices: Sequence[str], own_device: str
) -> tuple[ParameterStore, Compute]:
    """The store, a slice on each of `devices`, and what a worker computes from it."""
    with tf.device(own_device):
        examples = np.asarray(dataset.images("train")[: networks.EXAMPLES])
        model = networks.build(config.model, len(dataset.classes), seed=config.training.seed, examples=examples)
        network = flat.FlatNetwork(model)
        weights, statistics = flat.flatten(model.trainable_variables), flat.flatten(flat.statistics_of(model))
    factors = network.weights.factors((rule.match, rule.factor) for rule in config.optimizer.learning_rate_factors)
    store = ParameterStore(
        devices,
        # Each batch behind a step keeps its share of the statistics that the one before it left.
        Start(weights, factors, statistics, network.keep**config.batches_per_step),
        config=config,
        total_steps=config.total_steps(dataset.train_examples),
        kind=find(config.mode_kind.slice),
    )
    step = TrainStep(config, network, train_examples=dataset.train_examples, classes=len(dataset.classes))
    around = config.mode_kind.step
    return store, step if around is None else find(around)(step, config, factors, network.keep)


class Reporter:
    """Writes a row of progress where people and programs look: metrics/progress.jsonl and TensorBoard."""

    def __init__(self, run_dir: RunDir, progress: RunProgress):
        self._run_dir = run_dir
        self._progress = progress
        self._tensorboard: TrainingWriter | None = None
        self._next_s = 0.0
        self._written = 0
        self.save_seconds: float | None = None

    def row(self, phase: str) -> None:
        told = {"written": self._written, "save_seconds": self.save_seconds}
        row = self._progress.row(phase).model_copy(update=told)
        try:
            append_row(self._run_dir.progress, row)
            if phase in ("training", "ended"):
                # Not before: making a writer needs TensorFlow's context, which connecting resets.
                self._tensorboard = self._tensorboard or TrainingWriter(self._run_dir)
                self._tensorboard.write(row.model_dump())
        except (OSError, tf.errors.OpError) as error:
            # A full disk may have room again later, and the ledger has all that is in a row.
            say(f"training goes on, but a row can't be written: {' '.join(str(error).split())[:200]}")

    def row_when_due(self, phase: str) -> None:
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + ROW_EVERY_S
            self.row(phase)

    def written(self, rows: int) -> None:
        """So many more rows of the ledger were read for its proof and tables: of many it takes a while, and somebody waits."""
        self._written += rows
        self.row_when_due("writing")

    def end(self, result: TrainingResult) -> None:
        """The result where the launcher looks for it, and the last row."""
        write_json(self._run_dir.training_result, result.model_dump())
        self.row("ended")
        if self._tensorboard is not None:
            self._tensorboard.write_staleness(result.staleness.histogram, self._progress.applied)
            self._tensorboard.close()
