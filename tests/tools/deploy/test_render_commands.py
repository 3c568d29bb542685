"""`k8s render` and `slurm render` pass options on to `task`."""

import shlex

import click
import pytest
import yaml
from click.testing import CliRunner

from ps_cluster.cli.main import main
from ps_cluster.tools.deploy.kubernetes import KINDS
from tests.helpers.manifests import pods_of

ASKED = ("--dataset", "synthetic", "--precision", "float32", "--workers", "3")
COMMANDS = {
    "k8s": ("k8s", "render", "--image", "me/ps-cluster:1", "--run-volume", "runs", *ASKED),
    "slurm": ("slurm", "render", "--run-dir", "/shared/a run", *ASKED),
}
WAITING = ("--wait-seconds", "1234567.5", "--min-workers", "2")  # no digit of these may be lost


def rendered(*words):
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def option_of(command, name):
    found = main.get_command(None, command[0])
    found = found.commands[command[1]] if isinstance(found, click.Group) else found
    (option,) = [one for one in found.params if name in one.opts]
    return option


@pytest.mark.parametrize("given", [(), WAITING, WAITING[:2], WAITING[2:]])
@pytest.mark.parametrize("kind", KINDS)
def test_every_container_waits_as_it_was_asked_for_and_as_task_does_where_it_was_not(kind, given):
    roles = pods_of(list(yaml.safe_load_all(rendered(*COMMANDS["k8s"], "--kind", kind, *given))))
    assert len(roles) == 4
    for pods in roles:
        assert pods.command[pods.command.index("--config") + 2 :] == list(given)


@pytest.mark.parametrize("given", [(), WAITING])
def test_every_step_of_slurm_waits_as_it_was_asked_for(given):
    (line,) = [line for line in rendered(*COMMANDS["slurm"], *given).splitlines() if line.startswith("command=")]
    words = shlex.split(line.removeprefix("command=(").removesuffix(")"))
    assert words == ["ps-cluster", "task", "--run-dir", "$run_dir", "--config", "$config", *given]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            (),
            "not isolated: whoever reaches the job's 6 ports (the job's number selects them from 10000 to 32767) can run code",
        ),
        (("--port", "4000"), "not isolated: whoever reaches the job's ports 4000 to 4005 can run code as you"),
        (
            ("--set", "cluster.isolation=interface=ib0"),
            "only connections through ib0 and from your own processes on the same machine",
        ),
        (("--mode", "single"), ""),
    ],
)
def test_who_reaches_the_ports_of_a_slurm_job_is_told_beside_the_script(options, line):
    result = CliRunner().invoke(main, ("slurm", "render", "--run-dir", "/x", *ASKED[:-2], *options))
    assert result.exit_code == 0 and result.stdout.startswith("#!/bin/bash\n")
    assert line in result.stderr and len(result.stderr.splitlines()) == bool(line)


@pytest.mark.parametrize("name", ["--wait-seconds", "--min-workers"])
@pytest.mark.parametrize("command", COMMANDS)
def test_they_are_the_options_of_task(command, name):
    own, that_of_task = option_of(COMMANDS[command], name), option_of(("task",), name)
    assert (own.type.to_info_dict(), own.help) == (that_of_task.type.to_info_dict(), that_of_task.help)


def data_of(*words):
    """Return the section `data` of the configuration that the containers get."""
    command = ("k8s", "render", "--image", "me/x:1", "--run-volume", "runs", "--precision", "float32", *words)
    (found,) = [one for one in yaml.safe_load_all(rendered(*command)) if one["kind"] == "ConfigMap"]
    return yaml.safe_load(found["data"]["config.yaml"])["data"]


def test_a_data_set_that_has_to_be_found_is_looked_for_on_its_volume(tmp_path):
    volume = ("--data-volume", "data", "--dataset", "cifar10")
    assert data_of(*volume)["data_dir"] == "/data"
    assert data_of(*volume, "--data-dir", "/data/cifar")["data_dir"] == "/data/cifar"
    settings = tmp_path / "settings.yaml"
    settings.write_text("data: {data_dir: /data/packed}\n")
    assert data_of(*volume, "--config", str(settings))["data_dir"] == "/data/packed"


def test_a_data_set_with_a_path_of_its_own_gets_no_other_place(tmp_path, capsys):
    own = data_of("--data-volume", "data", "--dataset", "table:/data/numbers.csv")
    assert (own["dataset"], own["data_dir"]) == ("table:/data/numbers.csv", None), "task refuses both"
    table = tmp_path / "numbers.csv"
    table.write_text("a,b\n1,2\n")
    assert data_of("--dataset", str(table))["dataset"] == f"table:{table}", "it may be in the image"
