"""Start, resume, report, save and end a training: the parts that all trainers share around their loops."""

from __future__ import annotations

from collections.abc import Sequence

from ps_cluster.config.objectives import OBJECTIVES
from ps_cluster.files.json_rows import last_row
from ps_cluster.files.values import Malformed
from ps_cluster.runs import checkpoints, ledger_csv, resharding
from ps_cluster.runs.checkpoint_arrays import COUNTERS
from ps_cluster.runs.journal import History, Journal, JournalDamaged, history_of
from ps_cluster.runs.logs import DISK_REFUSES
from ps_cluster.runs.proof import RoundShape, audit, verdict
from ps_cluster.runs.result_rows import ProgressRow, TrainingOutcome, TrainingResult
from ps_cluster.runs.run_dir import log_line
from ps_cluster.runs.times import TrainingTimes
from ps_cluster.runs.training_phases import Phase
from ps_cluster.runs.update_samples import forget_samples
from ps_cluster.server.leftovers import new_leader_prefix
from ps_cluster.server.store import ParameterStore
from ps_cluster.server.traffic import server_sizes
from ps_cluster.system.limits import free_memory
from ps_cluster.training.agreement import facts_of_data
from ps_cluster.training.building import Build, build
from ps_cluster.training.expected_rows import expected_rows
from ps_cluster.training.job import TrainingJob
from ps_cluster.training.learning_rate import ledger_settings_digest
from ps_cluster.training.ledger_reader import LedgerReader
from ps_cluster.training.reporter import Reporter
from ps_cluster.training.result import training_result
from ps_cluster.training.resuming import check_journals, check_network, newest_checkpoint
from ps_cluster.training.run_progress import RunProgress
from ps_cluster.training.sampling import UpdateSampler
from ps_cluster.training.saver import Saver, check_disk
from ps_cluster.training.step import Compute
from ps_cluster.training.step_source import DispatchGraphs
from ps_cluster.training.table_occupancy import TableOccupancy

LOCAL_DEVICE = "/device:CPU:0"
NO_LOSS_AFTER = 100  # steps; a training without a finite loss in this many steps is stopped


class SessionStart:
    """The start of a training in one process. Call `begin`, connect to the other tasks, and then call `build`.

    Attributes:
      progress: the progress so far; after a resume, the progress of the checkpoint.
      leads: whether this process writes into the run directory. If several processes train, only one leads.
      resumed: the checkpoint from which training continues; None if training begins anew.
      reporter: writes the progress rows.
      term: the leader's term number (runs/leaders.py), which is part of the names of its files.
    """

    def __init__(self, job: TrainingJob, *, leads: bool = True, build: Build = build):
        self.config, self.run_dir, self.dataset = job.config, job.run_dir, job.dataset
        metric, self._life = OBJECTIVES[self.dataset.spec.objective].metric_name, job.leading.life
        self.progress = RunProgress(self.config, self.dataset.train_examples)
        self.leads = leads
        self.term = job.leading.term
        self.reporter = Reporter(self.config, self.run_dir, self.progress, metric=metric, life=self._life)
        self.resumed: checkpoints.Checkpoint | None = None
        self._build = build

    def begin(self, *, resume: bool) -> None:
        """Load the checkpoint to resume from, if any, and restart the training clock. Call this before connecting.

        Raises:
          UserError: there is no checkpoint to resume from, or it belongs to a run with other settings.
        """
        checkpoint = None
        if resume:
            checkpoint = newest_checkpoint(self.config, self.run_dir, self.dataset, log_line)
            if self.leads:
                check_journals(checkpoint, self.run_dir, self.config.shards)
        elif self.leads:
            forget_samples(self.run_dir)
            if aside := self.run_dir.set_aside():
                log_line(f"training begins anew: the earlier states and journals are in {aside}")
        self.continue_from(checkpoint)
        if self.leads:
            checkpoints.clear_ended(self.run_dir.checkpoints)
            self.reporter.row("connecting")

    def continue_from(self, checkpoint: checkpoints.Checkpoint | None) -> None:
        """Continue from a checkpoint, or begin anew if it is None. Also restart the clock. Call this before `build`."""
        if checkpoint is not None:
            before, now = len(checkpoint.arrays[COUNTERS]), self.config.shards
            if now != before:
                log_line(f"parameter servers: {now} instead of {before}, from step {checkpoint.step:,} on")
            checkpoint = resharding.resharded(checkpoint, now)
            assert checkpoint.meta.progress is not None, "checked in training/resuming.py"
            self.progress.resume(checkpoint.arrays, checkpoint.meta.progress)
        self.resumed = checkpoint
        self._restart_clock()

    def _restart_clock(self) -> None:
        """Continue from the times of the previous leader, which may have trained beyond the resumed checkpoint."""
        resumed_times = (self.resumed and self.resumed.meta.times) or TrainingTimes()
        last = last_row(self.run_dir.progress, ProgressRow) if self.leads else None
        if last is None:
            self.progress.clock.restart(resumed_times, resumed_times.last_update)
            return
        # Under the same launcher, the time since the previous leader's last row counts as training.
        since = last.monotonic if last.life is not None and last.life == self._life else None
        self.progress.clock.restart(last.times, resumed_times.last_update, since=since)

    def build(self, devices: Sequence[str], own_device: str) -> Session:
        """Build the store and a worker's step (see `building.build`), and restore a resumed checkpoint.

        Raises:
          UserError: the checkpoint belongs to another model.
        """
        if self.leads:
            self.reporter.row("building")
        leaders = self.resumed.meta.leaders if self.resumed else []
        leader_prefix = new_leader_prefix(self.term, leaders[0].term if leaders else self.term)
        # Under a launcher, all tasks are on this machine.
        free = None if self._life is None else free_memory()
        store, compute = self._build(self.config, self.dataset, devices, own_device, leader_prefix, free)
        if self.leads and self.resumed is None:  # a resumed run already has states, and needs room for only one more
            check_disk(self.config, self.run_dir, store.state_bytes)
        if self.resumed is not None:
            check_network(self.resumed, store.layout)
            store.restore({**self.resumed.arrays, **self.resumed.changed})
        return Session(self, store, compute)


