"""Define the ways to train that `bench` compares."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import BaseModel

from ps_cluster.config.objectives import ExampleSpec
from ps_cluster.config.schema import RunConfig
from ps_cluster.config.sections import switched_off
from ps_cluster.config.stragglers import parse_stragglers
from ps_cluster.errors import UserError, did_you_mean
from ps_cluster.files.values import join_names
from ps_cluster.system.limits import allowance

ARM_TIMEOUT_S = 600
TORCH_TIMEOUT_S = 60  # for the import of PyTorch, which usually takes a few seconds
STEPS_PER_CALL = 4  # In arms of one process, one call of TensorFlow runs several steps, so that Python costs little.
TORCH_NETWORKS = ("tutorial_cnn", "cifar_tf_cnn", "airbench")  # the networks that ddp.py has
TORCH_EXAMPLES, TORCH_CLASSES = "image uint8 [32, 32, 3]", 10


class Measured(BaseModel):
    """The result of a way to train (an arm). The program of the arm prints it as JSON, in its last line of output.

    The rate is None if the run was too short.
    """

    examples_per_second: float | None


@dataclass(frozen=True)
class BenchArm:
    """One way to train. Its module gets a run directory, trains there, and prints `Measured`.

    Attributes:
      arguments: arguments of the module after the run directory.
      values: settings of this arm, by dotted key.
      can_be_slow: whether `cluster.straggler` slows down workers of this arm.
      same_without_stragglers: for an arm with slow workers, the name of the same arm without slow workers; otherwise None.
      ideal_share: for an arm with slow workers, the share of its rate without slow workers that it would keep if no
        worker waited for a slow one; otherwise 1.
      torch: whether the arm needs a Python with PyTorch. The arms of ddp.py can train only TORCH_NETWORKS, on images
        like CIFAR-10's.
      python: the interpreter that runs the module.
    """

    name: str
    module: str
    arguments: tuple[str, ...] = ()
    values: Mapping[str, object] = field(default_factory=dict)
    can_be_slow: bool = False
    same_without_stragglers: str | None = None
    ideal_share: float = 1.0
    torch: bool = False
    python: str = sys.executable

    def config(self, case: RunConfig) -> RunConfig:
        """Return `case`, the settings that several arms have in common, changed by the settings of this arm.

        If the arm does not set `training.steps`, the number of updates, this is computed from the number in `case`,
        such that all arms train on the same number of examples. If `case` has None, it stays None.
        """
        mode = str(self.values.get("mode.name", case.mode.name))
        changed = case.with_values(switched_off(mode) | dict(self.values))
        if case.training.steps is None or "training.steps" in self.values:
            return changed
        return changed.with_values({"training.steps": max(1, case.training.steps // changed.steps_per_update)})

    def check(self, model: str, spec: ExampleSpec) -> None:
        """Raise UserError for a network or examples that this arm can't train on."""
        if not self.torch:
            return
        if model not in TORCH_NETWORKS:
            known = join_names(list(TORCH_NETWORKS))
            raise UserError(
                f"--models: got '{model:.300}': arm {self.name} can train only {known}: leave this "
                "network or the arm out"
            )
        if f"{spec}" != TORCH_EXAMPLES or spec.outputs != TORCH_CLASSES or spec.target.shape:
            raise UserError(
                f"--dataset: got examples '{spec}' with {spec.outputs} outputs: arm {self.name} takes only "
                f"examples '{TORCH_EXAMPLES}' with {TORCH_CLASSES} classes: leave the arm out"
            )


# All-reduce and DDP only have workers, so they are also measured with one worker per core, each pinned to its core.
ONE_PER_CORE = {"mode.name": "sync", "cluster.workers": allowance().threads, "cluster.pin_workers": True}

SINGLE = BenchArm("single", "ps_cluster.tools.bench.keras_arms")
CLUSTER = BenchArm("cluster", "ps_cluster.tools.bench.cluster_arm", can_be_slow=True)
SYNC = replace(CLUSTER, name="sync", values={"mode.name": "sync"})
SYNC_CORES = replace(SYNC, name="sync_cores", values=ONE_PER_CORE)
PER_VARIABLE = replace(CLUSTER, name="per_variable", arguments=(SINGLE.module, "task"), can_be_slow=False)
LIMIT = BenchArm("limit", "ps_cluster.tools.bench.limit")
DDP = BenchArm("ddp", "ps_cluster.tools.bench.ddp", values={"mode.name": "sync"}, torch=True)
DDP_CORES = replace(DDP, name="ddp_cores", values=ONE_PER_CORE)
DDP_COMPILED = replace(DDP_CORES, name="ddp_compiled", arguments=("compiled",))
ALONE = {"mode.name": "single", "cluster.intra_op_threads": allowance().threads}
TORCH_SINGLE = replace(DDP, name="torch_single", values=ALONE)

