"""The proof holds for what the shards of each mode really write, and fails for every change of it."""

import copy
import json
import math
import re

import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.config import build_config
from ps_cluster.data.recomputed_batches import RecomputedBatches
from ps_cluster.errors import UserError
from ps_cluster.runs.leaders import LeaderStart
from ps_cluster.runs.ledger import COUNTS, WORKER_COLUMNS
from ps_cluster.runs.proof import ExpectedRows, RoundShape, ShardAudit, audit
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.runs.step_set import StepSet
from ps_cluster.server.shard import Push
from ps_cluster.server.store import StepPush
from ps_cluster.system.stop_signals import Drain
from ps_cluster.training.all_reduce import different_replica, train_until_end
from ps_cluster.training.all_reduce_graph import RoundEnd
from ps_cluster.training.job import TrainingJob
from ps_cluster.training.learning_rate import expected_rates
from ps_cluster.training.modes.sync import ReplicaShard
from ps_cluster.training.round_watch import RoundWatch
from ps_cluster.training.session import SessionStart
from tests.helpers.ledgers import rows_of, write_journal
from tests.helpers.left_by_runs import pack_small_images
from tests.helpers.stores import eagerly, make_store, pull, row
from tests.helpers.waiting import admit, identity

pytestmark = pytest.mark.slow

WORKERS, UPDATES = 2, 6
KINDS = [("async", 2), ("bounded", 1), ("sync-ps", 1), ("elastic", 2), ("diloco", 2), ("sync", 1)]
OF_MODE = {"diloco": {"mode.local_steps": 5, "mode.fragments": True}}


class Trained:
    """The journals and counts of a training of two workers whose steps take turns, all pulled before one is pushed."""

    def __init__(self, mode, shards):
        values = OF_MODE.get(mode, {}) | {
            "mode.name": mode, "cluster.workers": WORKERS, "model.name": "tutorial_cnn", "training.steps": UPDATES,
            "optimizer.rule": "sgd", "optimizer.learning_rate": 0.1, "schedule.kind": "triangle",
        } | ({"cluster.parameter_servers": shards} if mode != "sync" else {})  # fmt: skip
        self.config = build_config(overrides=values)
        self.total = self.config.total_steps(50_000)
        self.rates = expected_rates(self.config, self.total)
        self.batches = RecomputedBatches(self.config, 50_000)
        store = make_store(shards, kind=self.config.chosen_mode.shard, values=values, steps=UPDATES)
        self._write_sync(store) if mode == "sync" else self._push(store, mode)
        ledgers = store.read_ledgers([0] * shards)
        self.rows, self.counts = [rows.copy() for rows in ledgers.rows], ledgers.counts
        self.scheduled = StepSet(UPDATES)

    def _row(self, step, worker, examples=None):
        examples = examples or self.config.examples_per_step
        values = row(float(self.rates(np.array([step]))[0]), worker).numpy()
        values[WORKER_COLUMNS.index("examples")] = examples
        checksum = self.batches.checksums(rows_of([step], worker=worker, examples=examples))[0]
        values[WORKER_COLUMNS.index("ids_checksum")] = float(checksum)
        return tf.constant(values)

    def _push(self, store, mode):
        for first in range(0, self.total, WORKERS):
            steps = [(worker, first + worker) for worker in range(WORKERS)]
            if mode == "bounded":
                for worker, _ in steps:
                    admit(store, worker)
            pulled = [pull(store, worker) for worker, _ in steps]
            for (worker, step), had in zip(steps, pulled):
                if mode == "diloco":
                    self._push_fragments(store, step, worker, had)
                    continue
                weights = had.weights[0] if mode == "elastic" else had.weights
                store.push(StepPush(identity(step), had.versions, weights, had.statistics, self._row(step, worker)))

    def _push_fragments(self, store, step, worker, had):
        """Push to shard 1 after two of the five batches, and to shard 0 after all."""
        for index, batches in ((1, 2), (0, 5)):
            shard, examples = store.shards[index], batches * self.config.training.batch_size_per_worker
            columns = self._row(step, worker, examples)
            moved, fresh = tf.zeros([shard.length]), tf.zeros([shard.statistics_length])
            shard.push(Push(identity(step), had.versions[index], moved, fresh, columns))

    def _write_sync(self, store):
        (replica,) = store.shards
        for update in range(UPDATES):
            version = replica.apply_gradient(tf.zeros([replica.length]), tf.constant(0.1), tf.zeros([3]))
            own = [float(version), 0.0, 1.0, 1.0, 2.0]
            rows = [np.concatenate([own, self._row(WORKERS * update + worker, worker)]) for worker in range(WORKERS)]
            replica.write_rows(tf.constant([rows]))

    def proof(self, folder):
        journals = [write_journal(folder / f"shard-{index}", rows) for index, rows in enumerate(self.rows)]
        config, most = self.config, self.config.chosen_mode.most_staleness(self.config)
        expected = ExpectedRows(config.examples_of_rows, most, self.rates, self.batches.checksums)
        rounds = RoundShape(config.steps_per_update, config.gradients_per_update, config.most_gradients_per_update)
        return audit(journals, self.counts, rounds, self.scheduled, UPDATES, expected)

    def put(self, index, place, column, value):
        self.rows[index][column][place] = value

    def count(self, index, name, more):
        self.counts = self.counts.copy()
        self.counts[index, COUNTS.index(name)] += more

    def without_a_row(self, index):
        self.rows[index] = np.delete(self.rows[index], 2)

    def with_a_row_twice(self, index):
        self.rows[index] = np.insert(self.rows[index], 3, self.rows[index][2])

    def with_rows_swapped(self, index):
        self.rows[index][[1, 4]] = self.rows[index][[4, 1]]

    @property
    def copy(self):
        """The same training, with rows of its own to change."""
        other = copy.copy(self)
        other.rows = [rows.copy() for rows in self.rows]
        return other


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: f"{kind[0]}, {kind[1]} ps")
def once(request):
    with eagerly():
        return Trained(*request.param)


