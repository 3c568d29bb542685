"""The plan of a sweep: its settings, its search space, and the configuration of each trial."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import to_jsonable_python

from ps_cluster.config import RunConfig, build_config
from ps_cluster.config.objectives import OBJECTIVES
from ps_cluster.config.sections import CHOICE_BY_SETTING, flat, joined, nested
from ps_cluster.config.setting_types import AUTO
from ps_cluster.config.user_settings import of_options, trust_names
from ps_cluster.data.packed import PackedDataset
from ps_cluster.errors import UserError
from ps_cluster.files.values import first_error
from ps_cluster.files.yaml_files import read_yaml
from ps_cluster.launch.config_completion import complete_config
from ps_cluster.runs.monitor import BETTER, Monitor
from ps_cluster.runs.result_rows import CheckpointScores
from ps_cluster.tools.fleet import config_at_once
from ps_cluster.tools.sweep.methods import MOST_TRIALS, SEARCH_METHODS, STAGES, SearchMethod
from ps_cluster.tools.sweep.space import Space, Values, read_space

MOST_HELD_OUT = 5_000
HELD_OUT_SHARE = 0.1
# These settings may not vary: all trials are judged on the same examples in the same way.
_JUDGING = ("data.", "evaluation.", "checkpoints.", "cluster.evaluator")
_MAY_VARY = ("data.augmentation.",)


def _known(method: str) -> str:
    if method not in SEARCH_METHODS:
        raise ValueError(f"there are {', '.join(SEARCH_METHODS)}")
    return method


class Sweep(BaseModel):
    """A sweep, which searches for good settings by training many trials with different values.

    Attributes:
      vary: the settings that vary: dotted key → values, as in `--vary` (e.g. "0.01..1:log") or as a list.
      method: one of `SEARCH_METHODS`.
      trials: the number of trials; None for the method's default.
      settings: the settings of all trials, by dotted key. In a file, they may also be nested: `training: {epochs: 3}`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)
    vary: dict[Annotated[str, Field(pattern=r"^\w+(\.\w+){1,9}$")], Any] = {}
    method: Annotated[str, AfterValidator(_known)] = "random"
    trials: int | None = Field(default=None, ge=1, le=MOST_TRIALS)
    seed: int = Field(default=0, ge=0, lt=2**31)
    settings: Annotated[dict[str, Any], AfterValidator(flat)] = {}


def read_sweep(file: Path | None, changes: dict[str, Any], overrides: dict[str, Any]) -> Sweep:
    """Return the sweep in a file, changed by the command line.

    Args:
      changes: fields of `Sweep` given on the command line; `vary` is added to the `vary` of the file.
      overrides: dotted key → value, settings of all trials.
    Raises:
      UserError: the file can't be read, a key is unknown, or a value is not valid.
    """
    content = read_yaml(file) if file else {}
    content = {key: value for key, value in content.items() if value is not None}  # an empty section
    try:
        given = Sweep.model_validate(content)
        vary = _with_absolute_paths(file.absolute().parent, given.vary) if file else {}
        vary |= _with_absolute_paths(Path.cwd(), changes.get("vary", {}))
        sweep = Sweep.model_validate({**given.model_dump(), **changes, "vary": vary})
    except ValidationError as error:
        raise UserError(first_error(error, str(file) if file else "sweep", names=Sweep.model_fields)) from error
    from_file = trust_names(nested(sweep.settings), file.absolute().parent) if file else {}
    alone = {} if "mode.name" in sweep.vary else {"mode.name": "single"}
    given_here = flat(of_options(overrides).settings)
    settings = to_jsonable_python(joined([alone, flat(from_file), given_here]))  # paths become texts
    return sweep.model_copy(update={"settings": settings})


def _with_absolute_paths(folder: Path, vary: Mapping[str, object]) -> dict[str, object]:
    """Return `vary` with absolute paths of the files that its values name. Relative paths start at `folder`."""
    whole = dict(vary)
    for key in CHOICE_BY_SETTING.keys() & vary.keys():
        values = vary[key]
        names = [name.strip() for name in values.split(",")] if isinstance(values, str) else values
        if isinstance(names, list):
            name_of = CHOICE_BY_SETTING[key].kinds.allow_code_of
            whole[key] = [name_of(name, folder) if isinstance(name, str) else name for name in names]
    return whole


