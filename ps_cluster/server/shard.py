"""The shard of a parameter server: its state, and how it handles pulls and pushes.

    a worker                         its shard on the parameter server, one critical section for each message
    pull(worker)              ──►    read weights, statistics and version together
                              ◄──    weights, statistics, version                     (one message, see `MessageLayout`)
    push(step, version, …)    ──►    if the ledger has the step, refuse; else apply, increment version, write the row
                              ◄──    REFUSED, APPLIED or DROPPED
    exchange(step, …, next)   ──►    push, then pull for the next step
                              ◄──    weights, statistics, version, and the outcome of the push

So the staleness of an update is exact, and a step that arrives a second time is refused. A critical section takes only
inputs that have already arrived on the parameter server, so a worker that dies can't leave a critical section half
done: TensorFlow cancels an operation that waits for inputs, but never one whose inputs have arrived.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from ps_cluster.config import RunConfig
from ps_cluster.config.lazy import graph, tf
from ps_cluster.config.staleness_methods import METHODS
from ps_cluster.runs.checkpoint_arrays import BY_SHARD, BY_WEIGHT, STATISTICS, WEIGHTS
from ps_cluster.runs.ledger import WORKER_COLUMNS, ServerColumns, WorkerColumns
from ps_cluster.server.capabilities import Capabilities
from ps_cluster.server.initial_state import InitialState
from ps_cluster.server.keyed_tables import KeyedTableShard
from ps_cluster.server.leftovers import LOCK
from ps_cluster.server.lookahead import Lookahead
from ps_cluster.server.ordering import Needed, after, now_after
from ps_cluster.server.rate_of_more_workers import RateOfMoreWorkers
from ps_cluster.server.samples import ALL_WORKERS, KeptState, SampleKey, UpdateSamples
from ps_cluster.server.shard_checkpoint import ShardCheckpoint
from ps_cluster.server.shard_ledger import ShardLedger
from ps_cluster.server.staleness.correction import Arrival
from ps_cluster.server.table_shard import NOTHING_PUSHED, PushedRows, TableShard
from ps_cluster.server.update_rules.rule import Gradient
from ps_cluster.server.version_history import VersionHistory
from ps_cluster.server.wire import MessageLayout, codec_of

# The outcomes of a push. The worker never sees WAIT, because the shard itself tries such a push again.
REFUSED, APPLIED, DROPPED, WAIT = 0, 1, 2, 3
NO_END = 2**40  # more steps or versions than a run can have
NO_STEP = -1  # instead of a step id if there is no step


def columns_by_name(columns: tf.Tensor) -> WorkerColumns:
    """Convert the worker's part of a ledger row, float64 [k], to a tuple with a field for each column, float64 []."""
    return WorkerColumns(*tf.unstack(columns, len(WORKER_COLUMNS)))


class Push(NamedTuple):
    """The result of a step, as a worker sends it to a shard."""

    step: tf.Tensor  # int64 [], the step id
    version: tf.Tensor  # int64 [], the version that was pulled
    # [n]: in the wire's dtype when it is sent, or in float32 if pushes are compressed; float32 on the parameter server.
    gradient: tf.Tensor
    fresh: tf.Tensor  # float32 [m], the step's part of the new statistics, which become keep * statistics + fresh
    columns: tf.Tensor  # float64 [len(WORKER_COLUMNS)], the worker's part of the step's row in the ledger
    rows: PushedRows = NOTHING_PUSHED  # the gradients of rows of embedding tables
    entered: tf.Tensor | None = None  # float64 [], when the push entered the critical section, in unix seconds

    @property
    def from_worker(self) -> WorkerColumns:
        """The worker's part of the step's row in the ledger: a tuple with a field for each column, float64 []."""
        return columns_by_name(self.columns)

    @property
    def worker(self) -> tf.Tensor:
        return tf.cast(self.from_worker.worker, tf.int64)

    def tensors(self) -> list[tf.Tensor]:
        """Return all tensors of the worker's message."""
        of_rows = (*self.rows.indices, *self.rows.gradients)
        return [self.step, self.version, self.gradient, self.fresh, self.columns, *of_rows]


