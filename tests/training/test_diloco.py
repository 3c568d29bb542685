"""Local steps with an optimizer that stays with the worker, and the outer step on the server."""

from dataclasses import replace
from itertools import count

import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.config import build_config
from ps_cluster.config.optimizer_rules import RULES
from ps_cluster.errors import UserError
from ps_cluster.runs.ledger import WORKER_COLUMNS
from ps_cluster.runs.run_dir import IDENTITY, OF_OPTIMIZER
from ps_cluster.server.initial_state import InitialState
from ps_cluster.server.leftovers import new_leader_prefix
from ps_cluster.server.ordering import after
from ps_cluster.server.shard import APPLIED, DROPPED, REFUSED
from ps_cluster.server.store import StepPush
from ps_cluster.training.modes.diloco import DilocoShard
from ps_cluster.training.modes.fragments import fragments_graph
from ps_cluster.training.modes.local_steps import LocalTraining
from ps_cluster.training.modes.sync_ps import RoundShard
from ps_cluster.training.step import PeriodLimits, StepResult
from ps_cluster.training.worker import steps_graph
from tests.helpers.stores import LENGTH, NO_EXAMPLES, ledger_of, make_store, pull, row, state_of
from tests.helpers.waiting import identity

PERIOD, RATE = 4, 0.1
WITH_MOMENTUM = {"optimizer.rule": "momentum", "optimizer.momentum": 0.9, "optimizer.weight_decay": 0.0}
NOTHING = np.zeros(0, np.float32)
ONES = np.ones(LENGTH, np.float32)
START = np.linspace(-1, 1, LENGTH)
STATISTICS = np.array([2.0, -3.0], np.float32)


def config_of(mode="diloco", **values):
    own = {"mode.name": mode, "mode.local_steps": PERIOD, "cluster.wire": "float32"}
    return build_config(overrides=own | values)


def config_of_rule(rule):
    own = WITH_MOMENTUM | {"optimizer.rule": rule}
    return config_of(**(own if rule != "adagrad" else {key: own[key] for key in own if key != "optimizer.momentum"}))


def quadratic(batch, weights, statistics):
    """A training step for the gradient of |weights - batch % 5 + 2|^2 / 2."""
    number = tf.cast(batch, tf.float32)
    gradient = weights - tf.cast(batch % 5 - 2, weights.dtype)
    return StepResult(gradient, tf.zeros_like(statistics), number, number + 1, tf.constant(RATE), *NO_EXAMPLES)


def beginning(factors):
    return InitialState(ONES, factors, NOTHING, NOTHING)


def periods(config, factors=ONES, *, keep=NOTHING, step=quadratic, batches=None):
    """Return a function of (period, weights): the result of a period, as a new process of a worker computes it."""
    local = LocalTraining(step, config, beginning(factors), keep)
    with tf.Graph().as_default() as graph:
        limits = PeriodLimits(None if batches is None else identity(batches))
        number, weights = tf.compat.v1.placeholder(tf.int64, []), tf.compat.v1.placeholder(tf.float32, [LENGTH])
        outcome = tf.compat.v1.placeholder_with_default([APPLIED], [1])

        @tf.function(autograph=False)
        def run(number, weights, outcome):
            result = local(number, weights, tf.constant(STATISTICS[: len(keep)]), limits)._asdict()
            with tf.control_dependencies(list(result.values())):
                settled = local.settle(number, outcome)
            with tf.control_dependencies(settled):
                return {name: tf.identity(value) for name, value in result.items()}

        results = dict(run(number, weights, outcome))
    session = tf.compat.v1.Session(graph=graph)  # its variables are its own: as of a process
    return lambda *given, becomes=APPLIED: session.run(
        results, dict(zip((number, weights, outcome), (*given, [becomes]), strict=True))
    )