@pytest.fixture
def trained(once):
    return once.copy


def test_what_the_shards_write_is_proved(trained, tmp_path):
    proof = trained.proof(tmp_path)
    assert not proof.problems, proof.problems
    assert [shard.rows for shard in proof.shards] == [trained.total] * len(trained.rows)


MUTANTS = {
    "a row is missing": (Trained.without_a_row, "rows"),
    "a row is there twice": (Trained.with_a_row_twice, "already had a row"),
    "rows are swapped": (Trained.with_rows_swapped, "version"),
    "a step that nobody handed out": (lambda run, at: run.put(at, -1, "step", 777), "step 777|steps that were never"),
    "staleness below 0": (lambda run, at: run.put(at, 2, "staleness", -1), "impossible value -1 in column 'staleness'"),
    "staleness of the version": (
        lambda run, at: run.put(at, 2, "staleness", run.rows[at]["version"][2]),
        "has staleness .* but its update produced version",
    ),
    "another learning rate": (
        lambda run, at: run.put(at, 2, "learning_rate", 0.0999),
        r"has learning_rate 0.0999, but the schedule sets 0\.0*[1-9]\d* for this step",
    ),
    "another number of examples": (
        lambda run, at: run.put(at, 2, "examples", 7),
        "has examples 7, but it must be",
    ),
    "other examples": (
        lambda run, at: run.put(at, 2, "ids_checksum", 4711),
        r"has ids_checksum 4711, but it must be \d+: the step trained on other examples",
    ),
    "another version": (lambda run, at: run.put(at, 2, "version", 5), "version is 5, but has to be"),
    "a version too many": (
        lambda run, at: run.count(at, "version", 1),
        "its version is 7, but its ledger has the rows of 6 updates",
    ),
    "a gradient that has no row": (lambda run, at: run.count(at, "accepted", 1), "gradients were accepted"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_every_change_of_it_is_told(trained, tmp_path, name):
    change, says = MUTANTS[name]
    at = len(trained.rows) - 1
    change(trained, at)
    proof = trained.proof(tmp_path)
    assert proof.problems
    assert any(re.search(says, problem) for problem in proof.problems), proof.problems


@eagerly()
def test_an_update_beyond_the_bound_is_told(tmp_path):
    run = Trained("bounded", 1)
    run.put(0, -1, "staleness", 4)
    (problem,) = run.proof(tmp_path).problems
    assert "has staleness 4, but the staleness bound is 3" in problem
    before = ShardAudit(RoundShape(1, 1, 1), ExpectedRows(most_staleness=3, first_rows=[len(run.rows[0])]))
    before.read(run.rows[0])
    assert not before.wrong_values, "rows of a leader with another bound"


@eagerly()
def test_a_round_in_the_place_of_one_that_was_handed_out_is_told(tmp_path):
    run = Trained("sync-ps", 1)
    run.scheduled = StepSet(3, np.array([4, 5, 6]))  # as many as there are, but round 3 is not among them
    (problem,) = run.proof(tmp_path).problems
    assert problem == "shard 0: 1 rows belong to steps that were never handed out; the first is step 6"


@eagerly()
def test_rows_of_a_leader_with_other_settings_are_not_held_against_the_rates_of_now(tmp_path):
    run = Trained("async", 1)
    run.rows[0]["learning_rate"][:3] = 0.7
    journals = [write_journal(tmp_path / "shard", run.rows[0])]
    for first_rows, holds in ((3, True), (2, False)):
        expected = ExpectedRows(rates=run.rates, first_rows=[first_rows])
        proof = audit(journals, run.counts, RoundShape(1, 1, 1), run.scheduled, UPDATES, expected)
        assert (not proof.problems) is holds, proof.problems


def test_the_last_rates_of_a_cosine_may_be_those_of_a_processor_that_rounds_otherwise():
    values = {"schedule.kind": "cosine", "schedule.end_factor": 0.0, "training.steps": 10_000}
    config = build_config(overrides=values | {"model.name": "tutorial_cnn", "optimizer.learning_rate": 0.1})
    rates, steps = expected_rates(config, 10_000), np.arange(9_900, 10_000)
    rows = rows_of(steps, version=steps + 1)
    one_unit = 0.1 * 2.0**-25  # of the last place of a cosine close to -1, halved as the schedule halves it
    for wrong, names in ((one_unit, []), (2e-5 * 0.1, ["learning_rate"])):
        rows["learning_rate"] = rates(steps) + wrong
        audit_of_shard = ShardAudit(RoundShape(1, 1, 1), ExpectedRows(rates=rates, highest_rate=0.1))
        audit_of_shard.read(rows)
        assert list(audit_of_shard.wrong_values) == names


def test_a_replica_with_other_weights_is_named():
    assert different_replica([5.0, 5.0, 5.0], 8) is None
    told = "after update 7 the weights of worker-2 differ from those of worker-0"
    assert different_replica([5.0, 5.0, 6.0], 8) == told
    assert "of worker-0 differ from those of worker-1" in different_replica([6.0, 5.0, 5.0], 8)


class Replicas:
    """Two workers of mode sync, whose all-reduce and network are played; session, journals and states are real."""

    def __init__(self, folder):
        self._dataset, self._term = pack_small_images(folder / "data"), 0
        self._run_dir = RunDir.create(folder / "run")

    def proof(self, *, digests=(5.0, 5.0), drained=False, resume=False, row_of=None, rounding=0.0, **values):
        """Train, and return the proof of training.json. `row_of`: what rows say from the second update on, right or not.

        `rounding`: added to each learning rate.
        """
        chosen = {
            "mode.name": "sync", "cluster.workers": WORKERS, "model.name": "tutorial_cnn", "training.steps": UPDATES,
            "cluster.steps_per_dispatch": 2, "optimizer.learning_rate": 0.1, "schedule.kind": "triangle",
        } | values  # fmt: skip
        config, self._term = build_config(overrides=chosen), self._term + 1
        store = make_store(kind=config.chosen_mode.shard, values=chosen, steps=UPDATES)
        start = SessionStart(
            TrainingJob(config, self._run_dir, self._dataset, leading=LeaderStart(term=self._term)),
            build=lambda *_: (store, None),
        )
        start.begin(resume=resume)
        session = start.build(["/device:CPU:0"], "/device:CPU:0")
        session.start()
        rates, drain = expected_rates(config, WORKERS * UPDATES), Drain()
        batches = RecomputedBatches(config, self._dataset.train_examples)
        drain.for_good = False
        if drained:
            drain.set()  # its leader ends after one dispatch: two updates

        def run_updates(updates, request):
            (replica,) = store.shards
            for _ in range(updates):
                version = int(replica.apply_gradient(tf.zeros([replica.length]), tf.constant(0.1), tf.zeros([3])))
                row = {
                    "examples": config.examples_per_step,
                    "applied_time": 1.0,
                    "version": version,
                    "rate_factor": 1.0,
                }
                row |= {"learning_rate": float(rates(np.array([WORKERS * (version - 1)]))[0]) + rounding}
                row |= (row_of or {}) if version > 1 else {}
                both = rows_of(WORKERS * (version - 1) + np.arange(WORKERS), worker=np.arange(WORKERS), **row)
                both["ids_checksum"] = batches.checksums(both)
                replica.write_rows(tf.constant(both.view(np.float64).reshape(1, WORKERS, -1)[:, :, 1:]))
            return RoundEnd(request, list(digests))

        watch = RoundWatch(lambda: math.inf, lambda limit_s: None, check_every_s=math.inf)
        stopped = train_until_end(config, session, run_updates, drain, watch).ends_training
        session.end(stopped=stopped, is_continued=stopped)
        return json.loads(self._run_dir.training_result.read_text())["proof"]


@eagerly()
def test_a_replica_with_other_weights_fails_the_proof_of_the_run(tmp_path):
    assert Replicas(tmp_path / "same").proof(rounding=3e-9, **{"schedule.end_factor": 0.0})["holds"]
    proof = Replicas(tmp_path / "other").proof(digests=(5.0, 6.0))
    told = ["after update 1 the weights of worker-1 differ from those of worker-0"]
    assert not proof["holds"] and proof["problems"] == told


@eagerly()
def test_a_run_that_goes_on_needs_no_room_for_all_the_states_that_a_new_one_will_keep(tmp_path, monkeypatch):
    run = Replicas(tmp_path)
    run.proof(drained=True)

    def refuse(*_):
        raise UserError("checkpoints.keep: no room")

    monkeypatch.setattr("ps_cluster.training.session.check_disk", refuse)
    assert run.proof(resume=True)["holds"]
    with pytest.raises(UserError, match="no room"):
        Replicas(tmp_path / "new").proof()


@eagerly()
def test_a_replica_that_differed_is_told_by_every_leader_that_goes_on(tmp_path):
    run = Replicas(tmp_path)
    first = run.proof(digests=(5.0, 6.0), drained=True)
    assert not first["holds"] and run.proof(resume=True)["problems"] == first["problems"]


@eagerly()
def test_the_rows_of_a_run_are_compared_with_its_settings(tmp_path):
    proof = Replicas(tmp_path).proof(row_of={"learning_rate": 0.05, "examples": 7, "staleness": 1})
    told = " ".join(proof["problems"])
    assert not proof["holds"] and "step 2 has learning_rate 0.05" in told and "step 2 has examples 7" in told
    assert "step 2 has staleness 1, but the staleness bound is 0" in told


@eagerly()
def test_a_run_that_goes_on_at_another_learning_rate_is_proved_but_not_with_wrong_rates_of_its_own(tmp_path):
    run = Replicas(tmp_path)
    run.proof(drained=True)
    other = {"optimizer.learning_rate": 0.2}
    assert run.proof(resume=True, drained=True, **other)["holds"]
    proof = run.proof(resume=True, row_of={"learning_rate": 0.1}, **other)
    assert [problem.split(": step")[0] for problem in proof["problems"]] == ["shard 0: row 8"]


@eagerly()
def test_the_digest_of_weights_tells_another_value_and_another_order():
    (part,) = make_store(kind=ReplicaShard).shards
    weights = part.weights.numpy()
    digests = {float(part.digest())}
    swapped = weights[[1, 0, *range(2, len(weights))]]
    for change in (weights[::-1], swapped, np.nextafter(weights, np.float32(2)), -weights * 2, weights * 0):
        part.weights.assign(change)
        digests.add(float(part.digest()))
    assert len(digests) == 6 and all(digest == int(digest) for digest in digests)
    part.weights.assign(weights)
    assert float(part.digest()) in digests
    for place in (0, len(weights) - 1):
        part.weights.assign(np.where(np.arange(len(weights)) == place, weights + 1, weights))
        assert float(part.digest()) not in digests, "a single weight counts, wherever it is"