class AnswerNumbers(NamedTuple):
    """The integers in the answer to a pull, int64 [] each; if all shards' answers are stacked, int64 [ps] each."""

    version: tf.Tensor  # the version that was pulled
    has_step: tf.Tensor  # 1 if the ledger already has the requested step, else 0
    outcome: tf.Tensor  # the outcome of the push, if the answer is to an exchange
    batches: tf.Tensor | None = None  # with `limits_batches`, the number of batches that the worker may take

    def stacked(self) -> tf.Tensor:
        """Return the numbers as one tensor, int64 [3 or 4]: the last number is missing if it is None."""
        return tf.stack([number for number in self if number is not None])


class Answer(NamedTuple):
    """The content of the answer to a pull, without rows of tables."""

    weights: tf.Tensor  # [n] in the wire's dtype; [vectors, n] if a pull returns several vectors
    statistics: tf.Tensor  # float32 [m]
    numbers: tf.Tensor  # int64 [3 or 4], the `AnswerNumbers`

    @property
    def version(self) -> tf.Tensor:
        """The version that was pulled, int64 []."""
        return self.numbers[0]


class Tick(NamedTuple):
    """The chief's report to a shard: the time since the chief's last report, and the state of the training."""

    seconds: tf.Tensor  # float64 [], the seconds that have passed
    longest_update_s: tf.Tensor  # float64 [], the longest time that an update of a healthy worker takes
    # int64 [], the number of steps handed out so far, if no step follows before the next tick; NO_END if more may
    # follow
    handed_out: tf.Tensor
    is_present: tf.Tensor  # bool [workers], which of all possible workers take part


class LedgerPart(NamedTuple):
    """The new rows and the counters of a shard's ledger, the table of accepted pushes."""

    rows: tf.Tensor  # float64 [k, columns]
    counts: tf.Tensor  # int64 [len(COUNTS)]


