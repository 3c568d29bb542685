"""The simulation against what is known exactly: sums, bounds, and closed queueing networks."""

import numpy as np
import pytest

from ps_cluster.config.stragglers import parse_stragglers
from ps_cluster.tools.simulate import training
from ps_cluster.tools.simulate.prediction import predict, simulate

pytestmark = pytest.mark.slow

EVERYTHING = {
    "steps_per_dispatch": 4, "pull_fixed_seconds": 0.01, "pull_seconds_per_parameter": 1e-5, "push_fixed_seconds": 0.02,
    "apply_seconds_per_parameter": 2e-5, "pull_delay_seconds": 0.03, "push_delay_seconds": 0.04,
    "step_gap_seconds": 0.05, "dispatch_delay_seconds": 0.06, "chief_seconds": 0.07,
}  # fmt: skip


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """The seed is fixed: with these steps the means are as close as they have to be."""
    monkeypatch.setattr(training, "FEWEST_STEPS", 2000)


def seconds_per_step(trained):
    return 1 / trained.steps_per_second


def machine_repairman(workers, think_seconds, serve_seconds):
    """Throughput of so many workers that think, and are served for so long in all, one at a time, both exponential.

    Exact mean value analysis of a closed network (Reiser and Lavenberg 1980).
    """
    queue = 0.0
    for population in range(1, workers + 1):
        response = serve_seconds * (1 + queue)
        throughput = population / (think_seconds + response)
        queue = throughput * response
    return throughput


@pytest.mark.parametrize("servers", [1, 4])
def test_a_step_of_one_worker_takes_the_sum_of_its_times(costs, cluster, servers):
    trained = simulate(costs(**EVERYTHING), cluster(1, servers, bytes_per_second=4e5, latency=0.001), steps=400)
    processor = 0.01 + 0.02 + (0.01 + 0.02) / servers
    between = 0.05 + (0.06 + 0.07) / 4
    sending = 2 * 0.01  # 4,000 bytes each way at 400,000 a second, over the worker's link whatever the servers are
    assert seconds_per_step(trained) == pytest.approx(
        1 + processor + 0.03 + 0.04 + between + sending + (2 + 2 / 4) * 0.001, rel=1e-6
    )
    assert set(trained.staleness) == {0}


@pytest.mark.parametrize("mode", ["diloco", "sync-diloco", "elastic"])
def test_a_period_of_local_steps_takes_its_computations_with_an_update_each_and_one_exchange(costs, cluster, mode):
    one = cluster(1, bytes_per_second=4e5, latency=0.001, mode=mode)
    trained = simulate(costs(**EVERYTHING).with_local_steps(5), one, steps=400)
    exchange = (0.01 + 0.02) + (0.01 + 0.02) + 0.03 + 0.04 + 0.05 + (0.06 + 0.07) / 4 + 2 * 0.01 + (2 + 2 / 4) * 0.001
    assert seconds_per_step(trained) == pytest.approx(5 * (1 + 0.02) + exchange, rel=1e-6)


@pytest.mark.parametrize("cpu", [0.9, 1.8])
def test_on_one_machine_local_steps_take_the_processor_for_each_and_the_delays_once(costs, cluster, cpu):
    few = {"push_delay_seconds": 0.1, "worker_cpu_seconds": cpu}
    trained = simulate(costs(**few).with_local_steps(4), cluster(1, cores=1, mode="diloco"), steps=400)
    assert seconds_per_step(trained) == pytest.approx(4 * max(1, cpu - 0.1 * (cpu > 1)) + 0.1, rel=1e-6)


def test_where_the_link_is_full_local_steps_give_as_many_times_the_examples(costs, cluster):
    slow = {"compute_seconds": 0.01, "worker_cpu_seconds": 0.01}
    narrow = [cluster(8, bytes_per_second=4e4, mode=mode) for mode in ("async", "diloco")]
    each = [predict(costs(**slow).with_local_steps(steps), one) for steps, one in zip((1, 10), narrow)]
    assert each[0].bottleneck == each[1].bottleneck == "ps link"
    assert each[1].examples_per_second == pytest.approx(10 * each[0].examples_per_second, rel=0.05)


@pytest.mark.parametrize("cpu", [0.9, 1.0, 1.1, 1.8])
def test_on_one_machine_a_step_of_one_worker_takes_as_long_though_its_process_computes_more(costs, cluster, cpu):
    trained = simulate(costs(**EVERYTHING, worker_cpu_seconds=cpu), cluster(1, cores=2), steps=400)
    assert seconds_per_step(trained) == pytest.approx(1 + 0.06 + 0.07 + 0.0825, rel=1e-6)


def test_on_one_core_a_second_thread_takes_its_time_in_the_computation(costs, cluster):
    """0.12 s of the processor time beyond the computation fill all delays; the rest comes between pull and push."""
    trained = simulate(costs(**EVERYTHING, worker_cpu_seconds=1.8), cluster(1, cores=1), steps=400)
    assert seconds_per_step(trained) == pytest.approx(1.8 + 0.06 + (0.06 + 0.07) / 4, rel=1e-6)


