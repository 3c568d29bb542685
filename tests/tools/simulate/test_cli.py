"""`cli.py simulate`, from the command line to what it prints and writes."""

import json

import pytest
from click.testing import CliRunner

from ps_cluster.cli.main import main
from ps_cluster.files.yaml_files import dump_yaml, parse_yaml
from ps_cluster.runs.machine_rows import MachineRow
from ps_cluster.tools.simulate import training
from ps_cluster.tools.simulate.costs import SHIPPED_COSTS, read_costs
from tests.tools.simulate.fake_run import write_run


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Nothing here asks for a steady mean."""
    monkeypatch.setattr(training, "FEWEST_STEPS", 1000)


def simulate(*arguments):
    return CliRunner().invoke(main, ["simulate", *map(str, arguments)])


def test_every_cluster_asked_for_is_a_line_that_fits_80_columns(tmp_path):
    file = tmp_path / "all.json"
    result = simulate("--workers", "3,10", "--ps", "1, 2", "--json", file)
    assert result.exit_code == 0, result.output
    header, *lines = result.output.split("OTHER PROCESSOR")[0].splitlines()
    assert "efficiency" in header and len(lines) == 4 + 2
    assert all(len(line) <= 80 for line in [header, *lines[:4]])
    found = json.loads(file.read_text())
    pairs = [(one["workers"], one["parameter_servers"]) for one in found["predictions"]]
    assert pairs == [(3, 1), (3, 2), (10, 1), (10, 2)]
    assert set(found["predictions"][0]["utilisation"]) == {"worker", "ps", "ps link", "chief"}
    assert found["setting"]["latency_us"] == 50 and found["costs"]["parameters"] == 122570
    assert json.loads(simulate("--workers", "3,10", "--ps", "1, 2", "--json", "-").stdout) == found


def test_costs_of_another_processor_are_said_with_the_commands_that_measure_this_one(tmp_path):
    own = tmp_path / "own.yaml"
    run = write_run(tmp_path / "run", startup_s=read_costs(SHIPPED_COSTS).startup_cpu_seconds)
    assert simulate("--from", run, "--workers", 3, "--ps", 1, "--save-costs", own).exit_code == 0
    assert read_costs(own).processor == "Some EPYC (avx512_bf16)"
    checked = check_against_other_costs(tmp_path, run)
    assert "OTHER PROCESSOR: the costs were measured on Another, and this is Some EPYC (avx512_bf16)" in checked
    assert "python cli.py run --workers 1 --ps 1 --model tutorial_cnn --precision float32 --batch-size 128" in checked
    assert f"python cli.py simulate --from runs/costs --check {run}" in checked


def check_against_other_costs(tmp_path, run):
    """Return what `--check` says with the costs of `run` on another processor."""
    other = write_run(tmp_path / "other", startup_s=read_costs(SHIPPED_COSTS).startup_cpu_seconds)
    summary = json.loads((other / "summary.json").read_text())
    (other / "summary.json").write_text(json.dumps(summary | {"machine": {"processor": "Another"}}))
    result = simulate("--from", other, "--check", run, "--cores", 2)
    assert result.exit_code == 0, result.output
    return result.output


def test_of_tables_a_plan_says_what_a_step_pulls_and_what_a_server_holds(tmp_path):
    run = write_run(tmp_path / "run", table_weights=40_000_000, optimizer__rule="adagrad")
    printed = simulate("--from", run, "--workers", 2, "--ps", "1,4").output
    assert "tables/ps" in printed and "0.32 GB" in printed and "0.08 GB" in printed
    assert "a step pulls 0.00 MB, and pushes as much: 20 of the 40,000,000 weights in tables, and all" in printed
    refused = simulate("--from", run, "--mode", "diloco")
    assert refused.exit_code == 2 and "which are simulated only in modes async and sync-ps" in refused.output


def test_a_plan_says_when_its_costs_are_of_another_processor_than_this(monkeypatch):
    monkeypatch.setattr(
        "ps_cluster.tools.simulate.simulation_run.machine.describe", lambda: MachineRow(processor="Another")
    )
    assert "OTHER PROCESSOR" in simulate("--workers", 3, "--ps", 1).output
    known = MachineRow(processor="AMD EPYC", avx512_bf16=True)
    monkeypatch.setattr("ps_cluster.tools.simulate.simulation_run.machine.describe", lambda: known)
    assert "OTHER PROCESSOR" not in simulate("--workers", 3, "--ps", 1).output


@pytest.mark.parametrize(
    "options",
    [
        ("--ps", 1, "--mode", "sync-ps"),
        ("--ps", 1, "--mode", "diloco", "--local-steps", 8),
        ("--ps", 1, "--one-machine", "--cores", "4"),
        ("--mode", "sync"),
    ],
)
def test_other_clusters_are_simulated_too(options):
    result = simulate("--workers", 4, *options)
    assert result.exit_code == 0 and len(result.output.split("OTHER PROCESSOR")[0].splitlines()) == 4, result.output


def test_costs_are_saved_and_a_run_is_checked(tmp_path):
    startup = read_costs(SHIPPED_COSTS).startup_cpu_seconds
    run = write_run(tmp_path / "run", startup_s=startup)
    costs, file = tmp_path / "costs.yaml", tmp_path / "check.json"
    result = simulate("--from", run, "--check", run, "--cores", 2, "--save-costs", costs, "--json", file)
    assert result.exit_code == 0, result.output
    assert "predicted" in result.output and "examples/s" in result.output and "mean staleness" in result.output
    assert read_costs(costs).measured_on == "run: tutorial_cnn, float32, workers 1, ps 1, steps 400"
    assert "Some EPYC (avx512_bf16)" in result.output and "OTHER PROCESSOR" not in result.output
    quantities = json.loads(file.read_text())["quantities"]
    assert abs(quantities[0]["relative_error"]) < 0.02


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--workers", "10,many"], "'many' is not a whole number"),
        (["--workers", "20000"], "20000 is not in the range 1<=x<=10000"),
        (["--ps", "0"], "0 is not in the range"),
        (["--link-gbps", "0"], "0.0 is not in the range"),
        (["--straggler", "quick"], "'quick' is no straggler"),
        (["--workers", "2,9", "--straggler", "2:5x"], "with --workers 2 the last worker is worker 1"),
        (["--workers", "10,010"], "'010'"),
        (["--link-gbps", "1e300"], "1e+300"),
        (["--backup-workers", "1"], "--backup-workers: got 1: it needs --mode sync-ps"),
        (["--local-steps", "8"], "--local-steps: got 8: only modes diloco, elastic, sync-diloco take local"),
        (["--cores", "2"], "--cores: got 2: it needs --one-machine or --check"),
        (["--mode", "sync", "--one-machine"], "--mode: got 'sync'"),
        (["--mode", "sync", "--ps", "1,4"], "--ps: got 1,4: mode sync has no parameter servers"),
        (["--one-machine", "--link-gbps", "1"], "--link-gbps: got 1: one machine has no network"),
        (["--mode", "sync-ps", "--one-machine", "--ps", "1,4"], "--ps: got 4"),
        (["--mode", "sync-diloco", "--ps", "1,4"], "--ps: got 4: --mode sync-diloco takes at most 1"),
        (["--from", "nowhere"], "nowhere"),
        (["--check", "nowhere", "--ps", "1"], "--check takes these settings from the run: leave --ps out"),
    ],
)
def test_bad_input_is_one_line_that_names_it(options, named, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = simulate(*options)
    assert result.exit_code == 2
    assert named in result.output and len(result.output.splitlines()) == 1


def test_saved_costs_predict_without_the_run_what_they_predicted_with_it(tmp_path):
    run, costs = (
        write_run(tmp_path / "run", table_weights=40_000_000, optimizer__rule="adagrad"),
        tmp_path / "costs.yaml",
    )
    with_run = simulate("--from", run, "--save-costs", costs, "--workers", 2, "--ps", "1,4", "--json", "-")
    without = simulate("--costs", costs, "--workers", 2, "--ps", "1,4", "--json", "-")
    first, again = json.loads(with_run.stdout), json.loads(without.stdout)
    assert first["costs"] == again["costs"] and first["predictions"] == again["predictions"]
    assert again["setting"]["costs_file"] == str(costs)


def test_a_calibration_takes_from_the_given_costs_what_a_run_cannot_show(tmp_path):
    given, file = read_costs(SHIPPED_COSTS).model_copy(update={"chief_seconds": 0.5}), tmp_path / "costs.yaml"
    file.write_text(dump_yaml(given.model_dump()))
    found = simulate("--costs", file, "--from", write_run(tmp_path / "run"), "--workers", 2, "--ps", 1, "--json", "-")
    costs = json.loads(found.stdout)["costs"]
    assert costs["chief_seconds"] == 0.5 and costs["measured_on"].startswith("run: tutorial_cnn")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("parameters: '5'", "parameters: got '5'"),
        ("compute_seconds: 1e300", "compute_seconds: got 1e+300"),
        ("compute_seconds: 0", "compute_seconds: got 0"),
        ("server_cv: -1", "server_cv: got -1"),
        ("steps_per_dispatch: many", "got 'many'"),
        ("more: 1", "unknown key 'more'"),
    ],
)
def test_a_file_of_costs_with_a_bad_value_is_one_line_that_names_file_key_and_value(tmp_path, change, says):
    file = tmp_path / "costs.yaml"
    file.write_text(dump_yaml(read_costs(SHIPPED_COSTS).model_dump() | parse_yaml(change)))
    assert_one_line_names(file, says)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "measured_on"),
        ("[1, 2]", "must hold keys with values, like 'key: value', but holds a list"),
        ("a: [", "is not YAML"),
        ("\x00", "is not YAML"),
        ("a: 1\n" * 100_000, "more than 65,536 bytes"),
    ],
)
def test_a_file_that_holds_no_costs_is_one_line_that_names_it(tmp_path, content, says):
    file = tmp_path / "costs.yaml"
    file.write_text(content)
    assert_one_line_names(file, says)


def assert_one_line_names(file, says):
    result = simulate("--costs", file)
    assert result.exit_code == 2 and len(result.output.splitlines()) == 1, result.output
    assert str(file) in result.output and says in result.output
