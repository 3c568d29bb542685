"""The command `ps-cluster doctor`, and the list of its checks. Does not import TensorFlow."""

from __future__ import annotations

from pathlib import Path

from ps_cluster.cli.command_line import command, examples, option, write_json_to
from ps_cluster.cli.value_types import INPUT_PATH, PRINTED_FILE, STDOUT
from ps_cluster.report.terminal import print_line
from ps_cluster.tools.doctor.finding import Check, Status, as_json, examine


@command(epilog=examples("doctor", "doctor --no-cluster --data-dir ~/Downloads", "doctor --json | jq .status"))
@option(
    "--cluster/--no-cluster",
    default=True,
    help="Also train a small network on a real cluster, for 10 to 20 s on two cores.",
)
@option("--data-dir", type=INPUT_PATH, help="Look for CIFAR-10 in this folder too.")
@option(
    "--json",
    "json_file",
    type=PRINTED_FILE,
    is_flag=False,
    flag_value=str(STDOUT),
    metavar="[FILE]",
    help="Write the findings as JSON to FILE; without FILE, or with -, print them as JSON.",
)
def doctor(cluster: bool, data_dir: Path | None, json_file: Path | None) -> int:
    """Check whether this machine and installation can train.

    The command prints a line for each check, which begins with ok, warn or fail. If there is something to do, the next
    line says what. The exit code is 1 if a check has failed.
    """
    from ps_cluster.data import cache

    examined = []
    for one in examine(all_checks(Path("runs"), cache.default_cache_dir(), data_dir, cluster=cluster)):
        examined.append(one)
        if json_file != STDOUT:
            print_line(f"{one.status:<5} {one.name:<11} {one.message}")
            if one.todo:
                print_line(f"{'':<17} to do: {one.todo}")
    if json_file:
        write_json_to(json_file, as_json(examined))
    return int(any(one.status is Status.FAIL for one in examined))


def all_checks(runs: Path, cache_dir: Path, data_dir: Path | None, *, cluster: bool) -> list[Check]:
    """Return all checks, quick ones first. `runs` and `cache_dir` are the folders of runs and of packed data.

    Args:
      data_dir: the folder in which to look first for the archive of CIFAR-10; None to look only in the caches.
      cluster: whether to include the check that trains on a real cluster.
    """
    from ps_cluster.tools.doctor import gpu_checks, installation_checks, machine_checks, trial

    quick = [
        Check("python", installation_checks.python_version),
        Check("versions", installation_checks.locked_versions),
        Check("processor", machine_checks.processor),
        Check("memory", machine_checks.memory),
        Check("disk", lambda: machine_checks.free_disk((runs, cache_dir))),
        Check("ports", machine_checks.ports),
        Check("isolation", machine_checks.user_namespaces, limit_s=40.0),  # `network_for` has a limit of 30 s
        Check("environment", installation_checks.ignored_settings),
        Check("data", lambda: installation_checks.data_set(cache_dir, data_dir)),
        Check("gpus", gpu_checks.gpus, limit_s=gpu_checks.MULTIPLY_S + 10),
        Check("tensorflow", installation_checks.tensorflow_import, limit_s=130.0),
    ]
    return [*quick, Check("cluster", trial.trial_cluster, limit_s=trial.TRIAL_S + 60)] if cluster else quick
