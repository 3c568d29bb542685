"""A run whose workers compute on GPUs, as real processes. A second logical processor stands in for each GPU."""

import os
import re
import subprocess
import sys

import pytest

from ps_cluster.files.json_files import read_json
from ps_cluster.runs.result_rows import Summary
from tests.helpers.bad_input import PROJECT, assert_one_line
from tests.helpers.processes import assert_none_left
from tests.helpers.real_cluster import start_run

pytestmark = [pytest.mark.cluster, pytest.mark.exhaustive]
LOGGED = re.compile(r"own_computation/\S*MatMul\S*: \(\w+\): /job:worker/replica:0/task:(\d)/device:(\S+)")
SEES = re.compile(r"sees CUDA_VISIBLE_DEVICES=(\S+)")
TWO = {"CUDA_VISIBLE_DEVICES": "7,9"}


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_each_worker_computes_the_network_on_its_gpu_and_nobody_else_sees_one(mode, tmp_path):
    argv = [sys.executable, "-m", "tests.helpers.second_processor_task", tmp_path / "run", f"mode.name={mode}"]
    # What TensorFlow prints about the device of each operation is no error.
    env = os.environ | TWO | {"TF_CPP_MIN_LOG_LEVEL": "0"}
    ended = subprocess.run(list(map(str, argv)), cwd=PROJECT, env=env, capture_output=True, text=True, timeout=200)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    summary = read_json(tmp_path / "run" / "summary.json", Summary)
    assert summary.proof.holds and summary.updates.applied == 30 and len(summary.workers) == 3
    logs = {file.stem: file.read_text() for file in (tmp_path / "run" / "logs").glob("*-?.log")}
    for worker, gpu in enumerate(("7", "9", "7")):
        log = logs.pop(f"worker-{worker}")
        assert SEES.findall(log) == [gpu]
        assert set(LOGGED.findall(log)) == {(str(worker), "CPU:1")}
    assert {seen for log in logs.values() for seen in SEES.findall(log)} == {"-1"}
    assert_none_left(tmp_path)


def test_a_tensorflow_without_cuda_ends_the_run_with_what_to_install(tmp_path):
    process = start_run(tmp_path / "run", "--gpus", "auto", "--workers", 1, env=TWO)
    _, errors = process.communicate(timeout=100)
    install = "pip install 'tensorflow[and-cuda]=="
    assert_one_line(process.returncode, errors, ["cluster.gpus", "CUDA_VISIBLE_DEVICES=7", install])
    assert_none_left(tmp_path)
