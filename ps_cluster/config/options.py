"""The options of commands that set values of the configuration: name, dotted key and help. Types and ranges follow from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ps_cluster.config.datasets import NO_VARIATION, VARIATIONS, read_variations
from ps_cluster.config.modes import MODES
from ps_cluster.config.schema import MOST_PARAMETER_SERVERS, MOST_WORKERS
from ps_cluster.config.sections import flat, own_settings
from ps_cluster.errors import UserError

AUGMENTATION = "data.augmentation"


def _options_of_modes() -> dict[str, tuple[str, str]]:
    """Return the options for settings of single modes, e.g. `--max-staleness` for `mode.max_staleness`."""
    found: dict[str, tuple[str, str]] = {}
    for mode in MODES:
        for name in own_settings("mode", mode):
            field = mode.Settings.model_fields[name]
            spelled = name.replace("_", "-")
            option = f"--{spelled}/--no-{spelled}" if field.annotation is bool else f"--{spelled}"
            said = f"Mode {mode.name}: {field.description or 'no description'}"
            _, before = found.get(option, ("", ""))  # of another mode with a setting of this name
            found[option] = (f"mode.{name}", f"{before} {said}".strip())
    return found


CONFIG_OPTIONS = {
    "--workers": ("cluster.workers", f"Worker processes; on one machine at most {MOST_WORKERS}."),
    "--min-workers": ("cluster.min_workers", "The fewest workers that `scale` may leave. Default: --workers."),
    "--max-workers": ("cluster.max_workers", "The most workers that `scale` may ask for. Default: --workers."),
    "--ps": (
        "cluster.parameter_servers",
        f"Parameter server processes; on one machine at most {MOST_PARAMETER_SERVERS}.",
    ),
    "--mode": (
        "mode.name",
        f"How gradients become updates: {'; '.join(f'{mode.name}: {mode.says}' for mode in MODES)}.",
    ),
    **_options_of_modes(),
    "--staleness-method": ("staleness.method", "Mode async: how stale gradients are corrected."),
    "--straggler": ("cluster.straggler", "Make workers slow: 2:5x, 1:+0.2s, several joined by ';', or random:gamma."),
    "--dataset": (
        "data.dataset",
        "The data set, or the path of your own data; auto: CIFAR-10 if it can be had, else the generated one.",
    ),
    "--data-dir": ("data.data_dir", "The data set: its archive, its unpacked folder, or a folder that holds either."),
    "--target": ("data.target", "A table's column to predict."),
    "--image-size": (
        "data.image_size",
        "Size of pictures, 64 or 48x64 (height x width): they are resized and cropped.",
    ),
    "--skip-bad/--no-skip-bad": ("data.skip_bad", "Go on without pictures that can't be read."),
    "--augment": (
        AUGMENTATION,
        f"How images are varied, these ways and no others: {', '.join(one.form for one in VARIATIONS.values())}, joined by "
        f"commas, or {NO_VARIATION}.",
    ),
    "--model": ("model.name", "The network."),
    "--epochs": ("training.epochs", "Passes over the training images."),
    "--steps": ("training.steps", "Updates of the whole run, in place of --epochs."),
    "--batch-size": ("training.batch_size_per_worker", "Images of one step of one worker."),
    "--optimizer": ("optimizer.rule", "How a parameter server changes its weights with a gradient."),
    "--learning-rate": ("optimizer.learning_rate", "The highest learning rate of an update; the schedule scales it."),
    "--weight-decay": ("optimizer.weight_decay", "Decoupled weight decay."),
    "--precision": (
        "model.precision",
        "Dtype of the computation; auto: bfloat16 where the processor has instructions for it.",
    ),
    "--evaluator/--no-evaluator": ("cluster.evaluator", "Score every checkpoint in a process of its own."),
    "--isolation": ("cluster.isolation", "Use a network that nobody else reaches; auto: where the system allows it."),
    "--seed": ("training.seed", "Seed of batches, augmentation and initial weights."),
}


def settings_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return dotted key → value of all settings that the options give; `given`: the key of each option → its value.

    Raises:
      UserError: --epochs and --steps together, or a value of --augment that can't be read.
    """
    values = dict(given)
    if "training.epochs" in values:
        if "training.steps" in values:
            raise UserError("--epochs and --steps say the same thing twice: give one of them")
        values["training.steps"] = None  # else a file's steps would win over these epochs
    if isinstance(text := values.get(AUGMENTATION), str):
        try:
            values[AUGMENTATION] = read_variations(text)
        except ValueError as error:
            raise UserError(f"--augment: got {text!r:.200}: {error}") from error
    return flat(values)