def test_pinned_workers_share_the_core_that_they_keep_to(costs, cluster):
    slow = parse_stragglers("1:5x")  # it has a core to itself, which the others may not use while it waits
    trained = simulate(costs(compute_cv=0.3), cluster(3, cores=2, pinned=True, stragglers=slow), steps=6_000)
    assert trained.steps_per_second == pytest.approx(1 + 1 / 5, rel=0.01)


@pytest.mark.parametrize("cores", [None, 4])
def test_equal_workers_and_a_free_server_make_updates_as_stale_as_there_are_others(costs, cluster, cores):
    trained = simulate(costs(compute_cv=0.2), cluster(4, cores=cores))
    assert trained.gradients_per_second == pytest.approx(4, rel=0.01)
    assert trained.warm_staleness.mean() == pytest.approx(3, rel=0.01)


@pytest.mark.parametrize(("steps_per_dispatch", "share"), [(1, 1 / 4), (1000, 1)])
def test_staleness_is_of_the_time_between_a_pull_or_the_push_before_it_and_the_push(
    costs, cluster, steps_per_dispatch, share
):
    times = {"compute_cv": 0.5, "step_gap_seconds": 3.0, "steps_per_dispatch": steps_per_dispatch}
    assert simulate(costs(**times), cluster(9)).warm_staleness.mean() == pytest.approx(8 * share, rel=0.03)


@pytest.mark.parametrize("cores", [None, 100])
def test_a_busy_server_bounds_the_throughput(costs, cluster, cores):
    busy = costs(pull_fixed_seconds=0.1, push_fixed_seconds=0.1, worker_cpu_seconds=1.0, server_cv=0.5)
    assert simulate(busy, cluster(40, cores=cores)).steps_per_second == pytest.approx(1 / 0.2, rel=0.02)
    assert predict(busy, cluster(40)).bottleneck == "ps"


def test_parameter_servers_share_what_is_by_parameter_and_not_what_is_by_request(costs, cluster):
    # Pulls queue behind the pushes of all others, so the server is idle for a computation in every turn: a short one.
    by_parameter = costs(compute_seconds=0.01, apply_seconds_per_parameter=1e-3)
    assert simulate(by_parameter, cluster(200, 1)).steps_per_second == pytest.approx(1, rel=0.01)
    assert simulate(by_parameter, cluster(200, 8)).steps_per_second == pytest.approx(8, rel=0.01)
    by_request = costs(push_fixed_seconds=1.0)
    assert simulate(by_request, cluster(200, 8)).steps_per_second == pytest.approx(1, rel=0.01)


def test_a_full_link_bounds_the_throughput(costs, cluster):
    found = predict(costs(), cluster(40, 2, bytes_per_second=2e4))  # a shard has 2,000 bytes
    assert found.examples_per_second == pytest.approx(10 * 10, rel=0.01)
    assert found.bottleneck == "ps link" and found.utilisation["ps link"] == pytest.approx(1, rel=0.01)


def test_the_chief_bounds_the_throughput_by_its_dispatches(costs, cluster):
    found = predict(costs(chief_seconds=0.4, steps_per_dispatch=4), cluster(40))
    assert found.examples_per_second == pytest.approx(10 * 10, rel=0.02) and found.bottleneck == "chief"


def test_a_dispatch_of_auto_is_half_a_second_of_one_worker(costs, cluster):
    quick = costs(steps_per_dispatch="auto", compute_seconds=0.05, chief_seconds=0.01)
    for workers in (1, 20):
        trained = simulate(quick, cluster(workers), steps=4000)
        assert len(trained.seconds) / trained.dispatches == pytest.approx(9, rel=0.05), "0.05 s and a bit more a step"


def test_when_the_chief_is_short_of_time_auto_makes_the_shortest_dispatches(costs, cluster):
    """Slow workers get few steps at once, which is slower still: so it stays with more than 0.5 s / 0.01 s of them."""
    crowded = costs(steps_per_dispatch="auto", compute_seconds=0.05, chief_seconds=0.01)
    assert simulate(crowded, cluster(100)).steps_per_second == pytest.approx(4 / 0.01, rel=0.01)
    given = crowded.model_copy(update={"steps_per_dispatch": 64})
    assert simulate(given, cluster(100)).steps_per_second == pytest.approx(100 / 0.05, rel=0.01)


def test_with_many_workers_dispatches_of_auto_are_longer(costs, cluster):
    many = costs(steps_per_dispatch="auto", compute_seconds=0.1, chief_seconds=0.001)
    trained = simulate(many, cluster(300), steps=20_000)  # the first dispatches are short
    size = len(trained.seconds) / trained.dispatches
    assert size == pytest.approx(trained.steps_per_second / 200, rel=0.2), "200 dispatches a second of all workers"
    assert size > 1.4 * trained.steps_per_second / 300 * 0.5, "and not half a second of one"


