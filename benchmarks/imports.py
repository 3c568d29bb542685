"""Measure what the import of TensorFlow takes, plainly and as a task does it (quiet_import.py).

    python -m benchmarks.imports --rounds 3

Prints processor seconds and the largest memory of a process that does nothing else. The ways take turns.
"""

from __future__ import annotations

import subprocess
import sys

import click

from ps_cluster.cli.options import OneLineCommand, Whole
from ps_cluster.report.terminal import print_line

WAYS = {
    "`import tensorflow`": "import tensorflow",
    "without matplotlib and pandas": "import sys; sys.modules.update(matplotlib=None, pandas=None); import tensorflow",
    "as a task": "from ps_cluster.quiet_import import import_tensorflow; import_tensorflow()",
}
TOLD = """
import resource
used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / 1e6)
"""


@click.command(cls=OneLineCommand)
@click.option("--rounds", type=Whole(1), default=3)
def main(rounds: int) -> None:
    """Print a table: processor seconds and MB of each way, lowest and highest."""
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way, code in WAYS.items():
            argv = [sys.executable, "-c", f"{code}\n{TOLD}"]
            told = subprocess.run(
                argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True, timeout=300
            )
            seconds, megabytes = map(float, told.stdout.split())
            found[way].append((seconds, megabytes))
    print_line(f"| n = {rounds} | processor [s] | memory [MB] |")
    print_line("|---|---:|---:|")
    for way, figures in found.items():
        seconds_, megabytes_ = zip(*figures, strict=True)
        lows, highs = (min(seconds_), min(megabytes_)), (max(seconds_), max(megabytes_))
        print_line(f"| {way} | {lows[0]:.2f} to {highs[0]:.2f} | {lows[1]:.0f} to {highs[1]:.0f} |")


if __name__ == "__main__":
    main()
