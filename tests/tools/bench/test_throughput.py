"""Rates of arms, in turns, and the table of them."""

import json

import pytest
from rich.console import Console

from ps_cluster.config import build_config
from ps_cluster.errors import RunFailed
from ps_cluster.notices import ignore
from ps_cluster.tools.bench import arms, throughput
from ps_cluster.tools.bench.throughput import BenchJob, Benchmark, Result, Spread
from tests.helpers.data import only_named

CASE = build_config(overrides={"training.steps": 60, "cluster.workers": 3})


def printed(chosen, about, rates, width=100):
    console = Console(record=True, width=width)
    benchmark = Benchmark([], 0, only_named(), "examples", throughput.columns_of(chosen, "examples"))
    throughput.print_table(benchmark, [Result(about, chosen, rates)], console)
    return console.export_text()


def test_arms_are_measured_in_turns_and_what_is_known_is_written(tmp_path):
    ran, lines = [], []

    def rate_of(arm, config, packed):
        ran.append((arm.name, config.mode.name))
        return 1000.0 * len(ran)

    job = BenchJob({"weights": 1_000}, CASE, [arms.SINGLE, arms.SYNC], examples_counted_as_one=10)
    columns, output = throughput.columns_of(job.arms, "steps"), tmp_path / "out.json"
    benchmark = Benchmark([job], 1, only_named("cifar10"), "steps", columns)
    (result,) = throughput.report(benchmark, 2, output, Console(quiet=True), notify=lines.append, rate=rate_of)
    assert ran == [("single", "async"), ("sync", "sync")] * 2
    assert result == Result({"weights": 1_000}, job.arms, {"single": [100, 300], "sync": [200, 400]})
    assert lines[0] == "weights 1,000: round 1/2: single 100 steps/s"
    written = json.loads(output.read_text())
    assert (written["dataset"], written["unit"]) == ("cifar10", "steps")
    rates = {"median": 200, "min": 100, "max": 300, "n": 2, "values": [100, 300]}
    single, sync = written["rows"]
    assert single == {"weights": 1_000, "arm": "single", "rate": rates}, "no ratio to itself"
    assert (sync["arm"], sync["rate"]["median"], sync["first_to_this"]["values"]) == ("sync", 300, [0.5, 0.75])


def test_a_run_that_was_over_before_it_had_a_rate_is_refused():
    job = BenchJob({}, CASE, [arms.SINGLE])
    benchmark = Benchmark([job], 1, only_named(), "steps", ())
    with pytest.raises(RunFailed, match="arm single measured no rate in 60 updates: set a larger training.steps"):
        list(throughput.measure(benchmark, 1, notify=ignore, rate=lambda *_: None))


@pytest.mark.parametrize("end", [RunFailed("arm single failed"), KeyboardInterrupt()])
def test_finished_cases_are_shown_and_written_if_a_later_one_fails_or_the_user_stops(tmp_path, end):
    rates, console = iter([100.0, 200.0]), Console(record=True, width=100)

    def rate_of(arm, config, packed):
        if (rate := next(rates, None)) is None:
            raise end
        return rate

    jobs = [BenchJob({"network": name}, CASE, [arms.SINGLE]) for name in ("first", "second", "third")]
    columns = throughput.columns_of([arms.SINGLE], "images")
    benchmark = Benchmark(jobs, 3, only_named(), "images", columns)
    with pytest.raises(type(end)):
        throughput.report(benchmark, 1, tmp_path / "out.json", console, notify=ignore, rate=rate_of)
    *_, first, second, last = console.export_text().splitlines()
    assert (first.split()[:3], second.split()[:3]) == (["first", "single", "100"], ["second", "single", "200"])
    assert last == "unfinished: 2 of 3 cases were measured"
    assert [row["network"] for row in json.loads((tmp_path / "out.json").read_text())["rows"]] == ["first", "second"]


def test_a_benchmark_without_a_finished_case_prints_no_table():
    console, job = Console(record=True), BenchJob({}, CASE, [arms.SINGLE])
    benchmark = Benchmark([job], 1, only_named(), "images", ())
    with pytest.raises(RunFailed):
        throughput.report(benchmark, 1, None, console, notify=ignore, rate=lambda *_: None)
    assert console.export_text() == ""


def test_a_ratio_is_taken_within_each_round():
    rates = {"single": [100.0, 200.0, 50.0], "cluster": [90.0, 100.0, 50.0]}
    _, ratio = throughput.columns_of([arms.SINGLE, arms.CLUSTER], "images")
    result = Result({}, [arms.SINGLE, arms.CLUSTER], rates)
    assert ratio.spread(result, arms.SINGLE) == Spread(median=0.9, min=0.5, max=1.0, n=3, values=[0.9, 0.5, 1.0])
    assert ratio.spread(result, arms.CLUSTER) is None


def test_the_table_has_a_line_for_each_arm_with_the_ratio_of_the_cluster_to_it():
    chosen, about = [arms.SINGLE, arms.CLUSTER], {"network": "cifar_tf_cnn", "weights": 1_000}
    rates = {"single": [100.0, 200.0, 50.0], "cluster": [90.0, 100.0, 50.0]}
    text = printed(chosen, about, rates, width=40)  # cuts nothing off
    assert "examples/s" in text and "share kept" not in text
    *_, single, cluster = (line.split() for line in text.splitlines())
    assert single == ["cifar_tf_cnn", "1,000", "single", "100", "(50–200)", "0.90", "(0.50–1.00)"]
    assert cluster == ["cifar_tf_cnn", "1,000", "cluster", "90", "(50–100)"]


def test_what_a_slowed_arm_keeps_is_shown_beside_the_ideal():
    chosen = arms.with_straggler([arms.CLUSTER], "2:5x", workers=3)
    rates = {"cluster": [300.0, 100.0, 100.0], "cluster+straggler": [220.0, 55.0, 66.0]}
    _, same_without_stragglers = chosen
    assert throughput.kept(rates, same_without_stragglers) == pytest.approx([2.2 / 3, 0.55, 0.66])
    assert throughput.kept_of_ideal(rates, same_without_stragglers) == pytest.approx([1, 0.75, 0.9])
    *_, line, last = printed(chosen, {"network": "airbench", "precision": "float32"}, rates).splitlines()
    assert line.split()[2:] == ["cluster+straggler", "66", "(55–220)", "0.66", "(0.55–0.73)", "0.90", "(0.75–1.00)"]
    assert last == (
        "share of the rate that is kept with slow workers: the rate of cluster+straggler ÷ the rate of cluster; "
        "this would be 0.73 if no worker waited for a slow one"
    )
