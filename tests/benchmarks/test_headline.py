from benchmarks import headline, records
from ps_cluster.tools.bench.throughput import Spread


def test_the_default_run_of_today_has_the_settings_of_the_one_that_was_measured():
    again = "measure it again: python -m benchmarks.headline --parts default_run --data-dir DATA"
    assert records.read("default_run").settings == headline.default_settings(), again


def test_the_cluster_is_compared_with_the_fastest_pytorch_arm_of_each_round(monkeypatch):
    measured = []

    def bench(arms, model, rounds, values, **options):
        measured.append((arms, model, rounds, values, options["ddp_python"]))
        ratios = {"ddp_cores": [0.9, 1.2], "ddp_compiled": [1.0, 0.8]}
        return {f"cluster_to_{arm}": Spread.of(ratios.get(arm, [0.5, 0.6])) for arm in arms[1:]}

    monkeypatch.setattr(headline, "bench", bench)
    data = {"data.dataset": "cifar10"}
    without, both = (headline.compared_with_others(2, data, python) for python in (None, "python"))
    arms = ["cluster", "limit", "single", "sync_cores", "per_variable"]
    assert measured == [
        (arms, "airbench", 2, {**data, "training.steps": 60}, None),
        ([*arms, "ddp_cores", "ddp_compiled"], "airbench", 2, {**data, "training.steps": 60}, "python"),
    ]
    assert without == both[:-1]
    assert both[-1] == {"figure": "images/s, cluster ÷ PyTorch DDP", "values": [0.9, 0.8], "digits": 2}


def test_the_speed_that_remains_with_a_slow_worker_is_given_in_percent(monkeypatch):
    kept = {"cluster+straggler_to_cluster": Spread.of([0.5]), "sync+straggler_to_sync": Spread.of([0.25])}
    monkeypatch.setattr(headline, "bench", lambda *_, **options: kept if options == {"straggler": "2:5x"} else {})
    assert [row["values"] for row in headline.with_straggler(1, {})] == [[50.0], [25.0]]
