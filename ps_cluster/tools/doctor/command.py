"""The command `ps-cluster doctor`."""

from __future__ import annotations

from pathlib import Path

from ps_cluster.cli.command_line import INPUT_PATH, PRINTED_FILE, STDOUT, command, examples, option, write_json_to
from ps_cluster.report.terminal import print_line


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

    Each line says ok, warn or fail, and what to do about it. The exit code is 1 if a check has failed.
    """
    from ps_cluster.data import cache
    from ps_cluster.tools.doctor import checks
    from ps_cluster.tools.doctor.finding import Status, as_json, examine

    examined = []
    for one in examine(checks.all_checks(Path("runs"), cache.default_cache_dir(), data_dir, cluster=cluster)):
        examined.append(one)
        if json_file != STDOUT:
            print_line(f"{one.status:<5} {one.name:<11} {one.says}")
            if one.todo:
                print_line(f"{'':<17} to do: {one.todo}")
    if json_file:
        write_json_to(json_file, as_json(examined))
    return int(any(one.status is Status.FAIL for one in examined))
