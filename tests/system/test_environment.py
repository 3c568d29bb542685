"""The environment variables of a task, in addition to those of the process that starts it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ps_cluster.launch.topology import ClusterTopology
from ps_cluster.system import environment

CLUSTER = {"chief": ["head.example:1"], "ps": ["[::1]:2"], "worker": ["10.0.0.1:3", "10.0.0.1:4"]}
HOSTS = "head.example,::1,10.0.0.1"


@pytest.mark.parametrize(
    ("given", "direct"),
    [
        ({}, HOSTS),
        ({"http_proxy": "http://proxy:8080"}, HOSTS),
        ({"no_proxy": "intra.example, 10.0.0.1"}, f"intra.example,10.0.0.1,{HOSTS.removesuffix(',10.0.0.1')}"),
        ({"no_proxy": "intra.example", "no_grpc_proxy": "calls.example"}, f"calls.example,{HOSTS}"),
        ({"no_grpc_proxy": ""}, HOSTS),
    ],
)
def test_connections_to_all_hosts_of_the_cluster_are_direct_and_other_programs_keep_their_proxy(given, direct):
    changed = environment.bypassing_proxies(given, ClusterTopology(CLUSTER).hosts)
    assert changed == given | {"no_grpc_proxy": direct}


OTHERS = {
    "KERAS_BACKEND": "torch", "KERAS_NNX_ENABLED": "true", "TF_USE_LEGACY_KERAS": "1", "TF_DETERMINISTIC_OPS": "1",
}  # fmt: skip
KERAS_FILE = {"backend": "jax", "floatx": "float64", "epsilon": 1e-7, "image_data_format": "channels_first"}


def test_a_task_imports_keras_on_tensorflow_whatever_other_programs_of_the_user_take(tmp_path):
    (tmp_path / "keras.json").write_text(json.dumps(KERAS_FILE))
    asked = (
        "from ps_cluster.quiet_import import import_tensorflow; import_tensorflow(); import keras; "
        "c = keras.config; print(c.backend(), c.floatx(), c.image_data_format())"
    )
    given = {**os.environ, **OTHERS, "KERAS_HOME": str(tmp_path)}
    env = environment.for_child(given)
    told = subprocess.run((sys.executable, "-c", asked), env=env, capture_output=True, text=True, timeout=120)
    assert told.stdout.split() == ["tensorflow", "float32", "channels_last"], told.stderr


def test_each_wish_that_tasks_do_not_fulfil_is_told_in_a_line(tmp_path):
    (tmp_path / "keras.json").write_text(json.dumps(KERAS_FILE))
    lines = list(environment.not_used(OTHERS | {"KERAS_HOME": str(tmp_path)}))
    assert [line.partition(" is not used: ")[0] for line in lines] == [
        *(f"{name}={value}" for name, value in OTHERS.items()),
        *(f"'{tmp_path}/keras.json': {name}={value}" for name, value in KERAS_FILE.items() if name != "epsilon"),
    ]


@pytest.mark.parametrize("content", ["", "{", '{"backend": "tensorflow", "floatx": "float32"}', '{"epsilon": 1e-07}'])
def test_nothing_is_told_of_an_environment_that_asks_for_nothing_else(tmp_path, content):
    (tmp_path / "keras.json").write_text(content)
    usual = {"KERAS_BACKEND": "tensorflow", "TF_USE_LEGACY_KERAS": "0", "TF_DETERMINISTIC_OPS": "", "OTHER": "1"}
    assert list(environment.not_used(usual | {"KERAS_HOME": str(tmp_path)})) == []
    assert list(environment.not_used(usual | {"KERAS_HOME": str(tmp_path / "absent")})) == []


def test_as_in_keras_the_home_of_a_user_who_may_not_write_there_does_not_count(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: (path, mode) != (str(tmp_path), os.W_OK))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert environment.keras_home({}) == Path("/tmp/.keras")
    monkeypatch.setenv("HOME", "/")
    assert environment.keras_home({}) == Path("/.keras")
