"""Complete a configuration: find its data set, and replace each "auto" by a value that fits the data and the machine.

A run does this before anything starts. Tools do it too, to plan runs or to compute what a run would compute.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

from ps_cluster.config import RunConfig, changed, user_code
from ps_cluster.config.datasets import DATASETS, DataSettings
from ps_cluster.config.networks import NETWORKS, check_examples
from ps_cluster.config.objectives import OBJECTIVES, SMOOTHING
from ps_cluster.config.samples import OF_FILES, OF_WORKER, ends_of_files
from ps_cluster.config.sections import flat, merged
from ps_cluster.config.setting_types import AUTO, COMPILED
from ps_cluster.data import sources
from ps_cluster.data.cache import default_cache_dir
from ps_cluster.data.packed import PackedDataset
from ps_cluster.errors import UserError
from ps_cluster.files.values import with_noun
from ps_cluster.installation import PROGRAM
from ps_cluster.launch import network_check
from ps_cluster.notices import Notify, ignore
from ps_cluster.report.byte_progress import every_tenth
from ps_cluster.runs.monitor import checked_monitor_mode
from ps_cluster.system.machine import fastest_precision

EPOCHS = "training.epochs"
# A run is reported as short if it makes fewer than a third of the updates for which its epochs were chosen. With
# airbench in mode async that is fewer than about 300. Data sets of about the right size should not cause a notice.
SHORT_FACTOR = 3


def resolve_data(settings: DataSettings, notify: Notify) -> PackedDataset:
    """Return the packed data set. Download and pack it first if needed. Raises UserError if that fails."""
    return sources.resolve(settings, default_cache_dir(), notify=notify, progress=every_tenth(notify))


def complete_config(config: RunConfig, dataset: PackedDataset, notify: Notify = ignore) -> RunConfig:
    """Return `config` with values instead of "auto", and with an absolute data directory.

    Label smoothing becomes 0 if the objective does not use label smoothing, unless the user has set a value. The
    `optimizer.rule` "compiled" is replaced by the optimizer that the user's code has passed to Keras's compile(). A
    user's own network is built once in a separate process, which checks the network and reads this optimizer. `notify`
    gets lines that the user should read before a long training. Raises UserError if settings or network do not fit the
    examples of the data set.
    """
    if not OBJECTIVES[dataset.spec.objective].smooths_labels and SMOOTHING not in changed(config):
        config = config.with_values({SMOOTHING: 0.0})
    try:
        DATASETS[dataset.name].check_examples(config, dataset.spec)
    except ValueError as error:
        raise UserError(str(error)) from error
    config = _with_rows_of_workers(config, dataset)
    shards = config.cluster.workers if config.training.sample == OF_WORKER else 1
    if config.examples_seen(dataset.train_examples) < shards:
        raise UserError(
            f"training.sample: got '{config.training.sample}': the data set has only {dataset.train_examples} training "
            "examples: take fewer data shards, or fewer workers"
        )
    check_examples(config.model, dataset.spec)
    facts = network_check.check_network(config, dataset, notify)
    if facts.why_needs_code:
        notify(
            f"best/model.keras will need your code: {facts.why_needs_code}. Give --code to the commands predict and "
            "export too (docs/extending.md#layers-of-your-own)"
        )
    if facts.schedule and config.optimizer.rule == COMPILED and config.schedule.kind != COMPILED:
        notify(f"the schedule of compile() is not used, because schedule.kind is {config.schedule.kind}")
    config = network_check.with_rule_of_compile(config, facts)
    precision, data_dir = config.model.precision, config.data.data_dir
    return config.with_values(
        {
            "data.dataset": dataset.name,
            "data.data_dir": os.path.realpath(os.path.expanduser(data_dir)) if data_dir else None,
            "model.precision": fastest_precision() if precision == AUTO else precision,
            "evaluation.monitor_mode": checked_monitor_mode(config.evaluation, dataset.spec, facts.metrics),
        }
    )


def float32_notice(asked: RunConfig, complete: RunConfig, dataset: PackedDataset) -> str | None:
    """Return a line that says how long the training takes in float32, if this processor lacks bfloat16 instructions.

    Return None if the processor has these instructions, if the user has chosen the precision, or if no duration in
    float32 is known for this network and data set.
    `asked`: the user's settings. `complete`: what `complete_config` returned for them.
    """
    if asked.model.precision != AUTO or complete.model.precision != "float32":
        return None
    network = NETWORKS[complete.model.name]
    usual = network.usual_scores.get(dataset.name)
    if usual is None or not usual.minutes_in_float32:
        return None
    examples = complete.total_updates(dataset.train_examples) * complete.examples_per_update
    return (
        f"this processor has no bfloat16 instructions: {network.name} trains in float32, which takes about "
        f"{usual.minutes_in_float32 * examples / usual.examples:.0f} minutes on two cores; a smaller network "
        f"trains in about three minutes: {PROGRAM} run --workers 3 --model tutorial_cnn --epochs 3"
    )


def few_updates_notice(asked: RunConfig, complete: RunConfig, dataset: PackedDataset) -> str | None:
    """Return a line that suggests more epochs, if the default number of epochs makes few updates on a small data set.

    Return None if the data set is large enough, if its examples are generated, or if the length of the training comes
    from the user's settings or from the data set's default settings. `asked`, `complete`: as for `float32_notice`.
    """
    network, data_set = NETWORKS[complete.model.name], DATASETS[asked.data.dataset]
    of_data_set = merged(data_set.recipe, data_set.recipes.get(network.name, {}))
    is_chosen = bool({EPOCHS, "training.steps"} & changed(asked).keys()) or EPOCHS in flat(of_data_set)
    if network.tuned_on is None or is_chosen or dataset.kind == "synthetic":
        return None
    examples = complete.examples_seen(dataset.train_examples)
    if SHORT_FACTOR * examples >= network.tuned_on:
        return None
    name = Path(user_code.short_name(dataset.name)).name  # the user's data may be named by a path
    updates, epochs = complete.total_updates(dataset.train_examples), complete.training.epochs
    tuned_updates = round(epochs * network.tuned_on / complete.examples_per_update)
    enough = math.ceil(epochs * network.tuned_on / examples)
    return (
        f"this run makes only {with_noun(updates, 'update')}, because an epoch of {name} has {examples:,} training "
        f"examples; the default of {epochs:g} epochs for {network.name} was chosen for {network.tuned_on:,} examples, "
        f"with which a run makes {tuned_updates:,} updates: give --epochs {enough} to make as many here"
    )


def _with_rows_of_workers(config: RunConfig, dataset: PackedDataset) -> RunConfig:
    """Return `config` with "rows:…" instead of "files:worker" in `training.sample`.

    "files:worker" gives each worker some of the data set's files. "rows:…" lists the rows at which the workers' parts
    end. Other values of `training.sample` stay as they are. Raises UserError if the value does not fit the data.
    """
    text = config.training.sample
    if text == OF_FILES:
        if not dataset.file_rows:
            raise UserError(
                f"training.sample: got '{text}': data set '{dataset.name}' is not a table in several files: "
                f"use {OF_WORKER}"
            )
        try:
            ends = ends_of_files(dataset.file_rows_to_train_on, config.cluster.workers)
        except ValueError as error:
            raise UserError(f"training.sample: got '{text}': {error}: take fewer workers, or {OF_WORKER}") from error
        return config.with_values({"training.sample": f"rows:{','.join(map(str, ends))}"})
    if config.examples_seen(dataset.train_examples) > dataset.train_examples:
        raise UserError(
            f"training.sample: got '{text:.80}': there are only {dataset.train_examples:,} training examples"
        )
    return config
