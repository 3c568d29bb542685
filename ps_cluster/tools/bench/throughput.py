"""Measure examples per second of this cluster, one process, all-reduce, and TensorFlow's own way, alternating.

    ps-cluster bench --rounds 3

Each arm is a fresh process (or cluster) that trains the same examples with the same network, precision and batch size.
Rounds go A B C, A B C, … so that a drift of the machine's speed is fair to all. Evaluator and checkpoints are off.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ps_cluster.config import RunConfig, build_config
from ps_cluster.config.datasets import OF_WORKER
from ps_cluster.data.packed import PackedDataset, write_pointer
from ps_cluster.errors import RunFailed, UserError
from ps_cluster.files.writing import write_json
from ps_cluster.launch.local_run import complete_config
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.system.lifetime import die_with_parent
from ps_cluster.tools.bench.arms import ARM_TIMEOUT_S, CLUSTER, BenchArm

BATCH_SIZE = 128
# The update rule of every arm, whatever rule the network usually has: the benchmark compares ways to train, not rules.
RULE = {
    "optimizer.rule": "nesterov", "optimizer.momentum": 0.9, "optimizer.learning_rate": 1e-3,
    "optimizer.weight_decay": 0.0, "optimizer.learning_rate_factors": [], "schedule.kind": "constant",
    "schedule.image_scales": [],
}  # fmt: skip
SAME_IN_ALL_ARMS = ("optimizer.", "schedule.", "data.augmentation.")
NO_VALUES: Mapping[str, Any] = {}
SIDE = 32
TABLE_WIDTH = 200  # at most; a narrower terminal breaks lines but cuts no figure
# Images of 32x32 pixels of one measurement, so that each takes about 5 to 25 s on two cores. In an async one the first
# and last gradients may be counted wrong by half a gradient: 1 of at least 80. For other networks and other examples
# a short run finds the number (`with_lengths`).
EXAMPLES = {"tutorial_cnn": 80_000, "cifar_tf_cnn": 25_000, "resnet_small": 12_800, "airbench": 18_000}


def cases(
    models: Iterable[str], precisions: Iterable[str], packed: PackedDataset, values: Mapping[str, Any]
) -> list[RunConfig]:
    """Return a complete configuration with `values` for every model and precision.

    Raises:
      UserError: the settings do not fit the data set, or one is of the update rule or the augmentation, which only some
        arms would use.
    """
    if own := [key for key in values if key.startswith(SAME_IN_ALL_ARMS)]:
        raise UserError(
            f"--set {own[0]}: got {values[own[0]]!r}: all arms have one update rule, and crop and flip; leave it out"
        )
    if values.get("training.steps", 1) is None:
        raise UserError("--set training.steps: got null: say how many, or leave it out")
    if values.get("training.sample") == OF_WORKER:
        raise UserError(
            f"--set training.sample: got '{OF_WORKER}': not all arms have workers with a part each; leave it out"
        )
    precisions = list(precisions)
    found = [case(model, precision, packed, values) for model in models for precision in precisions]
    for one in found:
        one.check_fits_one_machine()
    return found


def measure(
    arms: Sequence[BenchArm],
    cases: Iterable[RunConfig],
    packed: PackedDataset,
    rounds: int,
    output: Path | None,
    *,
    notify: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Return one row for each case: what `figures` makes of the rates of all rounds.

    Raises:
      UserError: a case does not fit an arm.
      RunFailed: an arm failed.
    """
    rows, unit = [], packed.spec.unit
    for case in cases:
        model, precision = case.model.name, case.model.precision
        configs = [arm.config(case) for arm in arms]  # errors are found before any measurement
        rates: dict[str, list[float]] = {arm.name: [] for arm in arms}
        for round_number in range(rounds):
            for arm, config in zip(arms, configs):
                rate = measure_once(arm, config, packed)
                rates[arm.name].append(rate)
                notify(f"{model} {precision} round {round_number + 1}/{rounds}: {arm.name} {rate:,.0f} {unit}/s")
        rows.append({"model": model, "precision": precision} | figures(arms, rates))
        if output:
            about = {"dataset": packed.name, "dataset_kind": packed.kind, "unit": unit}
            write_json(output, about | {"rows": rows})
    return rows


