"""The parts that all trainers share around their loop: start or resume, progress rows, checkpoints, and the end."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import tensorflow as tf

from ps_cluster.config import RunConfig
from ps_cluster.config.networks import NETWORKS
from ps_cluster.config.objectives import OBJECTIVES, ExampleSpec
from ps_cluster.config.optimizer_rules import RULES
from ps_cluster.config.staleness_methods import METHODS
from ps_cluster.data.packed import PackedDataset
from ps_cluster.data.recomputed_batches import RecomputedBatches
from ps_cluster.errors import UserError
from ps_cluster.files.json_files import last_row
from ps_cluster.files.values import Malformed
from ps_cluster.models import build as networks
from ps_cluster.models import flat
from ps_cluster.models.flat import FlatNetwork
from ps_cluster.runs import checkpoints
from ps_cluster.runs import proof as tables
from ps_cluster.runs.journal import Journal, JournalDamaged, Piece, history_of
from ps_cluster.runs.ledger import COUNTS
from ps_cluster.runs.logs import DISK_REFUSES
from ps_cluster.runs.proof import ExpectedRows, RoundShape, audit
from ps_cluster.runs.result_rows import Ending, ProgressRow, Proof, ServerSize, TrainingResult
from ps_cluster.runs.run_dir import LIFE, say
from ps_cluster.runs.times import TrainingTimes
from ps_cluster.runs.update_samples import forget_samples
from ps_cluster.server.capabilities import Capabilities
from ps_cluster.server.initial_state import InitialState
from ps_cluster.server.leftovers import new_session
from ps_cluster.server.store import ParameterStore
from ps_cluster.server.update_rules import Matrix
from ps_cluster.system.machine import FreeMemory, room
from ps_cluster.training.agreement import check_journals, check_network, facts_of_data, newest_checkpoint
from ps_cluster.training.job import TrainingJob
from ps_cluster.training.reporter import Reporter
from ps_cluster.training.run_progress import LedgerReader, RunProgress
from ps_cluster.training.sampling import UpdateSampler
from ps_cluster.training.saver import Saver, begun_with, check_disk
from ps_cluster.training.step import TrainStep, expected_rates, text_of_rules
from ps_cluster.training.worker import Compute, Dispatches

LOCAL_DEVICE = "/device:CPU:0"
NO_LOSS_AFTER = 100  # steps; a training that has no finite loss in any of them is stopped


def build(
    config: RunConfig, dataset: PackedDataset, devices: Sequence[str], own_device: str, session: str
) -> tuple[ParameterStore, Compute]:
    """Return the store, with one slice on each of `devices`, and the function that computes a worker's step.

    Args:
      session: the leader's, by which all is named that it makes on servers (server/leftovers.py).
    """
    network, start = make_network(config, dataset, own_device)
    start = replace(start, session=session)
    store = make_store(config, dataset, network, devices, start.split(len(devices)))
    step = TrainStep(config, network, dataset.spec, train_examples=dataset.train_examples)
    return store, config.mode_kind.worker_step(step, config, start, network.keep)


def make_network(config: RunConfig, dataset: PackedDataset, own_device: str) -> tuple[flat.FlatNetwork, InitialState]:
    """Return the network, and the initial values of its flat vectors."""
    with tf.device(own_device):
        model = networks.build(config.model, dataset.spec, seed=config.training.seed, examples=first_examples(dataset))
        for line in networks.notes(model, config):
            say(line)
        networks.check_sizes(model, config)
        network = flat.FlatNetwork(model)
        if config.model.name not in NETWORKS.own and network.has_moving_statistics:
            network.trace(dataset.spec)
        if warning := check(config, network, dataset.spec, room() if os.environ.get(LIFE) else None):
            say(warning)
        weights, statistics = flat.flatten(model.trainable_variables), flat.flatten(flat.statistics_of(model))
    factors = network.weights.factors((rule.match, rule.factor) for rule in config.optimizer.learning_rate_factors)
    matrices = tuple(Matrix(*place) for place in network.weights.matrices(getattr(config.optimizer, "matrices", ())))
    # Each batch of a step keeps `keep` of the statistics that the batch before it left.
    return network, InitialState(weights, factors, statistics, network.keep**config.batches_per_step, matrices)


def make_store(
    config: RunConfig,
    dataset: PackedDataset,
    network: flat.FlatNetwork,
    devices: Sequence[str],
    parts: Sequence[InitialState],
    positions: Sequence[np.ndarray] | None = None,
) -> ParameterStore:
    """Return the store of a network with these initial values, a slice on each of `devices`.

    Args:
      positions: see `ParameterStore`.
    """
    return ParameterStore(
        devices, parts, config=config, total_steps=config.total_steps(dataset.train_examples),
        kind=config.mode_kind.shard, positions=positions,
        layout=[*network.weights.lines, *network.statistics.lines],
    )  # fmt: skip


def first_examples(dataset: PackedDataset) -> dict[str, np.ndarray]:
    """Return the inputs of the first training examples, from which initial weights may be computed."""
    return {name: np.asarray(rows[: networks.EXAMPLES]) for name, rows in dataset.inputs("train").items()}


class Build(Protocol):
    """Makes the store of a training, and what a worker computes. The module's `build` is one."""

    def __call__(
        self, config: RunConfig, dataset: PackedDataset, devices: Sequence[str], own_device: str, session: str
    ) -> tuple[ParameterStore, Compute]: ...