@pytest.fixture(autouse=True)
def workspace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def by_hand(rule, numbers, values):
    """Return the distance of each of several periods of adam, adagrad, momentum or sgd, computed with numpy."""
    state, count, distances = [np.zeros(LENGTH), np.zeros(LENGTH)], 0, []
    for number in numbers:
        weights = np.array(values, np.float64)
        for batch in range(number * PERIOD, (number + 1) * PERIOD):
            gradient, count = weights - (batch % 5 - 2), count + 1
            if rule == "adagrad":
                state[0] = state[0] + gradient**2
                weights -= RATE * gradient / (np.sqrt(0.1 + state[0]) + 1e-7)
            elif rule != "adam":
                state[0] = (0.9 if rule == "momentum" else 0) * state[0] - RATE * gradient
                weights += state[0]
            else:
                state = [0.9 * state[0] + 0.1 * gradient, 0.999 * state[1] + 0.001 * gradient**2]
                mean, square = state[0] / (1 - 0.9**count), state[1] / (1 - 0.999**count)
                weights -= RATE * mean / (np.sqrt(square) + 1e-7)
        distances.append(values - weights)
    return distances


@pytest.mark.parametrize("rule", ["momentum", "adam"])
def test_a_worker_keeps_its_optimizer_from_period_to_period_and_over_its_death(rule):
    config = config_of_rule(rule)
    expected = by_hand(rule, range(4), START)
    worker = periods(config)
    for number in (0, 1, 2):
        assert worker(number, START)["gradient"] == pytest.approx(expected[number], rel=1e-4, abs=1e-5)
    again = periods(config)
    result = again(3, START)
    assert result["gradient"] == pytest.approx(expected[3], rel=1e-4, abs=1e-5)
    batches = range(3 * PERIOD, 4 * PERIOD)
    assert (result["loss"], result["metric"]) == (np.mean(batches), sum(batches) + PERIOD)


@pytest.mark.parametrize(("rule", "lost"), [("adam", REFUSED), ("adagrad", DROPPED)])
def test_a_period_whose_push_is_not_applied_leaves_the_optimizer_as_it_was(rule, lost):
    config = config_of_rule(rule)
    expected = by_hand(rule, (0, 2, 3), START)
    worker = periods(config)
    worker(7, START, becomes=lost)  # before anything was written
    seen = [worker(0, START)["gradient"]]
    worker(1, START, becomes=lost)
    seen.append(worker(2, START)["gradient"])
    worker(5, START, becomes=lost)
    seen.append(periods(config)(3, START)["gradient"])
    assert np.stack(seen) == pytest.approx(np.stack(expected), rel=1e-4, abs=1e-5)


def test_a_process_without_state_settles_a_step_that_all_shards_already_had():
    start = replace(beginning(ONES), leader_prefix=new_leader_prefix(7, 7))
    local = LocalTraining(quadratic, config_of_rule("adam"), start, NOTHING)
    settle = tf.function(lambda: local.settle(identity(4), tf.constant([REFUSED])), autograph=False)
    settle()
    moved = tf.function(
        lambda: local(identity(0), tf.constant(START, tf.float32), tf.zeros([0])).gradient, autograph=False
    )
    assert moved().numpy() == pytest.approx(by_hand("adam", [0], START)[0], rel=1e-4, abs=1e-5)


def leader(term, since=1):
    """Return a function of (period, weights): a period of a leader in this process, which other leaders use too."""
    config = config_of(**WITH_MOMENTUM)
    start = replace(beginning(ONES), leader_prefix=new_leader_prefix(term, since))
    local = LocalTraining(quadratic, config, start, NOTHING)

    @tf.function(autograph=False)
    def run(number, weights):
        moved = local(number, weights, tf.zeros([0])).gradient
        with tf.control_dependencies([moved]):
            settled = local.settle(number, tf.constant([APPLIED]))
        return after(settled, moved)

    return lambda period: run(identity(period), tf.constant(START, tf.float32)).numpy()


def test_a_leader_that_wakes_up_late_changes_nothing_of_its_successors_optimizer_in_the_same_worker():
    expected = by_hand("momentum", range(4), START)
    old, new = leader(1), leader(2)
    assert old(0) == pytest.approx(expected[0], rel=1e-4, abs=1e-5)
    assert new(1) == pytest.approx(expected[1], rel=1e-4, abs=1e-5), "it goes on with the optimizer's state"
    for period in (7, 8):
        old(period)
    assert new(2) == pytest.approx(expected[2], rel=1e-4, abs=1e-5)
    old(9)  # it writes its state into the same files, which counts as older
    assert periods(config_of(**WITH_MOMENTUM))(3, START)["gradient"] == pytest.approx(expected[3], rel=1e-4, abs=1e-5)


