import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.config import build_config
from ps_cluster.server.initial_state import InitialState
from ps_cluster.server.store import StepPush
from ps_cluster.training.modes.elastic import ElasticShard, LocalSteps, moving_rate
from ps_cluster.training.step import StepResult
from tests.helpers.stores import LENGTH, NO_EXAMPLES, make_store, pull, row, state_of

pytestmark = pytest.mark.slow

WORKERS, PERIOD, RATE, DECAY = 3, 4, 0.1, 0.5
FACTORS = np.array([1, 2, 0, 1, 1, 1, 0.5], np.float32)
NOTHING = np.zeros(0, np.float32)
START = InitialState(FACTORS, FACTORS, NOTHING, NOTHING)
PLAIN = {"mode.name": "elastic", "optimizer.rule": "sgd"}
CONFIG = build_config(overrides=PLAIN | {"optimizer.weight_decay": DECAY, "mode.local_steps": PERIOD})


def target(batch):
    """What the gradient of a batch pulls the weights to; of TensorFlow's numbers as of numpy's."""
    return batch % 5 - 2


def quadratic(batch, weights, statistics):
    """A training step for the gradient of |weights - target|^2 / 2."""
    batch = tf.cast(batch, tf.float32)
    gradient, nothing = weights - target(batch), tf.zeros_like(statistics)
    return StepResult(gradient, nothing, batch, batch + 1, tf.constant(RATE), *NO_EXAMPLES)


class PaperWorker:
    """A worker of algorithm 1 as it stands in the paper: it stops in front of each exchange until it has its turn."""

    def __init__(self, centre, moving_rate):
        self._centre, self._moving_rate = centre, moving_rate
        self.exchanged = centre.copy()
        self.batches = []  # of its next steps
        self._life = self._run()
        next(self._life)

    def take_turn(self, batches):
        """Exchange, and then take the steps of these batches up to the next exchange."""
        self.batches = list(batches)
        next(self._life)

    def _run(self):
        own, clock = self._centre.copy(), 0
        while True:
            x = own.copy()
            if clock % PERIOD == 0:
                yield
                own -= self._moving_rate * (x - self._centre)
                self._centre += self._moving_rate * (x - self._centre)
                self.exchanged = own.copy()
            gradient = FACTORS * (x - target(self.batches.pop(0))) + DECAY * (FACTORS != 0) * x
            own -= RATE * gradient
            clock += 1


def batches_of(step):
    return range(step * PERIOD, (step + 1) * PERIOD)