class SessionStart:
    """A training in one process, until its store is built: call `begin`, then connect, then `build` the session.

    Attributes:
      progress: what is scheduled and applied; so far, what the checkpoint says.
      leads: whether this process writes into the run directory; where several processes train, only one does.
      resumed: the checkpoint that training goes on from; None where it begins.
      reporter: writes the rows of progress.
    """

    def __init__(
        self,
        job: TrainingJob,
        *,
        leads: bool = True,
        build: Build = build,
    ):
        """Create the start of a session.

        Args:
          build: makes the store, and what a worker computes.
        """
        self.config, self.run_dir, self.dataset = job.config, job.run_dir, job.dataset
        metric = OBJECTIVES[self.dataset.spec.objective].field
        self.progress = RunProgress(self.config, self.dataset.train_examples, metric=metric)
        self.leads = leads
        self.term = job.leading.term  # of the leader's claim (runs/messages.py). It is part of the names of its files.
        self.reporter = Reporter(self.config, self.run_dir, self.progress)
        self.resumed: checkpoints.Checkpoint | None = None
        self._build = build

    def begin(self, *, resume: bool) -> None:
        """Load the checkpoint to resume from, if any, and restart the clock. Call it before connecting.

        Raises:
          UserError: there is no checkpoint to resume from, or it is of a run with other settings.
        """
        checkpoint = None
        if resume:
            checkpoint = newest_checkpoint(self.config, self.run_dir, self.dataset, say)
            if self.leads:
                check_journals(checkpoint, self.run_dir, self.config.shards)
        elif self.leads:
            forget_samples(self.run_dir)
            if aside := self.run_dir.set_aside():
                say(f"training begins anew: states and journals of before are in {aside}")
        self.go_on_from(checkpoint)
        if self.leads:
            checkpoints.clear_ended(self.run_dir.checkpoints)
            self.reporter.row("connecting")

    def go_on_from(self, checkpoint: checkpoints.Checkpoint | None) -> None:
        """Go on from a checkpoint, or begin, and restart the clock. Call it before `build`."""
        if checkpoint is not None:
            before, now = len(checkpoint.arrays["counts"]), self.config.shards
            if now != before:
                say(f"parameter servers: {now} in place of {before}, from step {checkpoint.step:,} on")
            checkpoint = checkpoints.resliced(checkpoint, now)
            assert checkpoint.meta.progress is not None, "it has been checked (training/agreement.py)"
            self.progress.resume(checkpoint.arrays, checkpoint.meta.progress)
        self.resumed = checkpoint
        self._restart_clock()

    def _restart_clock(self) -> None:
        """Continue the times of the previous leader, which may have come further than the resumed checkpoint."""
        stands = self.resumed and self.resumed.meta.times or TrainingTimes()
        last = last_row(self.run_dir.progress, ProgressRow) if self.leads else None
        if last is None:
            self.progress.clock.restart(stands, stands.last_update)
            return
        since = last.monotonic if last.life is not None and last.life == os.environ.get(LIFE) else None
        self.progress.clock.restart(last.times, stands.last_update, since=since)

    def build(self, devices: Sequence[str], own_device: str) -> Session:
        """Build the store and a worker's step (see the module's `build`), and restore a resumed checkpoint.

        Raises:
          UserError: the checkpoint is of another model.
        """
        if self.leads:
            self.reporter.row("building")
        leaders = self.resumed.meta.leaders if self.resumed else []
        session = new_session(self.term, leaders[0].term if leaders else self.term)
        store, compute = self._build(self.config, self.dataset, devices, own_device, session)
        if self.leads and self.resumed is None:  # a run that goes on has its states, and one more is enough for it
            check_disk(self.config, self.run_dir, store.state_bytes)
        if self.resumed is not None:
            check_network(self.resumed, store.layout)
            store.restore({name: a for name, a in self.resumed.arrays.items() if name != "waiting"})
        return Session(self, store, compute)