def figures(arms: Sequence[BenchArm], rates: Mapping[str, list[float]]) -> dict[str, dict[str, Any]]:
    """Return the spread of each arm's rates, of the first arm's ratios to it by round, and of what slowed arms keep.

    The cluster counts as the first arm if it is measured. What slowed arms keep is also compared with the ideal.
    """
    found = dict(rates)
    first = first_of(arms)
    for arm in arms:
        if arm.slowed:
            kept = [rate / other for rate, other in zip(rates[arm.name], rates[arm.slowed], strict=True)]
            found[f"{arm.name}_to_{arm.slowed}"] = kept
            found[f"{arm.name}_to_ideal"] = [share / (arm.ideal or 1.0) for share in kept]
        elif arm != first:
            ratios = [rate / other for rate, other in zip(rates[first.name], rates[arm.name], strict=True)]
            found[f"{first.name}_to_{arm.name}"] = ratios
    return {name: spread(values) for name, values in found.items()}


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Return median, min, max and n of the values, and the values."""
    about = {"median": statistics.median(values), "min": min(values), "max": max(values), "n": len(values)}
    return about | {"values": list(values)}


def first_of(arms: Sequence[BenchArm]) -> BenchArm:
    """Return the arm that the others are held against."""
    return next((arm for arm in arms if arm.name == CLUSTER.name), arms[0])


def print_table(arms: Sequence[BenchArm], rows: list[dict[str, Any]], unit: str, console: Console) -> None:
    """Print all rates with the ratios of the cluster (else the first arm) to them, then what slowed arms keep.

    Args:
      unit: the word for several examples.
    """
    first = first_of(arms)
    title = f"{unit}/s, and the ratio of {first.name} to it in the same round: median (min–max)"
    table = Table(title=title, title_justify="left", box=None)
    for name in ("network", "precision", "arm"):
        table.add_column(name, no_wrap=True)
    for name in (f"{unit}/s", f"{first.name} to it"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        for arm in arms:
            ratio = row.get(f"{first.name}_to_{arm.name}")
            cells = (shown(row[arm.name], ",.0f"), shown(ratio, ".2f") if ratio else "")
            table.add_row(row["model"], row["precision"], arm.name, *cells)
    console.width = max(console.width, TABLE_WIDTH)
    console.print(table, highlight=False)
    for row, arm in product(rows, (arm for arm in arms if arm.slowed)):
        share, of_ideal = (shown(row[f"{arm.name}_to_{other}"], ".2f") for other in (arm.slowed, "ideal"))
        line = f"{arm.name} {share} of {arm.slowed}: {of_ideal} of the ideal {arm.ideal:.2f}"
        console.print(f"{row['model']} {row['precision']}: {line}", highlight=False, soft_wrap=True)


def shown(found: Mapping[str, Any], spec: str) -> str:
    """Return a spread as text: median (min–max)."""
    return f"{found['median']:{spec}} ({found['min']:{spec}}–{found['max']:{spec}})"


def case(model: str, precision: str, packed: PackedDataset, values: Mapping[str, Any] = NO_VALUES) -> RunConfig:
    """Return a complete configuration with `values`. Its `training.steps` is None where no number is known."""
    shapes = [field.shape for field in packed.spec.inputs.values() if field.is_image]
    examples = EXAMPLES.get(model) if shapes == [(SIDE, SIDE, 3)] else None
    overrides = {
        "model.name": model, "model.precision": precision, "training.batch_size_per_worker": BATCH_SIZE,
        "training.steps": examples // BATCH_SIZE if examples else None,
        "cluster.evaluator": False, "checkpoints.snapshot_every_seconds": 1e6, "checkpoints.every_seconds": 1e6,
    }  # fmt: skip
    named = {"data.dataset": packed.name}  # auto stands for it
    return complete_config(build_config(overrides=overrides | RULE | dict(values) | named), packed)


def measure_once(arm: BenchArm, config: RunConfig, packed: PackedDataset) -> float:
    """Return examples/s of one run of `arm`. Raises RunFailed if it fails, or ends before there is a rate."""
    rate: float | None = run_arm(arm, config, packed)["examples_per_second"]
    if rate is None:
        raise RunFailed(f"arm {arm.name} has no rate of {config.training.steps} updates: give it more training.steps")
    return rate


def run_arm(arm: BenchArm, config: RunConfig, packed: PackedDataset) -> dict[str, Any]:
    """Return the last line of one run of `arm`, in a run directory of its own. Raises RunFailed if it fails."""
    with scratch() as folder:
        run_dir = RunDir.create(folder / "run")
        # JSON is YAML, and can be read without a YAML library.
        run_dir.config.write_text(json.dumps(arm.settings(config)))
        write_pointer(run_dir.dataset, packed)
        imports = arm.project
        if arm.torch:  # another Python must not find packages that were installed beside this project for this one
            imports = folder / "import"
            imports.mkdir()
            (imports / "ps_cluster").symlink_to(arm.project / "ps_cluster")
        command = [arm.python, "-m", arm.module, str(run_dir.root), *arm.arguments]
        last: dict[str, Any] = json.loads(_output_of(arm, command, imports, folder).splitlines()[-1])
        return last


def _output_of(arm: BenchArm, command: Sequence[str], imports: Path, folder: Path) -> str:
    """Return the stdout of `command`, which looks for modules in `imports` first. Both outputs are files in `folder`."""
    stdout, stderr = folder / "stdout", folder / "stderr"
    with stdout.open("wb") as out, stderr.open("wb") as error:
        try:
            code = subprocess.run(
                command,
                cwd=imports,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=error,
                timeout=ARM_TIMEOUT_S,
                preexec_fn=die_with_parent,  # else it would continue when this process is killed
            ).returncode
        except subprocess.TimeoutExpired as late:
            raise RunFailed(f"arm {arm.name} had not ended after {ARM_TIMEOUT_S} s; its files: {folder}") from late
    if code:
        last = (stderr.read_text(errors="replace").splitlines() or ["it said nothing"])[-1]
        raise RunFailed(f"arm {arm.name} failed with exit code {code}: {last}; its files: {folder}")
    return stdout.read_text()


@contextmanager
def scratch() -> Iterator[Path]:
    """Yield a folder that is removed afterwards, except if an arm fails: then its files can be read."""
    folder = Path(tempfile.mkdtemp(prefix="ps_cluster-bench-"))
    try:
        yield folder
    except BaseException as error:
        if not isinstance(error, RunFailed):
            shutil.rmtree(folder)
        raise
    shutil.rmtree(folder)


# Decide how many updates make a measurement of a network of which no number of examples is known.

SECONDS = 10.0  # that a measurement shall take
LEAST_STEPS = 90  # fewer would make the first and the last gradients count too much
MOST_STEPS = 50_000
_ENOUGH_S = 2.0  # a run that trains for so long tells the rate well enough
_GROWTH = 10  # from one short run to the next

Rate = Callable[[RunConfig], float | None]
"""Trains a configuration and returns its examples per second; None if it was over before there was a rate."""


def with_lengths(
    cases: Iterable[RunConfig], rate: Rate, *, unit: str, arm: str, notify: Callable[[str], None]
) -> Iterator[RunConfig]:
    """Yield the cases, each with its number of updates. All arms and rounds of a case have the same.

    Args:
      rate: runs `arm`, one after the other.
      unit: the word for several examples.
    """
    for case in cases:
        if case.training.steps is None:
            steps, per_second = _steps(case, rate)
            case = case.with_values({"training.steps": steps})
            notify(
                f"{case.model.name} {case.model.precision}: {steps * case.examples_per_step:,} {unit} make a measurement: "
                f"about {SECONDS:.0f} s, at the {per_second:,.0f} {unit}/s of a short run of arm {arm}"
            )
        yield case


def _steps(case: RunConfig, rate: Rate) -> tuple[int, float]:
    """Return the updates of a measurement and the examples per second of the last short run, 0 if it had none."""
    steps = LEAST_STEPS
    while True:
        per_second = rate(case.with_values({"training.steps": steps}))
        steps_per_second = (per_second or 0.0) / case.examples_per_step
        if per_second and steps >= _ENOUGH_S * steps_per_second or steps == MOST_STEPS:
            return min(MOST_STEPS, max(LEAST_STEPS, round(SECONDS * steps_per_second))), per_second or 0.0
        steps = min(MOST_STEPS, _GROWTH * steps)