class Session:
    """A training in one process. Call `start`, then `keep_up` in the trainer's loop, then `end`.

    Attributes:
      store: the parameter store.
      compute: the computation of the workers' steps.
      graphs: the graphs of the dispatches, which use `store` and `compute`. Each is built when it is first used.
      progress: the scheduled and applied updates, as of the last check of the ledger.
      saver: saves the state when it is due.
      problem: the first problem that the rows of the ledger do not show, but the proof (the check after training) has
        to report; empty if there is none. Every saved state contains it, so a later leader reports it too.
      leads: whether this process writes into the run directory. If several processes train, only one leads.
    """

    def __init__(self, start: SessionStart, store: ParameterStore, compute: Compute):
        """Open the journals (the ledgers' copies on disk).

        After a resume, remove the saved states that are not part of the history of the resumed checkpoint.
        """
        self.store = store
        self.compute = compute
        mode, config = start.config.chosen_mode, start.config
        self.graphs = DispatchGraphs(lambda repeats: mode.dispatch(store, compute, config, repeats=repeats))
        self.progress = start.progress
        self.leads = start.leads
        self._term = start.term
        self._config = start.config
        self._run_dir = start.run_dir
        self._train_examples = start.dataset.train_examples
        self._reporter = start.reporter
        # The work of the earlier leaders of this training, the oldest first.
        self._before = start.resumed.meta.leaders if start.resumed else []
        self.problem = next((leader.problem for leader in self._before if leader.problem), "")
        if self.leads and start.resumed:
            for directory in self._run_dir.states:
                checkpoints.remove_abandoned(directory, start.resumed, self._term)
        self._sampler = UpdateSampler(self._config, self._run_dir, store, self.progress, self._term)
        on_rows = self._sampler.poll if self.leads else lambda rows: None
        self._ledger_reader = LedgerReader(
            store, self.progress, self._open_journals() if self.leads else [], on_rows=on_rows
        )
        self._occupancy = TableOccupancy(store.keyed_tables)
        self.saver = Saver(
            self._config, self._run_dir, start.dataset.kind, self._ledger_reader, self.progress,
            data=facts_of_data(start.dataset), network=store.layout,
            term=self._term, before=self._before,
            rules=ledger_settings_digest(self._config, self._config.total_steps(self._train_examples)),
            lines_of=self._occupancy.log_lines, saving=self._reporter.saving,
        )  # fmt: skip

    def _open_journals(self) -> list[Journal]:
        self._run_dir.journals.mkdir(exist_ok=True)
        histories = [history_of(self._run_dir, self._before, index) for index in range(self._config.shards)]
        return [
            Journal(self._run_dir.journal(index, self._term), history[-1].checksum if history else 0)
            for index, history in enumerate(histories)
        ]

    def start(self) -> None:
        """Start the training clock. Call this just before the first step is scheduled."""
        if self.leads:
            self.saver.save_first(self.problem)
        self.progress.clock.start()
        self._reporter.start()
        self._ledger_reader.poll()  # the counts must be known even if a resumed run has nothing left to do
        if self.leads:
            self._sampler.start()

    def note_problem(self, problem: str | None) -> None:
        """Record a problem, which makes the proof (the check after training) fail.

        Only the first problem is kept. None changes nothing.
        """
        self.problem = self.problem or problem or ""

    @property
    def broken(self) -> TrainingOutcome | None:
        """The outcome if training has to stop because a weight, or the loss of every step, is not finite; else None."""
        return self._broken(least_steps=NO_LOSS_AFTER)

    def _broken(self, least_steps: int) -> TrainingOutcome | None:
        # The losses are checked first, because the weights may be NaN as well in this case.
        if self.progress.tally.has_no_loss(least_steps):
            return "nan_loss"
        return "diverged" if self.saver.diverged else None

    def keep_up(self, phase: Phase, *, may_save: bool = True) -> None:
        """Read the ledger, and write what is due: a progress row with this `phase`, a checkpoint or a snapshot.

        `may_save`: whether this call may save a checkpoint or a snapshot. If not, it stays due.
        """
        self._ledger_reader.poll()
        if self.leads:
            if may_save:
                self.saver.save_when_due(self.problem)
            self._reporter.save_seconds = self.saver.last_seconds
            self._reporter.row_when_due(phase)

    def end(self, *, stopped: bool, is_continued: bool = False) -> TrainingOutcome:
        """Write the last checkpoint, the ledger as CSV files, the result, and a file that marks the end of training.

        Args:
          stopped: whether training was stopped early. Otherwise every update should be applied, unless training is broken.
          is_continued: whether another leader will continue the training.
        Returns:
          The outcome: "completed", "stopped", "diverged" or "nan_loss".
        """
        self.saver.save_last(self.problem)
        outcome: TrainingOutcome = "completed" if self.progress.completed else "stopped"
        if broken := self._broken(least_steps=1):
            outcome, stopped = broken, stopped or not self.progress.completed
            log_line(f"the training ends with the outcome {broken} after {self.progress.applied:,} updates")
        self._reporter.end(self._result(outcome, None if stopped else self.progress.total))
        is_continued = is_continued and outcome == "stopped"
        checkpoints.mark_ended(
            self._run_dir.checkpoints,
            last_step=self.progress.applied,
            outcome=outcome,
            is_continued=is_continued,
            term=self._term,
        )
        return outcome

    def _result(self, outcome: TrainingOutcome, total: int | None) -> TrainingResult:
        """Check the ledger (the proof), and write updates.csv and applies.csv. Return the content of training.json.

        `total`: the number of updates that the run should have; None if it was stopped early.
        """
        config, progress = self._config, self.progress
        histories = [history_of(self._run_dir, self._before, index) for index in range(config.shards)]
        journals = [[*history, piece] for history, piece in zip(histories, self._ledger_reader.pieces)]
        rounds = RoundShape(config.steps_per_update, config.gradients_per_update, config.most_gradients_per_update)
        expected = expected_rows(
            config, self._train_examples, self._before, histories, examples_in_all=progress.examples
        )
        found = audit(
            journals,
            progress.counts,
            rounds,
            progress.scheduled_updates,
            total,
            expected,
            on_rows=self._reporter.written,
            may_lack_updates=progress.ends_with_open_updates,
        )
        self._write_csv_files(journals, rounds)
        noted = [self.problem] if self.problem else []
        servers = server_sizes(self.store.shards, progress.counts_of_shards, progress.tally.tables)
        return training_result(
            config,
            progress,
            outcome,
            proof=verdict(found.shards, [*noted, *found.problems]),
            duplicated=found.duplicated,
            keyed=self._occupancy.uses,
            parameter_servers=servers if config.chosen_mode.has_parameter_servers else (),
        )

    def _write_csv_files(self, journals: Sequence[History], rounds: RoundShape) -> None:
        """Write updates.csv and applies.csv. If the disk refuses, or a journal is damaged, this is only reported."""
        config, on_rows = self._config, self._reporter.written
        try:
            ledger_csv.write_updates(self._run_dir.updates, journals, rounds, config.ledger_window, on_rows)
            if config.chosen_mode.has_parameter_servers:  # the file describes critical sections of parameter servers
                ledger_csv.write_applies(self._run_dir.applies, journals, on_rows)
        except (JournalDamaged, Malformed, OSError) as error:  # the proof reports damage too
            log_line(DISK_REFUSES(f"the ledger can't be written as a table: {error}"))