def test_what_the_chief_does_all_the_time_is_missing_to_the_others(costs, cluster):
    watched = costs(chief_background_cores=0.2)
    assert simulate(watched, cluster(5, cores=2)).steps_per_second == pytest.approx(1.8, rel=0.01)
    assert predict(watched, cluster(5, cores=2)).utilisation["cores"] == pytest.approx(1, rel=0.01)
    assert predict(watched, cluster(5)).utilisation["chief"] == 0.2


@pytest.mark.parametrize("cores", [None, 20])
def test_exponential_times_give_the_throughput_of_the_machine_repairman(costs, cluster, cores):
    exponential = costs(compute_cv=1.0, pull_fixed_seconds=0.05, push_fixed_seconds=0.05, server_cv=1.0)
    trained = simulate(exponential, cluster(10, cores=cores), steps=10_000)
    assert trained.steps_per_second == pytest.approx(machine_repairman(10, 1.0, 0.1), rel=0.02)


def test_workers_that_compute_share_the_cores(costs, cluster):
    trained = simulate(costs(compute_cv=0.3), cluster(5, cores=2), steps=6_000)
    assert trained.steps_per_second == pytest.approx(2, rel=0.01)
    assert predict(costs(), cluster(5, cores=2)).utilisation["cores"] == pytest.approx(1, rel=0.01)


@pytest.mark.parametrize("cores", [None, 50])
def test_a_round_takes_as_long_as_the_slowest_worker(costs, cluster, cores):
    exponential = costs(compute_cv=1.0)
    workers = 8
    slowest = sum(1 / k for k in range(1, workers + 1))  # the expected largest of exponential times of mean 1
    trained = simulate(exponential, cluster(workers, cores=cores, mode="sync-ps"), steps=6000)
    assert workers * seconds_per_step(trained) == pytest.approx(slowest, rel=0.04)
    assert set(trained.staleness) == {0}


@pytest.mark.parametrize("cores", [None, 1])
def test_what_rounds_take_beside_async_is_in_each_gradient(costs, cluster, cores):
    in_rounds = costs(round_push_seconds=0.1)
    trained = simulate(in_rounds, cluster(1, cores=cores, mode="sync-ps"), steps=400)
    assert seconds_per_step(trained) == pytest.approx(1 + 0.1, rel=1e-3)
    assert seconds_per_step(simulate(in_rounds, cluster(1, cores=cores), steps=400)) == pytest.approx(1, rel=1e-3)


@pytest.mark.parametrize("cores", [None, 50])
def test_backup_workers_spare_a_round_its_slowest(costs, cluster, cores):
    slow = parse_stragglers("0:10x")
    with_backup = cluster(4, mode="sync-ps", backup_workers=1, stragglers=slow, cores=cores)
    trained = simulate(costs(), with_backup, steps=2000)
    assert trained.gradients_per_second == pytest.approx(3, rel=0.02)
    assert (trained.staleness == -1).any(), "the late gradients are dropped"
    waiting = simulate(costs(), cluster(4, mode="sync-ps", stragglers=slow, cores=cores), steps=400)
    assert waiting.gradients_per_second == pytest.approx(4 / 10, rel=0.02)


@pytest.mark.parametrize("cores", [None, 2])
def test_every_applied_gradient_makes_one_version_of_every_shard(costs, cluster, cores):
    trained = simulate(costs(compute_cv=0.5, push_fixed_seconds=0.1), cluster(6, 3, cores=cores), steps=500)
    made = trained.versions
    assert len(trained.seconds) == 500 and (made >= 500).all() and (made <= 500 + 6).all()
    rounds = simulate(costs(compute_cv=0.5), cluster(6, cores=cores, mode="sync-ps", backup_workers=2), steps=500)
    assert rounds.versions[0] == np.count_nonzero(rounds.staleness >= 0) // 4


@pytest.mark.parametrize("cores", [None, 2])
def test_rounds_on_several_servers_are_refused_instead_of_counted_wrongly(costs, cluster, cores):
    with pytest.raises(AssertionError, match="mode sync-ps is simulated only with 1 parameter server"):
        simulate(costs(), cluster(2, 2, cores=cores, mode="sync-ps"), steps=8)


@pytest.mark.parametrize("cores", [None, 2])
def test_the_same_seed_gives_the_same_training_and_another_one_does_not(costs, cluster, cores):
    varied = costs(compute_cv=0.5, server_cv=0.5, push_fixed_seconds=0.1)
    one, again, other = (simulate(varied, cluster(5, 2, cores=cores, seed=seed), steps=300) for seed in (3, 3, 4))
    assert np.array_equal(one.seconds, again.seconds) and np.array_equal(one.staleness, again.staleness)
    assert not np.array_equal(one.seconds, other.seconds)


@pytest.mark.parametrize("cores", [None, 8])
def test_a_straggler_slows_itself_alone(costs, cluster, cores):
    slow = cluster(4, stragglers=parse_stragglers("1:5x;2:+1s"), cores=cores)
    assert simulate(costs(), slow).steps_per_second == pytest.approx(1 + 1 + 1 / 5 + 1 / 2, rel=0.01)