def test_where_training_begins_anew_a_worker_begins_with_a_new_optimizer_whatever_its_folder_holds():
    expected = by_hand("momentum", range(2), START)
    before, anew, next_one = leader(1), leader(2, since=2), leader(3, since=2)
    for period in (5, 6, 7):
        before(period)
    assert anew(0) == pytest.approx(expected[0], rel=1e-4, abs=1e-5)
    assert next_one(1) == pytest.approx(expected[1], rel=1e-4, abs=1e-5)


def test_a_file_that_a_dying_worker_left_incomplete_is_passed_over(tmp_path):
    config = config_of(**WITH_MOMENTUM)
    worker = periods(config)
    for number in (0, 1):
        worker(number, START)
    newest = max((tmp_path / name for name in OF_OPTIMIZER), key=lambda path: path.stat().st_mtime_ns)
    newest.write_bytes(newest.read_bytes()[:-1])
    expected = by_hand("momentum", (0, 2), START)[1]
    assert periods(config)(2, START)["gradient"] == pytest.approx(expected, rel=1e-4, abs=1e-5)
    for name in OF_OPTIMIZER:
        (tmp_path / name).write_bytes(b"")
    expected = by_hand("momentum", (2,), START)[0]
    assert periods(config)(2, START)["gradient"] == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_a_file_has_the_optimizers_variables_in_the_order_of_their_creation_and_then_the_number_of_the_save(tmp_path):
    """So a worker can read the files that an earlier version of the package has written."""
    periods(config_of(**WITH_MOMENTUM))(0, START)
    content = tf.io.parse_tensor((tmp_path / OF_OPTIMIZER[1]).read_bytes(), tf.uint8).numpy().tobytes()
    weights, velocity = START.copy(), np.zeros(LENGTH)
    for batch in range(PERIOD):
        velocity = 0.9 * velocity - RATE * (weights - (batch % 5 - 2))
        weights += velocity
    assert np.frombuffer(content, np.float32, LENGTH) == pytest.approx(velocity, rel=1e-4, abs=1e-6)
    taken, saves = np.frombuffer(content, np.int64, offset=4 * LENGTH)
    assert (taken, saves) == (PERIOD, 1)


def test_a_disk_that_refuses_the_optimizers_state_does_not_end_the_training(tmp_path, capfd):
    expected = by_hand("momentum", range(5), START)
    worker = periods(config_of(**WITH_MOMENTUM))
    seen = [worker(0, START)["gradient"]]
    for name in OF_OPTIMIZER:  # a folder in the place of the file, as root may write into everything else
        (tmp_path / name).unlink(missing_ok=True)
        (tmp_path / name).mkdir()
    seen += [worker(period, START)["gradient"] for period in (1, 2)]
    for name in OF_OPTIMIZER:
        (tmp_path / name).rmdir()
    seen.append(worker(3, START)["gradient"])
    seen.append(periods(config_of(**WITH_MOMENTUM))(4, START)["gradient"])
    assert np.stack(seen) == pytest.approx(np.stack(expected), rel=1e-4, abs=1e-5)
    told = capfd.readouterr().err
    assert told.count("the state can't be written") == 1 and told.count("writing the state works again") == 1


@pytest.mark.parametrize("written", [0, 2])
def test_a_lost_push_does_not_throw_the_optimizer_back_to_an_older_state_where_the_disk_refuses(tmp_path, written):
    expected = by_hand("momentum", range(6), START)[5]
    worker = periods(config_of(**WITH_MOMENTUM))
    worker(7, START, becomes=REFUSED)  # it looks for files when it begins
    for period in range(5):
        if period == written:
            for name in OF_OPTIMIZER:
                (tmp_path / name).unlink(missing_ok=True)
                (tmp_path / name).mkdir()
        worker(period, START, becomes=REFUSED if period == 4 else APPLIED)
    assert worker(5, START)["gradient"] == pytest.approx(expected, rel=1e-4, abs=1e-5)


