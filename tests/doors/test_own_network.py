"""A network that can't be built or trained. One that is trained well is in test_doors.py."""

import signal

import psutil
import pytest

from ps_cluster.config.user_code import trust_reference
from ps_cluster.runs import checkpoints
from tests.helpers.local_training import train
from tests.helpers.processes import assert_none_left, wait_until
from tests.helpers.real_cluster import start_run

LARGE = """
def build():
    import keras

    large = keras.initializers.RandomNormal(stddev=1e32)
    return keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(32, kernel_initializer=large), keras.layers.Dense(10)])
"""


@pytest.mark.slow
def test_a_training_whose_weights_are_no_numbers_has_diverged_though_its_ledger_is_exact(tmp_path):
    # No ReLU: oneDNN's ReLU turns NaN into 0, and the losses would look finite again.
    (tmp_path / "my.py").write_text(LARGE)
    network = {"model.name": trust_reference(f"{tmp_path}/my.py:build", tmp_path)}
    sgd = {"mode.name": "single", "optimizer.rule": "sgd", "optimizer.learning_rate": 1e6}
    result = train(tmp_path / "training", **network, **sgd).result
    assert result.outcome == "diverged" and result.proof.holds
    assert checkpoints.ended(tmp_path / "training" / "run" / "checkpoints").outcome == "diverged"


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
    assert_none_left(tmp_path)
