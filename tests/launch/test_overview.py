"""What `cluster show` says of a configuration and of a run, without starting anything."""

import json
import os
import subprocess
import sys
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from ps_cluster.cli.main import main
from ps_cluster.config import build_config
from ps_cluster.config.modes import MODES
from ps_cluster.launch import overview
from ps_cluster.launch.cluster_files import from_tf_config
from ps_cluster.launch.cluster_picture import draw_cluster
from ps_cluster.launch.topology import ClusterTopology
from ps_cluster.runs.rows import TaskRow
from tests.helpers.bad_input import PROJECT, assert_one_line


def show(*arguments):
    return CliRunner().invoke(main, ["cluster", "show", *map(str, arguments)])


def as_json(*arguments):
    told = show(*arguments, "--json", "-")
    assert told.exit_code == 0, told.stderr
    return json.loads(told.stdout)


def a_run(folder, *, worker_1="a:4", absent=1):
    """Write the files of a run whose chief is this process; its worker 1 has this address, worker `absent` was given up."""
    (folder / "config.yaml").write_text(build_config(None, {}).to_yaml())
    members = [("chief", 0, "a:1"), ("ps", 0, "a:2")]
    members += [("worker", index, address) for index, address in enumerate(("a:3", worker_1, "a:5"))]
    pids = {"chief": os.getpid()}
    tasks = [
        {"type": kind, "index": index, "pid": pids.get(kind, 2**22 + index), "address": address}
        | {"absent": (kind, index) == ("worker", absent)}
        for kind, index, address in (*members, ("evaluator", 0, None))
    ]
    (folder / "cluster.json").write_text(json.dumps({"launcher": {"pid": 1}, "isolated": True, "tasks": tasks}))
    return folder


def boxes(svg):
    """Return the first line of each task in the picture."""
    space = {"svg": "http://www.w3.org/2000/svg"}
    return [group.find("svg:text", space).text for group in ElementTree.fromstring(svg).findall("svg:g", space)]


@pytest.mark.parametrize("mode", MODES.names)
def test_a_planned_cluster_has_the_tasks_of_its_mode_and_each_tf_config_is_read_back(mode):
    tasks = as_json("--mode", mode, "--set", "optimizer.rule=sgd")["tasks"]
    assert {task["job"] for task in tasks} == {*MODES[mode].cluster.types, "evaluator"}
    for task in tasks:
        _, own = from_tf_config(json.dumps(task["tf_config"]))
        assert (own.type, own.index) == (task["job"], task["index"])
    addresses = [task["address"] for task in tasks if task["job"] != "evaluator"]
    assert len(set(addresses)) == len(addresses) and None not in addresses


def test_with_gpus_the_tasks_that_compute_gradients_have_one_more_device():
    config = build_config(None, {"cluster.gpus": "auto"})
    tasks = overview.of_config(config, {"CUDA_VISIBLE_DEVICES": "0"}).tasks
    assert {task.name: [device.rpartition("device:")[2] for device in task.devices] for task in tasks} == {
        "chief 0": ["CPU:0"], "ps 0": ["CPU:0"], "evaluator 0": ["CPU:0"],
        **{f"worker {worker}": ["CPU:0", "GPU:0"] for worker in range(3)},
    }  # fmt: skip


def test_tf_config_is_printed_as_commands_that_a_shell_runs():
    script = show("--mode", "sync", "--workers", 2, "--tf-config").stdout + 'printf %s "$TF_CONFIG"'
    said = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout
    assert json.loads(said)["task"] == {"type": "evaluator", "index": 0}, "the last one stands"


