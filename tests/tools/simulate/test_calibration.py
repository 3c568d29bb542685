import json

import pytest

from ps_cluster.errors import UserError
from ps_cluster.files.json_rows import append_row
from ps_cluster.runs.result_rows import ProgressRow
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.tools.simulate import calibration
from ps_cluster.tools.simulate.check import check
from ps_cluster.tools.simulate.prediction import simulate
from tests.tools.simulate import fake_run


@pytest.fixture
def base(costs):
    """What a calibration takes from elsewhere."""
    return costs(
        pull_seconds_per_parameter=1e-7, apply_seconds_per_parameter=2e-7, startup_cpu_seconds=2.0, chief_seconds=4e-4
    )


def calibrated(root, base, **settings):
    return calibration.calibrate(calibration.read_run(fake_run.write_run(root, **settings)), base)


def test_the_costs_of_a_run_are_its_wall_seconds_and_processor_seconds(tmp_path, base):
    found = calibrated(tmp_path / "run", base)
    assert (found.parameters, found.bytes_per_parameter, found.examples_per_step) == (fake_run.PARAMETERS, 4, 128)
    assert found.compute_seconds == pytest.approx(fake_run.COMPUTE_S) and found.compute_cv == pytest.approx(0, abs=1e-3)
    assert found.worker_cpu_seconds == pytest.approx(0.011), "without that of the start-up"
    assert found.pull_seconds(1) == pytest.approx(0.0015) and found.push_seconds(1) == pytest.approx(0.0005)
    assert found.pull_seconds(4) == pytest.approx(0.0015 - 0.75 * 1e-7 * fake_run.PARAMETERS)
    assert found.pull_delay_seconds == pytest.approx(0.0015) and found.push_delay_seconds == pytest.approx(0.0005)


def test_of_tables_a_step_moves_its_distinct_rows_and_a_server_holds_all_of_them_with_their_slots(tmp_path, base):
    found = calibrated(tmp_path / "run", base, table_weights=40_000, optimizer__rule="adagrad")
    assert found.parameters == fake_run.PARAMETERS and found.moved == fake_run.PARAMETERS + 20
    assert found.wire_bytes == 4 * fake_run.PARAMETERS + 5 * (8 + 4 * 4)
    assert found.pull_seconds(1) == pytest.approx(0.0015) and found.push_seconds(1) == pytest.approx(0.0005)
    assert found.pull_seconds(4) == pytest.approx(0.0015 - 0.75 * 1e-7 * (fake_run.PARAMETERS + 20))
    assert [found.tables.server_bytes("async", servers) for servers in (1, 4)] == [40_000 * 4 * 2, 10_000 * 4 * 2]
    assert found.tables.server_bytes("sync-ps", 1) == 40_000 * 4 * 3, "with the sum of a round"
    other = calibration.read_run(
        fake_run.write_run(tmp_path / "other", table_weights=80_000, optimizer__rule="adagrad")
    )
    with pytest.raises(UserError, match="weights in tables: got 80000, but the costs were measured with 40000"):
        check(found, other, cores=2)


@pytest.mark.parametrize("dispatch", fake_run.SIZES)
def test_the_gaps_of_a_run_are_its_dispatches_whether_their_size_was_given_or_not(tmp_path, base, dispatch):
    found = calibrated(tmp_path / "run", base, dispatch=dispatch)
    assert found.steps_per_dispatch == dispatch
    assert found.step_gap_seconds == pytest.approx(0.002, rel=0.01)
    assert found.dispatch_delay_seconds == pytest.approx(0.002 - 0.0004, rel=0.01)
    of_step = 0.0005 - 0.0004 / fake_run.SIZES[dispatch]
    assert found.chief_background_cores == pytest.approx(of_step / fake_run.step_seconds(dispatch), rel=1e-3)


@pytest.mark.parametrize("dispatch", fake_run.SIZES)
@pytest.mark.parametrize("cores", [None, 2])
def test_what_was_calibrated_takes_as_long_as_the_run(tmp_path, base, cluster, cores, dispatch):
    found = calibrated(tmp_path / "run", base, dispatch=dispatch)
    trained = simulate(found, cluster(1, cores=cores))
    assert 1 / trained.steps_per_second == pytest.approx(fake_run.step_seconds(dispatch), rel=0.01)


def test_a_check_compares_throughput_and_staleness(tmp_path, base):
    found = calibrated(tmp_path / "run", base)
    throughput, staleness = check(found, calibration.read_run(tmp_path / "run"), cores=2)
    assert throughput.name == "examples/s" and abs(throughput.error) < 0.01
    assert staleness.predicted == staleness.measured == 0 and staleness.error is None


def test_a_check_takes_the_cluster_of_the_run(tmp_path, base):
    found = calibrated(tmp_path / "one", base)
    three = fake_run.write_run(tmp_path / "three", cluster__workers=3, cluster__straggler="2:5x")
    throughput, staleness = check(found, calibration.read_run(three), cores=16)
    assert 1.3 < throughput.predicted / throughput.measured < 2.3, "two and a bit of one worker"
    assert staleness.predicted > 1


def test_runs_that_tell_too_little_are_refused(tmp_path, base):
    with pytest.raises(UserError, match="too few to calibrate"):
        calibrated(tmp_path / "short", base, steps=8)
    with pytest.raises(UserError, match="mode.name: got 'sync-ps': give a run of mode async"):
        calibrated(tmp_path / "rounds", base, mode__name="sync-ps")
    summary = tmp_path / "short/summary.json"
    summary.write_text(json.dumps(json.loads(summary.read_text()) | {"processes": []}))
    with pytest.raises(UserError, match="processes is missing"):
        calibration.read_run(tmp_path / "short")
    summary.unlink()
    with pytest.raises(UserError, match="holds no summary.json"):
        calibration.read_run(tmp_path / "short")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"training__batch_size_per_worker": 64}, "examples per step: got 64, but the costs were measured with 128"),
        ({"mode__simulate_workers": 9}, "simulate_workers: got 9"),
        ({"cluster__wire": "bfloat16"}, "bytes of a parameter on the wire: got 2, but the costs were measured with 4"),
        ({"dispatch": 4}, "steps_per_dispatch: got 4, but the costs were measured with auto"),
    ],
)
def test_a_check_refuses_a_run_of_other_steps(tmp_path, base, change, message):
    other = calibration.read_run(fake_run.write_run(tmp_path / "other", **change))
    with pytest.raises(UserError, match=message):
        check(calibrated(tmp_path / "run", base), other, cores=2)


def test_a_run_that_was_resumed_gives_no_costs(tmp_path, base):
    root = fake_run.write_run(tmp_path / "run")
    append_row(RunDir(root).progress, ProgressRow(phase="connecting"))
    with pytest.raises(UserError, match="its training began 2 times"):
        calibration.calibrate(calibration.read_run(root), base)