class ParameterShard:
    """A parameter server's shard of the weights and statistics, with its slots, version and ledger.

    A mode may have a subclass of this class. It should override only the methods listed here (hooks), because the other
    methods keep the ledger and the version exact. Each hook is called by the hook under which it is indented. The text
    on the right says when:

        execute_push                        a push that no pull follows; override it if `capabilities.waits` is True
            receive                         any push, in the critical section
                refuse_or_apply
                    refuse
                    apply_or_drop
                        drop
                        apply_push
                            change
                                apply_gradient
                                    update_statistics
                            record
        values_for, batches_for             a pull, in the critical section
        read_message                        the answer to a pull, on the worker
        tick                                time has passed
            on_tick, wake                   in the critical section, only if pushes wait
        state                               a checkpoint is written or restored
            slots
        row_of_newcomer                     a checkpoint is restored for more workers

    Attributes:
      length, statistics_length: n and m, the number of weights (without rows of tables) and of statistics.
      wire: the dtype of the weights in the shard's messages.
      capabilities: what all shards of this class can do; an instance adds what its staleness method can do.
      device: the name of the device that holds the shard.
      section: the shard's critical section.
      weights: float32 [n].
      statistics: float32 [m], the moving statistics of the network, such as those of BatchNormalization.
      version: int64 [], the number of updates applied to the weights.
      tables: the shard's rows of each group of embedding tables.
      ledger: the shard's part of the ledger.
      history: the weights and statistics of past versions.
      checkpoint: reads the state of the shard, and restores it.
      samples: the sampled updates that the shard keeps; None if updates are not sampled.
      pull_message, push_message: the layout of the answer to a pull, and of a push, without rows of tables.
    """

    capabilities = Capabilities()

    def __init__(self, device: str, start: InitialState, config: RunConfig, total_steps: int):
        self.device = device
        self._in_rounds = config.chosen_mode.averages
        self._batches_per_step = config.batches_per_step
        self.samples: UpdateSamples | None = None
        self._keep = start.keep  # becomes a constant of the graph, on the parameter server
        self.wire = tf.dtypes.as_dtype(config.wire)
        method = METHODS[config.staleness.method]
        with tf.device(device):
            self.weights = tf.Variable(start.weights)
            self.statistics = tf.Variable(start.statistics)
            self._rule = config.chosen_mode.server_rule(config, self.weights, start)
            workers = config.chosen_mode.emulated_workers(config)
            rule_settings = method.optimizer(config)
            self.version = tf.Variable(0, dtype=tf.int64)
            self.tables = [
                KeyedTableShard(values, rule_settings, start.keyed[group], self.version)
                if group in start.keyed
                else TableShard(values, rule_settings)
                for group, values in enumerate(start.tables)
            ]
            self._correction = method.correction(config.staleness, self.weights, workers, config.most_workers)
            every = method.gathered_gradients(config)
            self._gathered_gradients = every or 1
            # It exists even if each gradient changes the weights, as a resumed run with more workers may gather
            # gradients.
            self._gathered = None if every is None else tf.Variable(tf.zeros_like(self.weights), trainable=False)
            lowers_rate = config.chosen_mode.lowers_rate
            self._rate_factor = RateOfMoreWorkers(workers) if lowers_rate else None
            updates = total_steps // config.steps_per_update
            self._lookahead = Lookahead(config.lookahead, self.weights, updates)
            vectors = [self.weights, self.statistics, *self._correction.of_version]
            self.history = VersionHistory(vectors, config.chosen_mode.delay(config))
            self._refused = tf.Variable(0, dtype=tf.int64)
            self._dropped = tf.Variable(0, dtype=tf.int64)
            self.ledger = ShardLedger(config.ledger_window)
            # Without a unique name, the section would share its lock with all sections created eagerly on the device.
            self.section = tf.CriticalSection(shared_name=start.name(LOCK, "section"))
        self.length, self.statistics_length = len(start.weights), len(start.statistics)
        # A matrix with factor 0 is not trained.
        self._matrices = [one for one in start.matrices if start.factors[one.begin : one.end].any()]
        self.checkpoint = ShardCheckpoint(self)
        statistics = (tf.float32, self.statistics_length)
        self.capabilities = replace(
            self.capabilities,
            drops=self._correction.capabilities.drops,
            stops=self._correction.capabilities.stops,
            limits_batches=config.chosen_mode.takes_fewer_batches(config),
        )
        weights = self.wire, self.capabilities.vectors_given * self.length
        columns = tf.float64, len(WORKER_COLUMNS)
        self.codec = codec_of(config, self.length)
        is_sent = device.startswith("/job:ps")  # otherwise the shard is in this process
        numbers = (tf.int64, 3 + self.capabilities.limits_batches)
        self.pull_message = MessageLayout((weights, statistics, numbers), is_sent)
        self.push_message = MessageLayout((*self.codec.fields, statistics, (tf.int64, 3), columns), is_sent)

    def keep_samples(self) -> None:
        """Create the buffers for sampled updates, see `UpdateSamples`. Call it before any graph of the shard is built.

        In a mode with rounds, in which an update applies the mean gradient of several workers, updates are not sampled
        if there are embedding tables. Each worker pulls different rows for such an update, but a buffer can keep only
        the rows of one pull.
        """
        if self.tables and self._in_rounds:
            return
        state = KeptState(
            self.weights,
            self.statistics,
            {**self.slots, **self._correction.backups},
            self._correction.pull_state,
            self.tables,
        )
        given = self.capabilities.vectors_given * self.length
        self.samples = UpdateSamples(
            state, self.section, given=given, wire=self.wire, device=self.device, matrices=self._matrices
        )

    @property
    def parameters(self) -> int:
        """The number of weights that the shard holds, including those in rows of embedding tables."""
        return self.length + sum(table.size for table in self.tables)

    def tick(self, tick: Tick) -> None:
        """Count the time that has passed, and let waiting workers try again.

        This has no effect if `capabilities.waits` is False.
        """
        if self.capabilities.waits:
            self._tick(tick)

    @graph
    def _tick(self, tick: Tick) -> tf.Tensor:
        def note() -> tf.Tensor:
            with tf.control_dependencies(self.on_tick(tick)):
                return self.wake()

        with tf.device(self.device):
            return self.section.execute(note)

    def on_tick(self, tick: Tick) -> list[tf.Operation]:
        """Return the operations to run at a tick. Override this in a shard whose behaviour depends on the time.

        The shard calls it in its critical section, and only if `capabilities.waits` is True.
        """
        return []

    def wake(self) -> tf.Tensor:
        """Let all waiting workers try again. Call it in the critical section. In this class no worker waits."""
        return tf.constant(0)

    def pull(
        self,
        worker: tf.Tensor,
        needed: Needed = (),
        step: tf.Tensor | int = NO_STEP,
        indices: Sequence[tf.Tensor] = (),
    ) -> list[tf.Tensor]:
        """Return the answer to a pull for `step` (int64 []), read on the ps once everything `needed` is done.

        `read_message` and `read_rows` unpack the answer.

        Args:
          indices: int64 [u] for each group of tables, the indices or keys of the rows that the step needs from this
            shard.
        """
        request = tf.stack([worker, tf.cast(step, tf.int64)])  # one message to the ps, not two
        indices = self._sent(indices)

        def read() -> list[tf.Tensor]:
            worker, step = tf.unstack(request)
            return self._answer(worker, step, indices=indices)

        # The dependency is on the ps. If `needed` is on the ps too, no message to the worker is necessary.
        with tf.device(self.device), tf.control_dependencies(needed):
            message: list[tf.Tensor] = self.section.execute(read)
            return message

    def read_message(self, message: Sequence[tf.Tensor]) -> Answer:
        """Return the content of an answer that `pull` or `exchange` has returned."""
        return Answer(*self.pull_message.unpack(message[: len(message) - len(self.tables)]))

    def read_rows(self, message: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
        """Return the rows in an answer, [u * width] for each group of tables."""
        return message[len(message) - len(self.tables) :]

    def _sent(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Send tensors to the parameter server, so that they are there before the critical section is entered."""
        with tf.device(self.device):
            return [tf.identity(tensor) for tensor in tensors]

    def outcome(self, message: Sequence[tf.Tensor]) -> tf.Tensor:
        """Return the outcome of a push that was sent with `exchange`, int64 []: REFUSED, APPLIED or DROPPED.

        `message`: the answer that `exchange` has returned.
        """
        numbers = self.pull_message.last(message[: len(message) - len(self.tables)])
        return AnswerNumbers(*tf.unstack(numbers)).outcome

    def _answer(
        self, worker: tf.Tensor, step: tf.Tensor, outcome: tf.Tensor | int = APPLIED, indices: Sequence[tf.Tensor] = ()
    ) -> list[tf.Tensor]:
        """Return the answer to a pull that follows a push with this outcome. Call it in the critical section."""
        (weights, statistics), version = self.values_for(worker)
        with tf.control_dependencies(self._correction.on_pull(worker, weights)):
            weights = tf.reshape(tf.cast(tf.identity(weights), self.wire), [-1])
        rows = [table.read(at, self.wire) for table, at in zip(self.tables, indices, strict=True)]
        if self.samples is not None:
            update, puller = (version, tf.constant(ALL_WORKERS, tf.int64)) if self._in_rounds else (step, worker)
            key = SampleKey(update, puller, version)
            kept = self.samples.keep_given(key, weights, statistics, list(zip(indices, rows)))
            weights = after([kept], weights)
        numbers = AnswerNumbers(
            version,
            tf.cast(self.has(step), tf.int64),
            tf.cast(outcome, tf.int64),
            self.batches_for(worker) if self.capabilities.limits_batches else None,
        )
        return [*self.pull_message.pack([weights, statistics, numbers.stacked()]), *rows]

    def _outcome_alone(self, outcome: tf.Tensor) -> list[tf.Tensor]:
        """Return the answer to a push that no pull follows."""
        none = tf.zeros([], tf.int64)
        numbers = AnswerNumbers(
            none, none, tf.cast(outcome, tf.int64), none if self.capabilities.limits_batches else None
        )
        message = self.pull_message.short(numbers.stacked())
        return [*message, *(tf.zeros([0], self.wire) for _ in self.tables)]

    def would_accept(self, version: tf.Tensor) -> tf.Tensor:
        """Return whether a push computed from `version` (int64 []) would be accepted now, bool []. Takes no lock."""
        with tf.device(self.device):
            return self._correction.accepts(Arrival(tf.zeros([], tf.int64), version, self.version.read_value()))

    def batches_for(self, worker: tf.Tensor) -> tf.Tensor:
        """Return the number of batches that a worker may use for its next step, int64 [].

        The shard calls this only if `capabilities.limits_batches` is True.
        """
        return tf.constant(self._batches_per_step, tf.int64)

    def values_for(self, worker: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Return ([weights float32 [n], statistics float32 [m]], version int64 []) for a worker's pull."""
        (weights, statistics, *others), version = self.history.read(self.version.read_value())
        return [self._correction.given(worker, weights, *others), statistics], version

    def push(self, push: Push) -> tf.Tensor:
        """Send a push to the ps in one message, and apply it there. Returns int32 []: REFUSED, APPLIED or DROPPED."""
        arrived, _ = self._send_push(push, tf.constant(NO_STEP, tf.int64))
        with tf.device(self.device):
            return self.execute_push(arrived)

    def exchange(self, push: Push, following: tf.Tensor, next_indices: Sequence[tf.Tensor] = ()) -> list[tf.Tensor]:
        """Push, and return the answer to a pull for step `following` (int64 []).

        The shard handles no other message between the push and the pull. If `following` is NO_STEP, the answer holds
        only the outcome (see `outcome`). A shard in which pushes may wait does not support exchanges, because an
        exchange enters the critical section only once.

        Args:
          next_indices: the indices or keys of the rows for step `following`, as for `pull`.
        """
        assert not self.capabilities.waits, (
            "this shard lets pushes wait, but `exchange` tries a push only once: use `push` and `pull`"
        )
        arrived, following = self._send_push(push, following)
        indices = self._sent(next_indices)

        def enter() -> list[tf.Tensor]:
            outcome = self.receive(arrived)
            with tf.control_dependencies([outcome]):
                ends = tf.equal(following, NO_STEP)
                message: list[tf.Tensor] = tf.cond(
                    ends,
                    lambda: self._outcome_alone(outcome),
                    lambda: self._answer(arrived.worker, following, outcome, indices),
                )
                return message

        with tf.device(self.device):
            message: list[tf.Tensor] = self.section.execute(enter)
            return message

    def _send_push(self, push: Push, following: tf.Tensor) -> tuple[Push, tf.Tensor]:
        """Send a push to the ps in one message. Return the push and the worker's next step, both placed on the ps."""
        numbers = tf.stack([push.step, push.version, following])
        message = self.push_message.pack([*self.codec.encode(push.gradient), push.fresh, numbers, push.columns])
        sent_rows = PushedRows(self._sent(push.rows.indices), self._sent(push.rows.gradients))
        with tf.device(self.device):
            *sent, fresh, numbers, columns = self.push_message.unpack(message)
            return Push(numbers[0], numbers[1], self.codec.decode(sent), fresh, columns, sent_rows), numbers[2]

    def execute_push(self, push: Push) -> tf.Tensor:
        """Enter the critical section with a push that no pull follows, and handle the push there.

        Returns REFUSED, APPLIED or DROPPED, int32 []. If a push may have to wait, override this method, and try the
        push again for as long as `receive` returns WAIT.
        """
        return self.section.execute(lambda: self.receive(push))

    def receive(self, push: Push) -> tf.Tensor:
        """Record when a push entered the critical section, and handle the push; return the outcome.

        Call it in the critical section.
        """
        entered = tf.timestamp()
        with tf.control_dependencies([entered]):
            return self.refuse_or_apply(push._replace(entered=entered))

    def refuse_or_apply(self, push: Push) -> tf.Tensor:
        """Apply, refuse or drop a push; return the outcome. Call it in the critical section."""
        return tf.cond(self.has(push.step), self.refuse, lambda: self.apply_or_drop(push))

    def apply_or_drop(self, push: Push) -> tf.Tensor:
        """Apply a push, or drop it if the staleness method does not accept it; return the outcome."""
        if not self.capabilities.drops:
            return self.apply_push(push)
        arrival = Arrival(push.worker, push.version, self.version.read_value())
        return tf.cond(self._correction.accepts(arrival), lambda: self.apply_push(push), self.drop)

    def has(self, step: tf.Tensor) -> tf.Tensor:
        """Return whether the ledger already has a step (int64 []), bool []."""
        return self.ledger.has(step)

    def refuse(self) -> tf.Tensor:
        """Count a refused push; return REFUSED."""
        return after([self._refused.assign_add(1, read_value=False)], REFUSED)

    def drop(self) -> tf.Tensor:
        """Count a dropped push; return DROPPED."""
        return after([self._dropped.assign_add(1, read_value=False)], DROPPED)

    def apply_push(self, push: Push) -> tf.Tensor:
        """Apply a push and write its row into the ledger; return APPLIED."""
        arrival = Arrival(push.worker, push.version, self.version.read_value())
        factor = tf.ones([]) if self._rate_factor is None else self._rate_factor.factor(push.worker)
        used = [table.rows_to_update(*pushed) for table, *pushed in zip(self.tables, *push.rows, strict=True)]
        push = push._replace(rows=PushedRows([indices for indices, _ in used], [gradient for _, gradient in used]))
        change = partial(self.change, push, arrival, factor)
        if self.samples is None:
            version = change()
        else:
            key = SampleKey(push.step, push.worker, push.version)
            version = self.samples.keep_change(key, push.gradient, push.fresh, change, push.rows)
        return after([self.record(push, version, arrival.staleness, factor)], APPLIED)

    def change(self, push: Push, arrival: Arrival, factor: tf.Tensor) -> tf.Tensor:
        """Apply a push to the weights and statistics; return the new version, int64 [].

        Args:
          factor: float32 [], multiplies the learning rate.
        """
        gradient, gradient_scale = self._correction.correct(push.gradient, arrival)
        rate = tf.cast(push.from_worker.learning_rate, tf.float32) * factor
        with tf.control_dependencies(self._apply_rows(push.rows, rate, gradient_scale)):
            return self.apply_gradient(gradient, rate, push.fresh, gradient_scale)

    def apply_mean(
        self, gradient: tf.Tensor, learning_rate: tf.Tensor, fresh: tf.Tensor, rows: PushedRows = NOTHING_PUSHED
    ) -> tf.Tensor:
        """Apply the mean gradient of a round; return the new version, int64 [].

        Args:
          gradient: float32 [n], the mean of the gradients. fresh: float32 [m], the mean of `Push.fresh`.
          rows: the mean gradients of rows of embedding tables.
        """
        change = partial(self.apply_gradient, gradient, learning_rate, fresh)
        if self.samples is None:
            with tf.control_dependencies(self._apply_rows(rows, learning_rate, None)):
                return change()
        version = self.version.read_value()
        key = SampleKey(version, tf.constant(ALL_WORKERS, tf.int64), version)
        return self.samples.keep_change(key, gradient, fresh, change)

    def _apply_rows(
        self, rows: PushedRows, learning_rate: tf.Tensor, gradient_scale: tf.Tensor | None
    ) -> list[tf.Operation]:
        """Apply a push to the rows of embedding tables. Call this before `apply_gradient`, which counts the update."""
        rate, before = self._rule.used_rate(learning_rate), self.version.read_value()
        return [
            table.apply(indices, Gradient(gradient, rate, before, gradient_scale))
            for table, indices, gradient in zip(self.tables, rows.indices, rows.gradients, strict=True)
        ]

    def apply_gradient(
        self, gradient: tf.Tensor, learning_rate: tf.Tensor, fresh: tf.Tensor, gradient_scale: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Apply one update to the parameters; return the new version, int64 [].

        Args:
          gradient: float32 [n]. learning_rate: float32 []. fresh: float32 [m], as for `update_statistics`.
          gradient_scale: see `Gradient`.
        """
        learning_rate = self._rule.used_rate(learning_rate)
        before = self.version.read_value()
        weights_before = self.weights.read_value() if self._correction.needs_step else None
        # Control dependencies, not the order of these lines, decide when TensorFlow runs the operations.
        with tf.control_dependencies([gradient] if weights_before is None else [gradient, weights_before]):
            applied = self._change_weights(Gradient(gradient, learning_rate, before, gradient_scale))
        with tf.control_dependencies([applied, self.update_statistics(fresh)]):
            seen = self._correction.after_update(weights_before, learning_rate) if self._correction.needs_step else []
            version = self.version.assign_add(1)
        version = after([*seen, *self._lookahead.after_update(version)], version)
        return after(self.history.write(version), version)

    def _change_weights(self, gradient: Gradient) -> tf.Operation:
        """Apply a gradient to the weights.

        If the staleness method gathers K gradients, the weights change only with every K-th gradient, by the mean of
        the last K gradients.
        """
        slot, every = self._gathered, self._gathered_gradients
        if slot is None or every == 1:
            return self._rule.apply(gradient)
        gathered = slot.read_value() + gradient.scaled

        def change() -> tf.Operation:
            mean = Gradient(gathered / every, gradient.learning_rate, gradient.updates_before // every)
            return tf.group(self._rule.apply(mean), slot.assign(tf.zeros_like(gathered), read_value=False))

        def keep() -> tf.Operation:
            return slot.assign(gathered, read_value=False)

        return tf.cond(tf.equal((gradient.updates_before + 1) % every, 0), change, keep)

    def update_statistics(self, fresh: tf.Tensor) -> tf.Operation:
        """Set the moving statistics s to keep * s + `fresh`, where keep is the share of s that a step keeps.

        This is stable at any staleness, since `fresh` does not depend on the statistics that the step pulled. If a
        worker sent the difference between its new and its pulled statistics, and the shard added this difference to
        newer statistics, the statistics could diverge.
        """
        return self.statistics.assign(self._keep * self.statistics.read_value() + fresh, read_value=False)

    def record(
        self, push: Push, version: tf.Tensor, stale: tf.Tensor, rate_factor: tf.Tensor | float = 1.0
    ) -> tf.Operation:
        """Write the row of an accepted push into the ledger.

        Args:
          version: int64 [], the first version that contains the push.
          stale: int64 [], the staleness of the push.
          rate_factor: float32 [], see `RateOfMoreWorkers`.
        """
        assert push.entered is not None, "`receive` records the time"
        columns = ServerColumns(version, stale, rate_factor, push.entered, now_after(version))
        known = tf.stack([tf.cast(value, tf.float64) for value in (push.step, *columns)])
        return self.ledger.write(tf.concat([known, push.columns], axis=0)[None])

    @graph
    def read_ledger(self, first: tf.Tensor) -> LedgerPart:
        """Return the ledger's rows from row number `first` on, and its counters, read at the same moment."""

        def read() -> LedgerPart:
            return LedgerPart(self.ledger.read(first), self.counts())

        with tf.device(self.device):
            part: LedgerPart = self.section.execute(read)
            return part

    def counts(self) -> tf.Tensor:
        """Return the values of `counters`, int64 [len(COUNTS)]."""
        return tf.stack([count.read_value() for count in self.counters])

    @property
    def counters(self) -> tuple[tf.Variable, ...]:
        """The counters of the ledger, in the order of COUNTS."""
        return self.version, self.ledger.accepted, self._refused, self._dropped

    @property
    def slots(self) -> dict[str, tf.Variable]:
        """The slots of the update rule, the staleness method and `Lookahead`: name → float32 [n], [workers, n] or [].

        Slots that a subclass adds here become a part of `state` and of every checkpoint. The evaluator computes the
        slots of sampled updates again (evaluation/recomputation.py), and compares the results. For this it calls the
        method `equation` of the mode (`Mode.equation`), of the optimizer rule and of the staleness method.
        """
        gathered = {} if self._gathered is None else {"gathered": self._gathered}
        return self._rule.slots | self._correction.slots | gathered | self._lookahead.slots

    @property
    def state(self) -> dict[str, tf.Variable]:
        """The variables that a resumed run needs, by name: weights, statistics, slots, and what a subclass adds.

        The name of a variable determines its form in a checkpoint (runs/checkpoint_arrays.py). A subclass may add
        vectors whose names do not begin with the prefix of a form. (A single number needs the shape [1].) A checkpoint
        joins such vectors of all shards end to end. If the length of a joined vector depends on the number of parameter
        servers, a run can't be resumed with a different number of servers. Slots do not have this restriction.
        """
        slots = {
            (BY_WEIGHT if variable.shape.rank else BY_SHARD).array_name(name): variable
            for name, variable in self.slots.items()
        }
        if self._rate_factor is not None:
            slots |= {BY_SHARD.array_name(name): variable for name, variable in self._rate_factor.slots.items()}
        return {WEIGHTS: self.weights, STATISTICS: self.statistics, **slots}

    def row_of_newcomer(self, state: dict[str, np.ndarray]) -> np.ndarray | None:
        """Return the row, float32 [n], that a new worker gets in slots [workers, n].

        None, the default, stands for the slot's first values. A worker is new if the restored snapshot does not contain
        it. `state`: the arrays of the snapshot.
        """
        return None