@pytest.mark.parametrize(("folder", "state"), [("run/tasks", "running"), (".", "gone")])
def test_a_process_is_shown_as_gone_if_it_ended_or_if_another_program_has_its_pid(tmp_path, monkeypatch, folder, state):
    """The pid of the chief is that of this process, which belongs to the run only if it works in the run's folder."""
    (tmp_path / "run/tasks").mkdir(parents=True)
    run = a_run(tmp_path / "run", absent=None)
    monkeypatch.chdir(tmp_path / folder)
    states = {(task["job"], task["index"]): task["state"] for task in as_json(run)["tasks"]}
    assert states.pop(("chief", 0)) == state and set(states.values()) == {"gone"}
    assert "no other program can reach them" in show(run).stdout


def test_a_run_is_shown_without_the_code_of_its_network(tmp_path):
    settings = a_run(tmp_path) / "config.yaml"
    settings.write_text(settings.read_text().replace("name: airbench", "name: /absent/my.py:build"))
    assert "/absent/my.py" in settings.read_text() and len(as_json(tmp_path)["tasks"]) == 6


def test_settings_without_a_mode_are_refused_in_one_line(tmp_path):
    (a_run(tmp_path) / "config.yaml").write_text("workers: 3")
    told = show(tmp_path)
    assert_one_line(told.exit_code, told.stderr, ["config.yaml", "mode.name"])


def test_a_worker_that_was_given_up_has_no_address_and_the_others_keep_their_names(tmp_path):
    tasks = {(task["job"], task["index"]): task for task in as_json(a_run(tmp_path))["tasks"]}
    assert tasks["worker", 1]["tf_config"] is tasks["worker", 1]["address"] is None
    assert tasks["worker", 2]["devices"] == ["/job:worker/task:2/device:CPU:0"]


def test_the_cluster_of_a_run_is_that_which_was_written():
    written = ClusterTopology({"chief": ["a:1"], "worker": ["a:2", "a:3"]}, evaluator=True, absent=frozenset({0}))
    tasks = (*written.tasks, *written.absent_workers)
    rows = [
        TaskRow(type=t.type, index=t.index, pid=1, address=written.address(t), absent=t in written.absent_workers)
        for t in tasks
    ]
    assert ClusterTopology.of_run(rows) == written


@pytest.mark.parametrize("mode", ["async", "sync", "single"])
def test_the_picture_has_a_box_for_each_task(mode):
    view = overview.of_config(build_config(None, {"mode.name": mode}))
    assert boxes(draw_cluster(view)) == [
        f"{task.name} · planned" for kind in ("chief", "worker", "ps", "evaluator") for task in view.of_type(kind)
    ]


def test_the_picture_is_written_and_text_from_a_run_is_no_markup(tmp_path):
    folder = a_run(tmp_path, worker_1="<b>:4", absent=None)
    told = show(folder, "--svg", tmp_path / "c.svg")
    assert told.stdout.endswith(f"written: {tmp_path / 'c.svg'}\n")
    assert "<b>" not in (tmp_path / "c.svg").read_text() and boxes((tmp_path / "c.svg").read_text())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere"], ["'nowhere'", "No such file"]),
        (["."], ["'.'", "config.yaml"]),
        (["--mode", "single", "--ps", "2"], ["cluster.parameter_servers", "2", "single"]),
    ],
)
def test_bad_input_is_one_line(arguments, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = show(*arguments)
    assert_one_line(told.exit_code, told.stderr, says)


def test_settings_beside_a_run_are_refused(tmp_path):
    told = show(a_run(tmp_path), "--workers", 2)
    assert_one_line(told.exit_code, told.stderr, ["--workers", "leave"])


def test_a_run_that_has_started_no_task_says_so(tmp_path):
    (a_run(tmp_path) / "cluster.json").unlink()
    told = show(tmp_path)
    assert_one_line(told.exit_code, told.stderr, ["cluster.json", "no task has started"])


def test_showing_a_cluster_needs_no_tensorflow():
    code = (
        "import sys; from ps_cluster.cli.main import main\n"
        "try: main(['cluster', 'show'])\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "assert not {'tensorflow', 'keras', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=PROJECT, check=True, stdout=subprocess.DEVNULL)