def pushed(store, gradients):
    """Push gradients one after the other, each from the newest version; return the weights after each."""
    seen = []
    for step, gradient in enumerate(gradients):
        pulled, given = pull(store, step % 3), tf.constant(gradient, tf.float32)
        store.push(StepPush(identity(step), pulled.versions, given, pulled.statistics, row(worker=step % 3)))
        seen.append(state_of(store)["weights"])
    return seen


GRADIENTS = np.random.default_rng(0).normal(size=[7, LENGTH])


@pytest.mark.parametrize(("every", "spread", "shards"), [(1, 0.0, 1), (3, 0.0, 1), (3, 0.2, 1), (3, 1 / 3, 2)])
def test_the_outer_step_is_that_of_algorithm_3_of_the_paper(every, spread, shards):
    values = {"mode.name": "diloco", "mode.momentum_every": every, "mode.momentum_spread": spread}
    seen = pushed(make_store(shards, kind=DilocoShard, values=values, rule="sgd"), GRADIENTS)
    weights, momentum, gathered = START.copy(), np.zeros(LENGTH), np.zeros(LENGTH)
    for number, gradient in enumerate(GRADIENTS):
        gathered += gradient
        if (number + 1) % every == 0:
            momentum = 0.9 * momentum + gathered / every
            weights = weights - 0.7 * ((1 - spread * every + spread) * 0.9 * momentum + gradient / every)
            gathered = np.zeros(LENGTH)
        else:
            weights = weights - 0.7 * (spread * 0.9 * momentum + gradient / every)
        assert seen[number] == pytest.approx(weights, rel=1e-4, abs=1e-5)


def stale(method, **settings):
    every = {} if method == "gather" else {"mode.momentum_every": 1}  # 1 by default where the method gathers
    values = {"mode.name": "diloco", "staleness.method": method} | every
    return values | {f"staleness.{name}": value for name, value in settings.items()}


def late(store, *turns):
    """Push the outer gradient of each (step, version pulled); return the outcomes."""
    nothing = pull(store).statistics
    given = [tf.constant(gradient, tf.float32) for gradient in GRADIENTS]
    outcomes = [
        store.push(StepPush(identity(step), identity([version]), given[step], nothing, row(worker=step % 3)))
        for step, version in turns
    ]
    return [int(outcome[0]) for outcome in outcomes]


def nesterov(*gradients):
    weights, momentum = START.copy(), np.zeros(LENGTH)
    for gradient in gradients:
        momentum = 0.9 * momentum + gradient
        weights = weights - 0.7 * (gradient + 0.9 * momentum)
    return pytest.approx(weights, rel=1e-4, abs=1e-5)


def test_a_late_period_counts_as_the_staleness_method_says():
    store = make_store(kind=DilocoShard, values=stale("inverse"), rule="sgd")
    late(store, (0, 0), (1, 0), (2, 0))
    assert state_of(store)["weights"] == nesterov(GRADIENTS[0], GRADIENTS[1], GRADIENTS[2] / 2)
    store = make_store(kind=DilocoShard, values=stale("drop", max_delay=2), rule="sgd")
    assert late(store, (0, 0), (1, 0), (2, 0), (2, 2)) == [APPLIED, APPLIED, DROPPED, APPLIED]
    assert state_of(store)["weights"] == nesterov(*GRADIENTS[:3])


