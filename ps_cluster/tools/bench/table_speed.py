"""Measure large embedding tables: network dlrm on data set clicks, in one process and on parameter servers.

A batch uses few of the rows of the tables. So the arms differ mostly in how they look up, send and change these rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from ps_cluster.config import build_config
from ps_cluster.data.packed import PackedDataset
from ps_cluster.data.sets.clicks import COLUMNS as LOOKUPS
from ps_cluster.data.sets.clicks import ClickSettings
from ps_cluster.launch.config_completion import resolve_data
from ps_cluster.models.networks.dlrm import DlrmSettings
from ps_cluster.notices import Notify
from ps_cluster.report.terminal import print_line
from ps_cluster.system.limits import allowance
from ps_cluster.tools.bench import arms
from ps_cluster.tools.bench.arms import BenchArm
from ps_cluster.tools.bench.cases import SAME_IN_ALL_ARMS, case, refuse_fixed_settings, with_length
from ps_cluster.tools.bench.running import RateOf, rate_of
from ps_cluster.tools.bench.throughput import BenchJob, Benchmark, Column, Rates, ReadColumn, rates_of, ratios

NAME = "tables"
FIXED = {"data.dataset": "clicks", "model.name": "dlrm"}
CHOSEN = (*FIXED, *SAME_IN_ALL_ARMS, "mode.", "cluster.workers", "cluster.parameter_servers")
# All tables are sent by rows, whatever their size, because `data.rows` may make them small.
DEFAULTS = {"model.rows_from": 1}
VARIED = {"training.batch_size_per_worker": (512, 2048), "model.row_width": (16, 64)}
_RULE = {"optimizer.rule": "adagrad"}


def _cluster_of(servers: int) -> dict[str, object]:
    return {**_RULE, "mode.name": "async", "cluster.workers": 2, "cluster.parameter_servers": servers}


FIT = BenchArm("fit", "ps_cluster.tools.bench.table_arms", ("fit",), values=_RULE)
HAND = replace(FIT, name="hand", arguments=("hand",))
MODE_SINGLE = replace(arms.CLUSTER, name="mode_single", values={**_RULE, "mode.name": "single"})
ASYNC = replace(arms.CLUSTER, name="async", values=_cluster_of(1))
ASYNC_2PS = replace(arms.CLUSTER, name="async_2ps", values=_cluster_of(2))
PER_VARIABLE = replace(arms.PER_VARIABLE, values=_cluster_of(1))
ARMS = (FIT, HAND, MODE_SINGLE, ASYNC, ASYNC_2PS, PER_VARIABLE)
_TORCH = BenchArm("torch_single", "ps_cluster.tools.bench.ddp_tables", values={**_RULE, **arms.ALONE}, torch=True)
TORCH_ARMS = (_TORCH, replace(_TORCH, name="ddp_cores", values={**_RULE, **arms.ONE_PER_CORE}))
BASELINES = (FIT.name, HAND.name, PER_VARIABLE.name, _TORCH.name)


def benchmark(values: Mapping[str, object], ddp_python: Path | None) -> Benchmark:
    """Return the benchmark. It has the PyTorch arms only if `ddp_python` is given.

    `values`: settings of all arms. Raises UserError if they do not fit.
    """
    refuse_fixed_settings(NAME, CHOSEN, values)
    packed = resolve_data(build_config(None, FIXED | dict(values)).data, notify=print_line)
    measured = [*ARMS, *(arms.with_torch(TORCH_ARMS, ddp_python) if ddp_python else ())]
    found = jobs(packed, values, measured, notify=print_line)
    return Benchmark(found, len(_sizes(values)), packed, "examples", columns_of(measured))


def _sizes(values: Mapping[str, object]) -> list[dict[str, object]]:
    """Return the batch size and the row width of each job, by dotted key.

    If `values` sets one of the two, all jobs have this value.
    """
    choices: dict[str, Sequence[object]] = {
        key: [values[key]] if key in values else sizes for key, sizes in VARIED.items()
    }
    return [dict(zip(choices, sizes, strict=True)) for sizes in product(*choices.values())]


def jobs(
    packed: PackedDataset,
    values: Mapping[str, object],
    measured: Sequence[BenchArm] = ARMS,
    *,
    notify: Notify,
    rate: RateOf = rate_of,
) -> Iterator[BenchJob]:
    """Yield a job for each pair of a batch size and a row width. If `values` sets one of the two, all jobs have it.

    The fastest arm is more than ten times as fast as the slowest. So short runs of each arm find how many updates this
    arm needs for a measurement. If `values` sets `training.steps`, there are no short runs, and all arms train on the
    same number of examples (`BenchArm.config`).

    Args:
      values: settings of all arms, by dotted key.
      measured: the arms.
      rate: measures the rate of an arm in the short runs.
    """
    for sizes in _sizes(values):
        one = case("dlrm", "float32", packed, {**DEFAULTS, **values, **sizes})
        assert isinstance(one.model, DlrmSettings) and isinstance(one.data, ClickSettings)
        about = {
            "batch": one.training.batch_size_per_worker,
            "width": one.model.row_width,
            "rows": one.data.rows,
        }
        of_job = []
        for arm in measured:
            steps = arm.config(with_length(one, arm, packed, notify, rate)).training.steps
            of_job.append(replace(arm, values={**arm.values, "training.steps": steps}))
        yield BenchJob(about, one, of_job)


def columns_of(measured: Sequence[BenchArm]) -> list[Column]:
    """Return the columns of the table: rates, lookups, and ratios.

    They are the rate of each arm in examples/s, the number of table rows that it looks up per second and core, and the
    ratio of its rate to the rate of each of the BASELINES that was measured. A row that several examples of a batch
    look up counts several times.
    """

    def rows_per_core(rates: Rates, arm: BenchArm) -> list[float]:
        return [rate * LOOKUPS / allowance().threads for rate in rates[arm.name]]

    def ratio_to(baseline: str) -> ReadColumn:
        return lambda rates, arm: None if arm.name == baseline else ratios(rates, arm.name, baseline)

    baselines = [arm.name for arm in measured if arm.name in BASELINES]
    return [
        Column("rate", "examples/s", ",.0f", rates_of),
        Column("rows_per_core", "rows/s per core", ",.0f", rows_per_core),
        *(Column(f"to_{one}", f"this ÷ {one}", ".2f", ratio_to(one)) for one in baselines),
    ]
