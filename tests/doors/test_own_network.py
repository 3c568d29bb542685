"""A network of a user's own that can't be built or trained. One that is trained well is in test_doors.py."""

import json
import signal

import psutil
import pytest
from click.testing import CliRunner

from ps_cluster.cli.main import main
from tests.helpers.processes import assert_none_left, wait_until
from tests.helpers.real_cluster import small, start, start_run, summary_of


def network(*layers):
    """Return the program of a network. It imports Keras where it is built, so that the launcher does not."""
    made = ", ".join(f"keras.layers.{layer}" for layer in layers)
    return f"def build():\n    import keras\n    return keras.Sequential([{made}])\n"


@pytest.mark.cluster
def test_a_network_that_diverges_fails_the_run_and_none_of_its_weights_is_the_best_model(tmp_path):
    # No ReLU: oneDNN's ReLU turns NaN into 0, and the losses would look finite again. Huge weights and a high rate make
    # the first update infinite, so only the initial weights, which are scored where there is time, are finite.
    large = "Dense(32, kernel_initializer=keras.initializers.RandomNormal(stddev=1e32))"
    (tmp_path / "my.py").write_text(network("Flatten()", large, "Dense(10)"))
    model = ("--model", f"{tmp_path}/my.py:build", "--optimizer", "sgd", "--learning-rate", 1e6)
    run = start("run", "--run-dir", tmp_path / "run", *small(*model, "--steps", 100_000, "--mode", "single"))
    told, errors = run.communicate(timeout=120)
    assert_none_left(tmp_path / "run")
    summary = summary_of(tmp_path / "run")
    assert run.returncode == 1 and summary["outcome"] == "diverged" and summary["proof"]["holds"], told
    assert 0 < summary["bad_losses"] <= summary["updates"]["applied"] < 100_000, "it goes on with nothing"
    assert "the training diverged: after" in errors and "--resume" not in told
    best = tmp_path / "run" / "best" / "best.json"
    assert not best.exists() or json.loads(best.read_text())["step"] == 0
    again = CliRunner().invoke(main, ["run", "--resume", f"{tmp_path}/run", "--code", f"{tmp_path}/my.py"])
    assert "can't be resumed: the training diverged" in again.stderr and again.exit_code == 2


@pytest.mark.cluster
def test_a_network_that_can_not_be_trained_starts_nothing_and_leaves_nothing(tmp_path):
    (tmp_path / "my.py").write_text(network("Flatten()", "Dense(1)"))
    process = start_run(tmp_path / "run", "--model", f"{tmp_path}/my.py:build")
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 2
    assert [line for line in errors.splitlines() if "end it with Dense(10)" in line] == errors.splitlines()[-1:]
    assert "Traceback" not in errors and not (tmp_path / "run").exists()


@pytest.mark.cluster
def test_a_network_that_never_ends_to_build_ends_with_the_command(tmp_path):
    (tmp_path / "my.py").write_text(
        "import os, time\nfrom pathlib import Path\n"
        f"def build():\n    Path({str(tmp_path)!r}, 'pid').write_text(str(os.getpid()))\n    time.sleep(600)\n"
    )
    process = start_run(tmp_path / "run", "--model", f"{tmp_path}/my.py:build")
    wait_until(lambda: (tmp_path / "pid").is_file() and (tmp_path / "pid").read_text())
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130
    wait_until(lambda: not psutil.pid_exists(int((tmp_path / "pid").read_text())))
    assert not (tmp_path / "run").exists()