def test_periods_are_gathered_and_the_outer_step_is_of_their_mean():
    """FedBuff, with momentum on the server."""
    values = stale("gather", gather=2)
    store, other = (make_store(kind=DilocoShard, values=values, rule="sgd") for _ in range(2))
    late(store, (0, 0), (1, 0), (2, 1))
    assert state_of(store)["weights"] == nesterov(GRADIENTS[:2].mean(axis=0)), "of three, one waits for another"
    other.restore(state_of(store))
    late(other, (3, 2))
    second = (GRADIENTS[2] / np.sqrt(2) + GRADIENTS[3]) / 2
    assert state_of(other)["weights"] == nesterov(GRADIENTS[:2].mean(axis=0), second)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (
            {"staleness.method": "predict"},
            "mode diloco supports delay_adaptive, drop, gather, inverse, none and same_version",
        ),
        (
            {"staleness.method": "drop", "mode.fragments": True, "cluster.parameter_servers": 2},
            "mode diloco with mode.fragments supports delay_adaptive, gather, inverse and none",
        ),
        (stale("drop", stop=True) | {"cluster.parameter_servers": 2}, "cluster.parameter_servers: got 2"),
    ],
)
def test_a_staleness_method_that_does_not_suit_periods_is_refused(values, told):
    with pytest.raises(UserError, match=told):
        config_of(**values)


class OfSpeeds:
    """A store of periods that have as many steps as their worker's speed says."""

    def __init__(self, shards=1, **values):
        values |= {"mode.name": "diloco", "mode.dynamic_steps": True, "training.batch_size_per_worker": 128}
        self.store, self._step = make_store(shards, kind=DilocoShard, values=values, rule="sgd"), count()

    def period(self, worker, batches, seconds, version=None):
        """A worker pushes a period of so many batches that took so long."""
        pulled = pull(self.store, worker)
        times = {"worker": worker, "examples": 128 * batches, "pulled_time": 100.0, "pushed_time": 100.0 + seconds}
        info = tf.constant([times.get(name, 0.0) for name in WORKER_COLUMNS], tf.float64)
        versions = pulled.versions if version is None else identity([version])
        self.store.push(StepPush(identity(next(self._step)), versions, tf.zeros(LENGTH), pulled.statistics, info))

    def next_steps(self, worker):
        return int(pull(self.store, worker).batches)

    def all_next_steps(self):
        return [self.next_steps(worker) for worker in range(3)]


def test_the_speed_of_a_worker_is_known_though_its_push_was_dropped():
    own = OfSpeeds(**stale("drop", max_delay=1))
    for worker, version, seconds in ((0, 0, 8.0), (0, 1, 8.0), (1, 0, 16.0)):
        own.period(worker, 16, seconds, version)
    assert ledger_of(own.store)[1][0]["dropped"] == 1 and own.next_steps(1) == 8


def test_the_staleness_method_of_the_inner_rule_is_not_that_of_the_outer_one():
    methods = [config_of(mode, **{"optimizer.rule": "adam"}).staleness.method for mode in ("diloco", "sync-diloco")]
    assert methods == ["none", "none"] and RULES["adam"].staleness_method == "predict"


def test_a_restored_server_goes_on_with_the_gradients_that_it_has_gathered():
    values = {"mode.name": "diloco", "mode.momentum_every": 3}
    whole, first, second = (make_store(kind=DilocoShard, values=values, rule="sgd") for _ in range(3))
    expected = pushed(whole, GRADIENTS)
    pushed(first, GRADIENTS[:4])
    second.restore(state_of(first))
    for step, gradient in enumerate(GRADIENTS[4:], 4):
        pulled = pull(second)
        second.push(
            StepPush(identity(step), pulled.versions, tf.constant(gradient, tf.float32), pulled.statistics, row())
        )
    assert state_of(second)["weights"] == pytest.approx(expected[-1], abs=1e-6)


def test_one_local_step_of_sgd_and_an_outer_step_of_1_without_momentum_is_a_round_of_sync_ps():
    one = {"mode.name": "sync-diloco", "mode.local_steps": 1, "mode.outer_rate": 1.0, "mode.outer_momentum": 0.0}
    sgd = {"optimizer.rule": "sgd", "optimizer.weight_decay": 0.01, "optimizer.learning_rate": RATE}
    factors = np.array([1, 2, 0, 1, 1, 1, 0.5], np.float32)
    outer = make_store(kind=RoundShard, values=one, rule="sgd")
    plain = make_store(kind=RoundShard, values={"mode.name": "sync-ps"}, rule="sgd", weight_decay=0.01, factors=factors)
    worker = periods(config_of("sync-diloco", **one, **sgd), factors)
    for version in range(3):
        pulled = pull(outer), pull(plain)
        for index in range(3):
            step, batch = identity(3 * version + index), 3 * version + index
            distance = worker(batch, pulled[0].weights.numpy())["gradient"]
            gradient = quadratic(identity(batch), pulled[1].weights, NOTHING).gradient
            nothing = pulled[0].statistics
            outer.push(StepPush(step, pulled[0].versions, tf.constant(distance), nothing, row(worker=index)))
            plain.push(StepPush(step, pulled[1].versions, gradient, nothing, row(RATE, worker=index)))
        assert state_of(outer)["weights"] == pytest.approx(state_of(plain)["weights"], rel=1e-5, abs=1e-6)
    assert abs(state_of(outer)["weights"] - START).max() > 0.1


