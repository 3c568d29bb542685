"""With an accelerator, the network is computed there and all else on the processor. A second logical processor stands in."""

import json
import os
import subprocess
import sys

import pytest

from ps_cluster.config import build_config
from ps_cluster.errors import UserError
from ps_cluster.system.environment import for_tensorflow
from ps_cluster.training.devices import accelerator_of, check_gpus
from tests.helpers.bad_input import PROJECT
from tests.helpers.exhaustive import mostly

pytestmark = pytest.mark.slow
MODES = ("async", "diloco", "sync")
TRANSFERS = ("_Send", "_Recv", "_HostSend", "_HostRecv", "Identity", "NoOp", "Const", "_Arg", "_Retval")
# Trains in a mode, and prints what it has done: the device, type and name of each operation among it.
SCRIPT = """
import json, sys
from pathlib import Path
import tensorflow as tf
(processor,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(processor, [tf.config.LogicalDeviceConfiguration()] * 2)
from ps_cluster.private_names import recorded_graphs
from tests.helpers.local_training import train
folder, mode = sys.argv[1:]
with recorded_graphs() as graphs:
    trained = train(
        Path(folder) / mode, "CPU:1",
        **{"mode.name": mode, "cluster.gpus": "auto", "optimizer.rule": "nesterov", "training.steps": 6},
    )
nodes = {(node.device.rpartition("device:")[2], node.op, node.name) for graph in graphs for node in graph.node}
print(json.dumps({"nodes": sorted(nodes), "problems": trained.problems, "recomputed": len(trained.recomputed)}))
"""


@pytest.mark.parametrize("mode", mostly(MODES, "async"))
def test_only_the_network_is_computed_on_the_accelerator(mode, tmp_path):
    argv = [sys.executable, "-c", SCRIPT, tmp_path, mode]
    env = for_tensorflow({**os.environ, "PYTHONPATH": str(PROJECT)})
    done = subprocess.run(argv, capture_output=True, text=True, timeout=270, env=env)
    assert done.returncode == 0, done.stderr[-3000:]
    placed = json.loads(done.stdout.splitlines()[-1])
    nodes = [node for node in placed["nodes"] if node[1] not in TRANSFERS]
    of_network = {device for device, kind, name in nodes if "own_computation" in name and "Conv2D" in kind}
    assert of_network == {"CPU:1"}, of_network
    elsewhere = [node for node in nodes if "CPU:1" in node[0] and "own_computation" not in node[2]]
    assert {kind for _, kind, _ in elsewhere} <= {"ConcatV2"}, elsewhere[:20]
    assert placed["problems"] == [] and placed["recomputed"] > 0


def test_the_accelerator_is_the_first_gpu_of_those_who_ask_for_gpus():
    assert accelerator_of(build_config(None, {"cluster.gpus": "auto"})) == "GPU:0"
    assert accelerator_of(build_config(None, {})) is None


@pytest.mark.parametrize(
    ("environment", "of_them"), [({"CUDA_VISIBLE_DEVICES": "1"}, "CUDA_VISIBLE_DEVICES=1"), ({}, "the GPUs")]
)
def test_a_tensorflow_that_sees_no_gpu_is_told_with_how_to_install_one_that_does(environment, of_them):
    with pytest.raises(UserError) as error:
        check_gpus(environment)
    start = f"cluster.gpus: got 'auto', but TensorFlow sees none of {of_them}: leave --gpus out, or install"
    assert str(error.value).startswith(start) and "pip install 'tensorflow[and-cuda]==2." in str(error.value)