def checked_space(sweep: Sweep) -> Space:
    """Return the search space of a sweep. Raises UserError for mistakes that can be found without the data."""
    space = read_space(sweep.vary)
    for key in space.axes:
        if key.startswith(_JUDGING) and not key.startswith(_MAY_VARY):
            raise UserError(f"--vary {key}: all trials have to be scored alike, on the same examples: leave it out")
        if key in sweep.settings:
            raise UserError(f"--vary {key}: it is also set to {sweep.settings[key]!r:.80}: leave one of them out")
    SEARCH_METHODS[sweep.method].count(space, sweep.trials)
    for values in space.samples():
        build_config(None, {**sweep.settings, **values}).check_fits_one_machine()
    return space


def mode_of(settings: Mapping[str, object], vary: Collection[str], what: str) -> str:
    """Return a line about the mode in which each `what` ("trial" or "member") is trained."""
    if "mode.name" in vary:
        return f"each {what} is trained in the mode that --vary gives it"
    if (name := settings.get("mode.name")) != "single":
        return f"each {what} is trained in mode {name}"
    return (
        f"each {what} is trained in mode single, by one process, so no gradient is stale. The learning rate that is best "
        "there may be too high for other modes. --mode NAME chooses another mode"
    )


@dataclass(frozen=True)
class SweepPlan:
    """A sweep with its search space and its data set.

    Attributes:
      dataset: the data set. It holds out some training examples, on which the trials are scored.
    """

    sweep: Sweep
    space: Space
    dataset: PackedDataset

    @classmethod
    def on(cls, dataset: PackedDataset, sweep: Sweep, space: Space) -> SweepPlan:
        """Return the plan of a sweep.

        Raises UserError if the settings of one of `space.samples()` are invalid, or do not fit the data set. Values
        that are valid one by one may still be invalid together.
        """
        wanted = sweep.settings.get("evaluation.validation_examples") or 0
        held_out = wanted or max(1, min(MOST_HELD_OUT, int(HELD_OUT_SHARE * dataset.train_examples)))
        plan = cls(sweep, space, dataset.holding_out(held_out))
        for values in space.samples():
            plan.config(values)
        return plan

    @property
    def method(self) -> SearchMethod:
        return SEARCH_METHODS[self.sweep.method]

    @cached_property
    def monitor(self) -> Monitor:
        """The metric by which all trials are judged, and whether larger or smaller values of it are better."""
        monitor = Monitor.of(self.config(next(iter(self.space.samples()))).evaluation)
        metric = OBJECTIVES[self.dataset.spec.objective].metric_name if monitor.name == AUTO else monitor.name
        return Monitor(metric, monitor.better or BETTER[metric])

    @property
    def smaller_is_better(self) -> bool:
        return self.monitor.better == "min"

    def score(self, row: CheckpointScores, before: float | None) -> float | None:
        """Return the score of a trial after one more checkpoint.

        This is the score of the last checkpoint. In a training with patience it is the score of the best checkpoint,
        because such a training keeps its best model.

        Args:
          row: the scores of the new checkpoint.
          before: the score of the trial before this checkpoint.
        """
        value = self.monitor.value(row)
        if self.sweep.settings.get("evaluation.patience") is None or before is None:
            return value
        return before if value is None else (min if self.smaller_is_better else max)(value, before)

    @property
    def count(self) -> int:
        """The number of trials."""
        return self.method.count(self.space, self.sweep.trials)

    def config(self, values: Values) -> RunConfig:
        """Return the configuration of a trial with these values. Raises UserError if its settings are invalid."""
        judged = {"evaluation.validation_examples": self.dataset.validation_examples}
        config = config_at_once({**self.sweep.settings, **values, **judged})
        if self.method.halves:  # a checkpoint, and so a score, after each stage
            examples = self.dataset.train_examples
            epochs = config.total_updates(examples) * config.examples_per_update / config.examples_seen(examples)
            changes = {"checkpoints.every_epochs": epochs / STAGES, "evaluation.after_training": False}
            config = config.with_values(changes)
        return complete_config(config, self.dataset)

    def done(self, config: RunConfig, examples: int) -> float:
        """Return the share of a trial's training that is done after `examples` training examples."""
        return examples / (config.total_updates(self.dataset.train_examples) * config.examples_per_update)

    def found(self, values: Values) -> dict[str, Any]:
        """Return all settings of a trial, shared and varied, as the content of a file for `run --config`."""
        return nested({**self.sweep.settings, **values})