def test_a_slower_worker_takes_fewer_local_steps_by_its_speed_beside_the_fastest_that_is_there():
    own = OfSpeeds(2)
    assert own.all_next_steps() == [16, 16, 16], "nothing is known yet"
    own.period(0, 16, 8.0)  # 2 a second
    assert own.all_next_steps() == [16, 16, 16]
    own.period(1, 16, 27.0)
    own.period(2, 16, 1000.0)
    assert own.all_next_steps() == [16, 4, 1], "⌊16 · 8 / 27⌋, and at least 1"
    own.period(1, 4, 4.0)
    assert own.next_steps(1) == 4, "of two periods the slower one counts"
    own.period(1, 4, 4.0)
    assert own.next_steps(1) == 8, "the newest periods count, with the steps that it took"
    for _ in range(12):
        own.period(1, 8, 8.0)
    assert own.next_steps(1) == 16, "the fastest has gone"


@pytest.mark.parametrize("seconds", [-3600.0, 3600.0], ids=["back", "forward"])
def test_a_clock_that_is_set_once_changes_the_local_steps_of_nobody(seconds):
    own = OfSpeeds()
    for worker, usual_s in ((0, 8.0), (1, 8.0), (2, 16.0)) * 3:
        own.period(worker, 16, usual_s)
    assert own.all_next_steps() == [16, 16, 8]
    own.period(0, 16, seconds)
    assert own.all_next_steps() == [16, 16, 8]


def test_a_period_of_fewer_steps_takes_those_alone_and_leaves_the_mean_of_statistics_where_it_is():
    keep = np.array([0.9, 0.5], np.float32)

    def step(batch, weights, statistics):
        return quadratic(batch, weights, statistics)._replace(fresh=tf.constant((1 - keep) * STATISTICS))

    config = config_of(**{"optimizer.rule": "sgd", "optimizer.weight_decay": 0.0})
    result = periods(config, keep=keep, step=step, batches=3)(2, START)
    expected = START.copy()
    for batch in (8, 9, 10):
        expected -= RATE * (expected - (batch % 5 - 2))
    assert result["gradient"] == pytest.approx(START - expected, rel=1e-4, abs=1e-6)
    assert (result["loss"], result["metric"]) == (9.0, 8 + 9 + 10 + 3)
    assert keep**PERIOD * STATISTICS + result["fresh"] == pytest.approx(STATISTICS, rel=1e-5)


def test_settings_that_do_not_fit_are_refused():
    with pytest.raises(
        UserError, match=r"mode.momentum_spread: got 0.5: it may be at most 1 / mode.momentum_every, 1 / 3"
    ):
        config_of(**{"mode.momentum_spread": 0.5})
    assert config_of(**{"mode.momentum_spread": 0.5, "mode.momentum_every": 2}).mode.momentum_spread == 0.5