class Session:
    """A training in one process. Call `start`, then `keep_up` in the trainer's loop, then `end`.

    Attributes:
      store, compute: as `build` has made them. graphs: of the dispatches that use them.
      progress: what is scheduled and applied, as of the last look at the ledger.
      leads: as of `SessionStart`.
    """

    def __init__(self, start: SessionStart, store: ParameterStore, compute: Compute):
        """Open the journals, and remove the states that training gives up by going on from an earlier one."""
        self.store = store
        self.compute = compute
        mode, config = start.config.mode_kind, start.config
        self.graphs = Dispatches(lambda repeats: mode.dispatch(store, compute, config, repeats=repeats))
        self.progress = start.progress
        self.leads = start.leads
        self._term = start.term
        self._config = start.config
        self._run_dir = start.run_dir
        self._train_examples = start.dataset.train_examples
        self._total_steps = start.config.total_steps(self._train_examples)
        self._reporter = start.reporter
        # What the leaders before did of the work that this one goes on with.
        self._before = start.resumed.meta.leaders if start.resumed else []
        if self.leads and start.resumed:
            for directory in self._run_dir.states:
                checkpoints.remove_given_up(directory, start.resumed, self._term)
        self._sampler = UpdateSampler(self._config, self._run_dir, store, self.progress, self._term)
        on_rows = self._sampler.look if self.leads else lambda rows: None
        self._books = LedgerReader(store, self.progress, self._open_journals() if self.leads else [], on_rows=on_rows)
        self._saver = Saver(
            self._config, self._run_dir, start.dataset.kind, self._books, self.progress,
            same={"data": facts_of_data(start.dataset), "network": store.layout},
            term=self._term, before=self._before, rules=text_of_rules(self._config, self._total_steps),
            saving=self._reporter.saving,
        )  # fmt: skip
        self.note_problem(next((leader.problem for leader in self._before if leader.problem), None))

    def _open_journals(self) -> list[Journal]:
        self._run_dir.journals.mkdir(exist_ok=True)
        histories = [history_of(self._run_dir, self._before, index) for index in range(self._config.shards)]
        return [
            Journal(self._run_dir.journal(index, self._term), history[-1].checksum if history else 0)
            for index, history in enumerate(histories)
        ]

    def start(self) -> None:
        """Start the clock, just before the first step is scheduled."""
        if self.leads:
            self._saver.save_first()
        self.progress.clock.start()
        self._reporter.start()
        self._books.look()  # even if a resumed run has nothing left to do, the counts must be known
        if self.leads:
            self._sampler.start()

    def note_problem(self, problem: str | None) -> None:
        """Let the proof fail by a line; the first one counts. None: there is nothing wrong."""
        self._saver.problem = self._saver.problem or problem or ""

    @property
    def broken(self) -> Ending | None:
        """The outcome of a training that learns nothing more, so that it is stopped; None while it may learn."""
        return self._broken(least_steps=NO_LOSS_AFTER)

    def _broken(self, least_steps: int) -> Ending | None:
        if self.progress.has_no_loss(least_steps):  # whose weights may be NaN as well: the loss was so first
            return "nan_loss"
        return "diverged" if self._saver.diverged else None

    @property
    def seconds_to_checkpoint(self) -> float:
        """The seconds until a checkpoint of whole epochs is due, at the present speed; infinite where none is known."""
        return self._saver.seconds_to_checkpoint

    @property
    def rests(self) -> bool:
        """True while nothing more is to be handed out, for a snapshot of all slices at the same steps."""
        return self._saver.rests

    def keep_up(self, phase: str) -> None:
        """Read the ledger, and write what is due: a row with this `phase`, a checkpoint or a snapshot."""
        self._books.look()
        if self.leads:
            self._saver.save_when_due()
            self._reporter.save_seconds = self._saver.last_seconds
            self._reporter.row_when_due(phase)

    def end(self, *, stopped: bool, goes_on: bool = False) -> Ending:
        """Write the last checkpoint, the ledger's tables, the result, and the mark that training has ended.

        Returns how it has ended, as the mark says.

        Args:
          stopped: training was stopped early; unless it is broken, every update should be there otherwise.
          goes_on: another leader will go on with what is left.
        """
        self._saver.save_last()
        outcome: Ending = "completed" if self.progress.completed else "stopped"
        if broken := self._broken(least_steps=1):
            outcome, stopped = broken, stopped or not self.progress.completed
            say(f"the training ends as {broken} after {self.progress.applied:,} updates")
        result = self._result(None if stopped else self.progress.total)
        self._reporter.end(result.model_copy(update={"outcome": outcome}))
        goes_on = goes_on and outcome == "stopped"
        checkpoints.mark_ended(
            self._run_dir.checkpoints,
            last_step=self.progress.applied,
            outcome=outcome,
            goes_on=goes_on,
            term=self._term,
        )
        return outcome

    def _result(self, total: int | None) -> TrainingResult:
        """Return the content of training.json; write updates.csv and applies.csv. `total`: as for `audit`."""
        config, own = self._config, self._books.pieces
        before = [history_of(self._run_dir, self._before, index) for index in range(config.shards)]
        journals = [[*history, piece] for history, piece in zip(before, own)]
        expected = ExpectedRows(
            examples=config.examples_per_step,
            examples_unit=config.training.batch_size_per_worker if config.mode_kind.takes_fewer_batches(config) else 0,
            most_staleness=config.mode_kind.most_staleness(config),
            rates=expected_rates(config, self._total_steps),
            ids_checksums=RecomputedBatches(config, self._train_examples).checksums,
            examples_in_all=self.progress.examples,
            highest_rate=config.optimizer.learning_rate,
            holds_from=[self._rows_by_other_rules(history) for history in before],
            begun_with=begun_with(config, self._before) if config.mode_kind.lowers_rate else config.most_workers,
        )
        rounds = RoundShape(config.steps_per_update, config.gradients_per_update, config.most_gradients_per_update)
        on_rows = self._reporter.written
        scheduled, leaves = self.progress.scheduled_updates, self.progress.leaves
        proof = audit(journals, self.progress.counts, rounds, scheduled, total, expected, on_rows, leaves=leaves)
        if self._saver.problem:
            proof |= {"holds": False, "problems": [self._saver.problem, *proof["problems"]]}
        servers = [
            ServerSize(
                index=index,
                parameters=part.length,
                pushed_bytes=pushes * part.push_bytes,
                pulled_bytes=pushes * part.pull_bytes,
            )  # fmt: skip
            for index, (part, pushes) in enumerate(zip(self.store.slices, self._pushes, strict=True))
        ]
        try:
            tables.write_updates(self._run_dir.updates, journals, rounds, config.ledger_window, on_rows)
            if config.mode_kind.has_parameter_servers:  # without them each process applies its own updates
                tables.write_applies(self._run_dir.applies, journals, on_rows)
        except (JournalDamaged, Malformed, OSError) as error:  # the proof reports damage too
            say(DISK_REFUSES(f"the ledger can't be written as a table: {error}"))
        result = self.progress.result()
        updates = result.updates.model_copy(update={"duplicated": proof.pop("duplicated")})
        more = {"updates": updates, "proof": Proof.model_validate(proof)}
        return result.model_copy(
            update=more | {"parameter_servers": servers if config.mode_kind.has_parameter_servers else []}
        )

    @property
    def _pushes(self) -> list[int]:
        """The pushes that each slice has got, and so about the pulls from it."""
        pushed = [COUNTS.index(name) for name in ("accepted", "refused", "dropped")]
        return [int(count) for count in self.progress.counts[:, pushed].sum(axis=1)]

    def _rows_by_other_rules(self, history: Sequence[Piece]) -> int:
        """Return how many rows there are up to the last one of a leader with other settings of rate or bound."""
        own, rows, other = text_of_rules(self._config, self._total_steps), 0, 0
        for leader, piece in zip(self._before, history, strict=True):
            rows += piece.rows
            other = other if leader.rules == own else rows
        return other