DEFAULT = (SINGLE, CLUSTER, SYNC, PER_VARIABLE, LIMIT)
ARMS = {arm.name: arm for arm in (*DEFAULT, SYNC_CORES, DDP, DDP_CORES, DDP_COMPILED, TORCH_SINGLE)}


def choose(names: Iterable[str], ddp_python: Path | None = None) -> list[BenchArm]:
    """Return the arms with these names, in this order, each with the Python that runs it.

    Raises:
      UserError: a name is unknown, or an arm needs `ddp_python` and this is missing or has no PyTorch.
    """
    names = list(dict.fromkeys(names))
    if unknown := [name for name in names if name not in ARMS]:
        known = f"{', '.join(ARMS)}, and 'empty' and 'tables', each of which is measured alone"
        raise UserError(f"--arms: got '{unknown[0]}': {did_you_mean(unknown[0], ARMS)}there are {known}")
    return with_torch([ARMS[name] for name in names], ddp_python)


def with_straggler(chosen: list[BenchArm], straggler: str, workers: int) -> list[BenchArm]:
    """Return `chosen`, with a slowed copy after each arm whose workers can be slow.

    Args:
      workers: the number of workers of each arm that does not set `cluster.workers`.
    Raises:
      UserError: no arm can have slow workers, or `straggler` does not say by which factor a worker is slow.
    """
    try:
        slow = parse_stragglers(straggler).slow
    except ValueError as error:
        raise UserError(f"--straggler: {error}") from error
    if not slow or any(one.extra_s for one in slow):
        raise UserError(
            f"--straggler: got '{straggler}': give a worker and how many times slower it is, e.g. 2:5x for worker 2"
        )
    if not any(arm.can_be_slow for arm in chosen):
        able = " or ".join(arm.name for arm in ARMS.values() if arm.can_be_slow)
        raise UserError(
            f"--straggler: got '{straggler}': none of these arms can have a slow worker: name {able} in --arms, or leave "
            "--straggler out"
        )
    # An arm in which no worker waits for slow workers keeps the share 1 - lost / workers of its rate. If one of three
    # workers is 5 times slower, this share is 2.2 / 3.
    lost = sum(1 - 1 / one.factor for one in slow)
    found = []
    for arm in chosen:
        found.append(arm)
        if arm.can_be_slow:
            share = 1 - lost / int(str(arm.values.get("cluster.workers", workers)))
            values = {**arm.values, "cluster.straggler": straggler}
            name = f"{arm.name}+straggler"
            found.append(replace(arm, name=name, values=values, same_without_stragglers=arm.name, ideal_share=share))
    return found


def with_torch(chosen: Sequence[BenchArm], python: Path | None, timeout_s: float = TORCH_TIMEOUT_S) -> list[BenchArm]:
    """Return the arms in `chosen`. Those that need PyTorch get `python` as their interpreter.

    Raises:
      UserError: an arm needs `python`, and this is None or can't import PyTorch within `timeout_s`.
    """
    first = next((arm for arm in chosen if arm.torch), None)
    if first is None:
        return list(chosen)
    needs = f"{first.name} needs --ddp-python, a Python that has torch, numpy, pydantic and PyYAML"
    if python is None:
        raise UserError(f"--arms: {needs}")
    python = python.absolute()  # If links were resolved, the path would lead out of the virtual environment.
    try:
        subprocess.run([python, "-c", "import torch"], check=True, capture_output=True, timeout=timeout_s)
    except (OSError, subprocess.SubprocessError) as error:
        cannot = f"it can't import torch within {timeout_s:g} s"
        raise UserError(f"--ddp-python: got '{python}': {cannot}: {needs}") from error
    return [replace(arm, python=str(python)) if arm.torch else arm for arm in chosen]