class PlainFragments:
    """A worker and its server in numpy: plain SGD, and outer steps of rate 0.7 without momentum, shard by shard."""

    def __init__(self, shards, steps):
        self.server = START.copy()
        self.own, self.pulled = START.copy(), START.copy()
        self._places = np.array_split(np.arange(LENGTH), shards)[::-1]
        self._ends = [steps * (place + 1) // shards for place in range(shards)]
        self._steps = steps

    def period(self, number):
        for position in range(self._steps):
            batch = number * self._steps + position
            self.own = self.own - RATE * (self.own - (batch % 5 - 2))
            for place, end in zip(self._places, self._ends):
                if end == position + 1:
                    self.server[place] -= 0.7 * (self.pulled[place] - self.own[place])
                    self.own[place] = self.pulled[place] = self.server[place]


@pytest.mark.parametrize("stops", [False, True])
def test_a_period_that_comes_too_late_anyway_is_stopped_between_its_local_steps(stops, tmp_path):
    """Another worker pushes during the second local step of the first period, which is dropped and begun again."""
    (tmp_path / IDENTITY).write_bytes(np.array([0, 1], np.int64).tobytes())
    values = {"optimizer.rule": "sgd", "optimizer.weight_decay": 0.0, **stale("drop", max_delay=1, stop=stops)}
    config = config_of(**values)
    store = make_store(kind=DilocoShard, values=values | {"mode.local_steps": PERIOD}, rule="sgd", statistics=0)
    taken = []

    def noted(batch):
        taken.append(int(batch))
        if len(taken) == 2:
            store.push(StepPush(identity(1), identity([0]), tf.zeros(LENGTH), tf.zeros([0]), row(worker=1)))
        return batch

    def step(batch, weights, statistics):
        return quadratic(tf.ensure_shape(tf.py_function(noted, [batch], tf.int64), []), weights, statistics)

    run = steps_graph(store, LocalTraining(step, config, beginning(ONES), NOTHING), config)
    run(tf.constant([0], tf.int64), tf.constant(0.0, tf.float64))
    assert taken == [*range(2 if stops else PERIOD), *range(PERIOD)]
    assert state_of(store)["weights"] == nesterov(0 * ONES, *by_hand("sgd", [0], START))
    (rows,), (counts,) = ledger_of(store)
    assert rows["step"].tolist() == [0, 1] and (counts["version"], counts["dropped"]) == (2, 1)


@pytest.mark.exhaustive
def test_with_fragments_each_shard_is_exchanged_after_other_local_steps(tmp_path):
    shards = 3
    fragments = {"mode.fragments": True, "cluster.parameter_servers": shards, "cluster.workers": 1}
    outer = {"mode.outer_momentum": 0.0, "optimizer.rule": "sgd", "optimizer.weight_decay": 0.0}
    config = config_of(**fragments, **outer)
    (tmp_path / IDENTITY).write_bytes(np.array([0, 1], np.int64).tobytes())
    values = {"mode.name": "diloco", "mode.local_steps": PERIOD, "mode.outer_momentum": 0.0, **fragments}
    store = make_store(shards, kind=DilocoShard, values=values, rule="sgd", statistics=0)
    run = fragments_graph(store, LocalTraining(quadratic, config, beginning(ONES), NOTHING), config)
    plain = PlainFragments(shards, PERIOD)
    for steps in ([0, 1], [2], [3, 4, 5]):  # what a worker has of a shard outlives a dispatch
        run(tf.constant(steps, tf.int64), tf.constant(0.0, tf.float64))
        for number in steps:
            plain.period(number)
        assert state_of(store)["weights"] == pytest.approx(plain.server, rel=1e-4, abs=1e-5)
    rows, counts = ledger_of(store)
    for own, numbers in zip(rows, counts):
        assert own["step"].tolist() == list(range(6)) and not own["staleness"].any() and numbers["version"] == 6
        assert own["metric"][0] <= sum(range(PERIOD)) + PERIOD == rows[0]["metric"][0]


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (
            {"cluster.parameter_servers": 1},
            r"between 2 and mode.local_steps \(4\) parameter servers; cluster.parameter_servers is 1",
        ),
        ({"cluster.parameter_servers": 5}, "cluster.parameter_servers is 5"),
        ({"cluster.parameter_servers": 2, "mode.dynamic_steps": True}, "needs mode.dynamic_steps=false"),
    ],
)
def test_fragments_need_shards_and_fixed_steps(values, says):
    with pytest.raises(UserError, match=f"mode.fragments: got true: .*{says}"):
        config_of(**{"mode.fragments": True, **values})