# Estimate the memory that training takes with a network that nobody has measured, before the training starts.
#
# The launcher has an estimate for networks that are measured (launch/topology.py): it can't build one. This one comes from
# the network itself, in the process that has built it.

# Copies of all weights in float32 that a task holds at its peak: docs/results.md, "What breaks first".
# Those of a worker include what is under way to and from it in the parameter servers.
WORKER_COPIES, SERVER_COPIES, LEADER_COPIES, EVALUATOR_COPIES = 6, 8, 9, 4
# The package's networks make a worker grow by 0.35 to 1.2 times the floats of a forward pass; those of some 100 MB and
# more by at least 0.6. What would not fit even so is refused.
SURE_SHARE = 0.7
# Operations whose result is no new memory.
_VIEWS = frozenset({"Const", "Identity", "IdentityN", "Placeholder", "Reshape", "Split", "SplitV", "Squeeze"})
# TensorFlow can't send a larger tensor: "Cannot encode a Tensor that exceeds the 2GB protobuf limit".
MOST_SENT_BYTES = 2**31 - 2**20


def check(config: RunConfig, network: FlatNetwork, spec: ExampleSpec, room: FreeMemory | None) -> str | None:
    """Return a line for the user where training may take more memory than there is, else None.

    Args:
      room: for all tasks together; None if they are on several machines, of which this process knows nothing.

    Raises:
      UserError: it surely takes more than there is, or a slice is too large to be sent.
    """
    _check_slices(config, network)
    if room is None or NETWORKS[config.model.name].worker_mb is not None:
        return None  # the launcher has said it
    activations = activation_bytes(network, spec, config.training.batch_size_per_worker)
    needs = needed_bytes(config, network.weights.length, activations)
    if needs <= room.memory_bytes:
        return None
    line = (
        f"model.name: got '{config.model.name}': training it takes about {needs / 1e9:.1f} GB more, and {room}: fewer "
        "cluster.workers or a smaller training.batch_size_per_worker take less"
    )
    if SURE_SHARE * needs > room.memory_bytes:
        raise UserError(line)
    return f"memory: {line}; the system may end processes of the run"


