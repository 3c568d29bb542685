"""Make the cases of a benchmark. A case is a network, its precision, and the number of updates in a measurement."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path

from ps_cluster.config import RunConfig, build_config
from ps_cluster.config.samples import is_by_worker
from ps_cluster.data.packed import PackedDataset
from ps_cluster.errors import UserError
from ps_cluster.launch.config_completion import complete_config, resolve_data
from ps_cluster.notices import Notify
from ps_cluster.report.terminal import print_line
from ps_cluster.tools.bench.arms import BenchArm, choose, with_straggler
from ps_cluster.tools.bench.running import RateOf, rate_of
from ps_cluster.tools.bench.throughput import BenchJob, Benchmark, columns_of, first_of

BATCH_SIZE = 128
# All arms use this update rule, whatever rule the network usually has: the benchmark compares ways to train, not rules.
RULE = {
    "optimizer.rule": "nesterov", "optimizer.momentum": 0.9, "optimizer.learning_rate": 1e-3,
    "optimizer.weight_decay": 0.0, "optimizer.learning_rate_factors": [], "schedule.kind": "constant",
    "schedule.image_scales": [],
}  # fmt: skip
# A training with these settings only makes updates: nothing is scored, and nothing is saved before its end.
UPDATES_ONLY = {
    "cluster.evaluator": False, "checkpoints.snapshot_every_seconds": 1e6, "checkpoints.every_seconds": 1e6,
}  # fmt: skip
SAME_IN_ALL_ARMS = ("optimizer.", "schedule.", "data.augmentation.")
# The number of 32x32 images in one measurement, which takes 5 to 25 s on two cores. The count of an asynchronous
# measurement may be wrong by half a gradient at its beginning and by half a gradient at its end: by 1 of at least 80
# gradients. For other networks and examples a short run finds the number (`with_length`).
IMAGES = {"tutorial_cnn": 80_000, "cifar_tf_cnn": 25_000, "resnet_small": 12_800, "airbench": 18_000}

MEASUREMENT_S = 10.0
FEWEST_STEPS, MOST_STEPS = 90, 50_000
_LONG_ENOUGH_S = 2.0  # A run of this length measures its rate well enough.
_GROWTH = 10  # factor of the number of steps from one short run to the next


def benchmark(
    arms: Iterable[str],
    models: Sequence[str],
    precisions: Iterable[str],
    straggler: str | None,
    ddp_python: Path | None,
    values: Mapping[str, object],
) -> Benchmark:
    """Return the benchmark of these arms. Raises UserError if an option does not fit the arms or the data."""
    config = build_config(None, dict(values))
    chosen = choose(arms, ddp_python)
    if straggler:
        chosen = with_straggler(chosen, straggler, config.cluster.workers)
    packed = resolve_data(config.data, notify=print_line)
    for arm, model in product(chosen, models):
        arm.check(model, packed.spec)
    unit = packed.spec.unit
    jobs = [
        BenchJob(
            {"model": one.model.name, "precision": one.model.precision},
            with_length(one, first_of(chosen), packed, print_line),
            chosen,
        )
        for one in cases(models, precisions, packed, values)
    ]
    return Benchmark(jobs, len(jobs), packed, unit, columns_of(chosen, unit))


def cases(
    models: Iterable[str], precisions: Iterable[str], packed: PackedDataset, values: Mapping[str, object]
) -> list[RunConfig]:
    """Return the complete configuration of each case, i.e. of each pair of a model and a precision.

    Args:
      values: settings of all cases, by dotted key.
    Raises:
      UserError: a setting can't be changed, can't be used by all arms, or does not fit the data set.
    """
    if refused := [key for key in values if key.startswith(SAME_IN_ALL_ARMS)]:
        raise UserError(
            f"--set {refused[0]}: got {values[refused[0]]!r}: this setting is fixed, because all arms have the same update "
            "rule, crop and flip; leave it out"
        )
    if values.get("training.steps", 1) is None:
        raise UserError("--set training.steps: got null: give a number, or leave it out")
    if isinstance(sample := values.get("training.sample"), str) and is_by_worker(sample):
        raise UserError(
            f"--set training.sample: got '{sample:.80}': not all arms have workers that each train on a part of the data; "
            "leave it out"
        )
    found = [case(model, precision, packed, values) for model, precision in product(models, precisions)]
    for one in found:
        one.check_fits_one_machine()
    return found


def refuse_fixed_settings(name: str, chosen: tuple[str, ...], values: Mapping[str, object]) -> None:
    """Raise UserError if `values` has a setting that the user can't change, because the benchmark `name` chooses it.

    `chosen`: the dotted keys of the settings that the benchmark chooses, or the beginnings of these keys.
    """
    if wrong := [key for key in values if key.startswith(chosen)]:
        raise UserError(f"--set {wrong[0]}: the arm {name} chooses this setting itself: leave it out")


def known_steps(model: str) -> int | None:
    """Return the number of updates in one measurement with 32x32 images; None for a network of unknown speed."""
    return IMAGES[model] // BATCH_SIZE if model in IMAGES else None


def case(model: str, precision: str, packed: PackedDataset, values: Mapping[str, object]) -> RunConfig:
    """Return the complete configuration of a case, i.e. of one network with one precision.

    `values` has settings by dotted key, which replace those of the case. `training.steps`, the number of updates in
    one measurement, is None if it is not in `values` and the speed of the network on these data is unknown.
    """
    shapes = [field.shape for field in packed.spec.inputs.values() if field.is_image]
    overrides = {
        **UPDATES_ONLY, **RULE, "model.name": model, "model.precision": precision,
        "training.batch_size_per_worker": BATCH_SIZE,
        "training.steps": known_steps(model) if shapes == [(32, 32, 3)] else None,
        **values,
        "data.dataset": packed.name,  # not "auto"
    }  # fmt: skip
    return complete_config(build_config(overrides=overrides), packed)


def with_length(
    case: RunConfig, arm: BenchArm, packed: PackedDataset, notify: Notify, rate: RateOf = rate_of
) -> RunConfig:
    """Return `case` with the number of updates in one measurement (`training.steps`).

    If `case` does not have this number, short runs of `arm` find the number that takes about `MEASUREMENT_S` seconds.
    """
    if case.training.steps is not None:
        return case
    steps = FEWEST_STEPS
    while True:
        per_second = rate(arm, arm.config(case.with_values({"training.steps": steps})), packed) or 0.0
        steps_per_second = per_second / case.examples_per_step
        if (per_second and steps >= _LONG_ENOUGH_S * steps_per_second) or steps == MOST_STEPS:
            break
        steps = min(MOST_STEPS, _GROWTH * steps)
    steps = min(MOST_STEPS, max(FEWEST_STEPS, round(MEASUREMENT_S * steps_per_second)))
    unit = packed.spec.unit
    notify(
        f"{case.model.name} {case.model.precision}: each measurement trains on {steps * case.examples_per_step:,} "
        f"{unit}: about {MEASUREMENT_S:.0f} s at {per_second:,.0f} {unit}/s, the rate of arm {arm.name} in a short run"
    )
    return case.with_values({"training.steps": steps})