def test_interleaved_workers_come_to_what_algorithm_1_of_the_paper_comes_to():
    store = make_store(kind=ElasticShard, values={"mode.name": "elastic"}, rule="sgd", factors=FACTORS, statistics=0)
    local = LocalSteps(quadratic, CONFIG, START, NOTHING)
    compute = tf.function(lambda *given: local(*given).gradient, autograph=False)
    centre = np.linspace(-1, 1, LENGTH)
    workers = [PaperWorker(centre, 0.9 / WORKERS) for _ in range(WORKERS)]
    pulled, steps = {}, {}
    schedule = [0, 1, 2, 0, 2, 0, 0, 1, 2, 1, 0, 2, 2, 1]
    for step, worker in enumerate(schedule):
        if worker in pulled:  # it pushes what it has computed, which is an exchange
            parameters = pulled[worker]
            moved = compute(tf.constant(steps[worker], tf.int64), parameters.weights, parameters.statistics)
            number = tf.constant(steps[worker], tf.int64)
            store.push(StepPush(number, parameters.versions, moved, parameters.statistics, row(worker=worker)))
        workers[worker].take_turn(batches_of(step))  # the paper's steps follow their exchange
        pulled[worker], steps[worker] = pull(store, worker), step
        assert state_of(store)["weights"] == pytest.approx(centre, rel=1e-4, abs=1e-5)
        assert state_of(store)["slot_own"][worker] == pytest.approx(workers[worker].exchanged, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize(("workers", "rate"), [(1, 0.9), (3, 0.3), (8, 0.1125)])
def test_the_moving_rate_is_beta_over_the_number_of_workers(workers, rate):
    assert moving_rate(CONFIG.with_values({"cluster.workers": workers})) == pytest.approx(rate)


def test_after_a_resume_with_other_workers_the_new_ones_begin_at_the_centre():
    workers = 5
    three, others = (
        make_store(2, kind=ElasticShard, values={"mode.name": "elastic", "cluster.workers": count}, rule="sgd")
        for count in (WORKERS, workers)
    )
    pulled = pull(three, 1)
    assert pulled.weights.shape == [2, LENGTH]
    three.push(StepPush(tf.constant(0, tf.int64), pulled.versions, tf.ones(LENGTH), pulled.statistics, row(worker=1)))
    others.restore(state_of(three))
    for worker in range(workers):
        centre = np.stack([state_of(three)["weights"]] * 2)
        expected = pull(three, worker).weights.numpy() if worker < WORKERS else centre
        assert (pull(others, worker).weights.numpy() == expected).all()


def test_a_worker_that_begins_late_pulls_the_centre_back_to_the_first_weights_so_the_number_is_fixed():
    store = make_store(kind=ElasticShard, values={"mode.name": "elastic"}, rule="sgd")
    for step in range(20):
        pulled = pull(store, 0)
        store.push(
            StepPush(tf.constant(step, tf.int64), pulled.versions, tf.ones(LENGTH), pulled.statistics, row(worker=0))
        )
    start, far = np.linspace(-1, 1, LENGTH), state_of(store)["weights"]
    late = pull(store, 1)
    store.push(StepPush(tf.constant(20, tf.int64), late.versions, tf.zeros(LENGTH), late.statistics, row(worker=1)))
    assert state_of(store)["weights"] == pytest.approx(far + 0.9 / WORKERS * (start - far), abs=1e-5)
    assert (far - start > 5).all(), "the centre had moved far from there"


def test_a_push_that_comes_twice_is_one_exchange():
    store = make_store(kind=ElasticShard, values={"mode.name": "elastic"}, rule="sgd")
    pulled = pull(store, 1)
    for _ in range(2):
        store.push(
            StepPush(tf.constant(0, tf.int64), pulled.versions, tf.ones(LENGTH), pulled.statistics, row(worker=1))
        )
    start = np.linspace(-1, 1, LENGTH)
    state = state_of(store)
    assert state["weights"] == pytest.approx(start + 0.3, abs=1e-6)
    assert state["slot_own"][1] == pytest.approx(start + 0.7, abs=1e-6)


def test_the_steps_of_a_period_are_plain_sgd_on_consecutive_batches_the_first_from_before_the_exchange():
    local = LocalSteps(quadratic, CONFIG, START, NOTHING)
    own, before = np.linspace(1, 2, LENGTH), np.linspace(3, 1, LENGTH)
    result = tf.function(lambda *given: local(*given)._asdict(), autograph=False)(
        tf.constant(2, tf.int64), tf.constant([own, before], tf.float32), tf.zeros([0])
    )
    weights = own
    for batch in batches_of(2):
        here = before if batch == batches_of(2)[0] else weights
        weights = weights - RATE * (FACTORS * (here - target(batch)) + DECAY * (FACTORS != 0) * here)
    assert result["gradient"].numpy() == pytest.approx(weights - own, rel=1e-5, abs=1e-6)
    batches = list(batches_of(2))
    assert (float(result["loss"]), float(result["metric"])) == (np.mean(batches), sum(batches) + PERIOD)


def test_what_a_period_adds_to_the_statistics_is_what_its_steps_add_one_after_the_other():
    keep, given = np.array([0.9, 0.5, 1.0], np.float32), np.array([2.0, -3.0, 0.5], np.float32)

    def step(batch, weights, statistics):
        result = quadratic(batch, weights, statistics)
        # Of what was given, too: the steps of a period see each other's statistics.
        fresh = tf.cast(batch, tf.float32) + 0.1 * statistics
        return result._replace(fresh=fresh)

    local = LocalSteps(step, CONFIG, START, keep)
    fresh = local(tf.constant(2, tf.int64), tf.zeros([2, LENGTH]), tf.constant(given)).fresh
    statistics = given.astype(np.float64)
    for batch in batches_of(2):
        statistics = keep * statistics + batch + 0.1 * statistics
    assert fresh.numpy() == pytest.approx(statistics - keep.astype(np.float64) ** PERIOD * given, rel=1e-5)