def needed_bytes(config: RunConfig, weights: int, activations: int) -> int:
    """Return what all tasks together will take beside what they take without a network.

    Args:
      weights: how many numbers the network has.
      activations: bytes of all floats of a forward pass of a batch.
    """
    whole = 1 if config.mode_kind.shares_steps else config.most_workers  # networks that are computed at once
    copies = (WORKER_COPIES + kept_by_worker(config)) * whole + LEADER_COPIES
    if config.mode_kind.has_parameter_servers or config.mode_kind.shares_steps:
        copies += SERVER_COPIES  # all slices together hold the weights once
    if config.cluster.evaluator:
        copies += EVALUATOR_COPIES
    return (copies + kept_for_workers(config)) * 4 * weights + whole * activations


def kept_for_workers(config: RunConfig) -> int:
    """Return how many vectors of all weights the slices keep for their workers: of mode and method, and old versions."""
    kind, method, delay = *_kinds(config), config.mode_kind.delay(config)
    of_mode = (kind.vectors_per_worker + kind.slots_per_worker) * config.training_workers
    of_method = (method.vectors_per_worker + method.slots_per_worker) * config.most_workers
    return of_mode + of_method + (delay + 1 if delay > 0 else 0)


def kept_by_worker(config: RunConfig) -> int:
    """Return how many vectors of all weights a worker keeps from one exchange to the next, beside the weights.

    Where pushes lose values, what the ones before have left out, and what the one under way would. With local steps also its
    optimizer's slots; all that is kept is there twice more while it is written to files. Then there is what the mode keeps
    (`Mode.worker_vectors`). A new leader frees what an earlier one left in a worker before it makes its own.
    """
    left_out = under_way = int(config.loses_of_pushes)
    if not config.mode_kind.promise.takes_local_steps:
        return left_out + under_way
    in_files = left_out + len(RULES[config.optimizer.rule].update.slot_names)
    return 3 * in_files + under_way + config.mode_kind.worker_vectors(config)


def _kinds(config: RunConfig) -> tuple[Capabilities, Capabilities]:
    """Return the capabilities of the mode's shards, and those of the staleness method."""
    return config.mode_kind.shard.capabilities, METHODS[config.staleness.method].correction.capabilities


def activation_bytes(network: FlatNetwork, spec: ExampleSpec, batch_size: int) -> int:
    """Return the size of all floats that a forward pass in training mode computes, as far as their shapes are known."""
    outputs = [
        output
        for operation in network.trace(spec, batch_size).graph.get_operations()
        if operation.type not in _VIEWS
        for output in operation.outputs
    ]
    return sum(x.dtype.size * (x.shape.num_elements() or 0) for x in outputs if x.dtype.is_floating)


def _check_slices(config: RunConfig, network: FlatNetwork) -> None:
    rows = config.most_workers if any(kind.slots_per_worker for kind in _kinds(config)) else 1
    largest = -(-network.weights.length // config.shards) * 4 * rows  # snapshots are sent in float32
    if config.mode_kind.has_parameter_servers and largest > MOST_SENT_BYTES:
        servers = -(-largest * config.shards // MOST_SENT_BYTES)
        raise UserError(
            f"cluster.parameter_servers: got {config.shards}: the network has {network.weights.length:,} weights"
            f"{f', kept for each of {rows} workers' * (rows > 1)}, and a parameter server can send at most "
            f"{MOST_SENT_BYTES / 1e9:.1f} GB at once: take at least {servers}"
        )
