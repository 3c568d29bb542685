"""The plan of a sweep: its settings, its search space, and the configuration of each trial."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import to_jsonable_python

from ps_cluster.config import RunConfig, build_config
from ps_cluster.config.sections import CHOSEN, flat, joined, nested
from ps_cluster.config.user_layers import of_options, trusted
from ps_cluster.data.packed import PackedDataset
from ps_cluster.errors import UserError
from ps_cluster.files import untrusted
from ps_cluster.files.values import first_error
from ps_cluster.files.yaml_files import read_yaml
from ps_cluster.installation import to_install
from ps_cluster.launch.local_run import complete_config
from ps_cluster.tools.fleet import config_at_once
from ps_cluster.tools.sweep.space import MOST_TRIALS, SEARCH_METHODS, STAGES, SearchMethod, Space, Values, read_space

MOST_HELD_OUT = 5_000
HELD_OUT_SHARE = 0.1
# Trials must differ in nothing but what helps or harms them: not in the examples that judge them.
_JUDGING = ("data.", "evaluation.", "checkpoints.", "cluster.evaluator")
_MAY_VARY = ("data.augmentation.",)
_NAMING = {f"{section}.{choice.key}": choice.kinds for section, choice in CHOSEN.items()}  # settings that may name code


def _known(method: str) -> str:
    if method not in SEARCH_METHODS:
        raise ValueError(f"there are {', '.join(SEARCH_METHODS)}")
    return method


class Sweep(BaseModel):
    """A sweep. `settings` has the sections of a run's configuration that all trials share."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)
    vary: dict[Annotated[str, Field(pattern=r"^\w+(\.\w+){1,9}$")], Any] = {}
    method: Annotated[str, AfterValidator(_known)] = "random"
    trials: int | None = Field(default=None, ge=1, le=MOST_TRIALS)
    seed: int = Field(default=0, ge=0, lt=2**31)
    settings: dict[str, Any] = {}


def read_sweep(file: Path | None, changes: dict[str, Any], overrides: dict[str, Any]) -> Sweep:
    """Return the sweep in a file, changed by the command line.

    Args:
      changes: fields of `Sweep` given on the command line; `vary` is added to that of the file.
      overrides: dotted key → value, settings of all trials.
    Raises:
      UserError: the file can't be read, a key is unknown, or a value is not valid.
    """
    content = read_yaml(file) if file else {}
    content = {key: value for key, value in content.items() if value is not None}  # an empty section
    try:
        given = Sweep.model_validate(content)
        vary = _seen_from(file.absolute().parent, given.vary) if file else {}
        vary |= _seen_from(Path.cwd(), changes.get("vary", {}))
        sweep = Sweep.model_validate({**given.model_dump(), **changes, "vary": vary})
    except ValidationError as error:
        raise UserError(first_error(error, str(file) if file else "sweep", names=Sweep.model_fields)) from error
    from_file = trusted(nested(flat(sweep.settings)), file.absolute().parent) if file else {}
    alone = {} if "mode.name" in sweep.vary else {"mode.name": "single"}
    given_here = flat(of_options(overrides).settings)
    settings = to_jsonable_python(joined([alone, flat(from_file), given_here]))  # a path as text
    return sweep.model_copy(update={"settings": settings})


def _seen_from(folder: Path, vary: Mapping[str, Any]) -> dict[str, Any]:
    """Return what varies, with the whole paths of the files that it names as seen from a folder."""
    whole = dict(vary)
    for key in _NAMING.keys() & vary.keys():
        values = vary[key]
        names = [name.strip() for name in values.split(",")] if isinstance(values, str) else values
        if isinstance(names, list):
            name_of = _NAMING[key].named_by_user
            whole[key] = [name_of(name, folder) if isinstance(name, str) else name for name in names]
    return whole


def checked_space(sweep: Sweep) -> Space:
    """Return the search space of a sweep. Raises UserError for what no data set could change."""
    space = read_space(sweep.vary)
    for key in space.axes:
        if key.startswith(_JUDGING) and not key.startswith(_MAY_VARY):
            raise UserError(f"--vary {key}: trials are judged on the same examples in the same way: leave it out")
        if key in sweep.settings:
            raise UserError(f"--vary {key}: it is also set to {sweep.settings[key]!r:.80}: leave one of them out")
    SEARCH_METHODS[sweep.method].count(space, sweep.trials)
    for values in space.samples():
        build_config(None, {**sweep.settings, **values}).check_fits_one_machine()
    return space


def mode_of(settings: Mapping[str, Any], vary: Collection[str], what: str) -> str:
    """Return a line about the mode in which each trial, or member of an ensemble, is trained. `what`: the word for one."""
    if "mode.name" in vary:
        return f"each {what} is trained in the mode that it has from --vary"
    if (name := settings.get("mode.name")) != "single":
        return f"each {what} is trained in mode {name}"
    return (
        f"each {what} is trained in mode single, by one process: no gradient is stale. A rate that is best there may be too "
        "high for other modes; --mode NAME takes another one"
    )


@dataclass(frozen=True)
class SweepPlan:
    """A sweep with its search space, on one data set.

    Attributes:
      dataset: holds out the training examples that judge the trials.
    """

    sweep: Sweep
    space: Space
    dataset: PackedDataset

    @classmethod
    def on(cls, dataset: PackedDataset, sweep: Sweep, space: Space) -> SweepPlan:
        """Return the plan. Raises UserError for anything that a trial would refuse."""
        wanted = flat(sweep.settings).get("evaluation.validation_examples") or 0
        held_out = wanted or max(1, min(MOST_HELD_OUT, int(HELD_OUT_SHARE * dataset.train_examples)))
        plan = cls(sweep, space, dataset.holding_out(held_out))
        for values in space.samples():
            plan.config(values)
        return plan

    @property
    def method(self) -> SearchMethod:
        return SEARCH_METHODS[self.sweep.method]

    @property
    def count(self) -> int:
        """The number of trials."""
        return self.method.count(self.space, self.sweep.trials)

    def config(self, values: Values) -> RunConfig:
        """Return the configuration of a trial. Raises UserError where the values don't fit."""
        judged = {"evaluation.validation_examples": self.dataset.validation_examples}
        config = config_at_once({**self.sweep.settings, **values, **judged})
        if self.method.halves:  # a checkpoint, and so a score, after each stage
            examples = self.dataset.train_examples
            epochs = config.total_updates(examples) * config.examples_per_update / config.examples_seen(examples)
            changes = {"checkpoints.every_epochs": epochs / STAGES, "evaluation.after_training": False}
            config = config.with_values(changes)
        return complete_config(config, self.dataset)

    def done(self, config: RunConfig, examples: int) -> float:
        """Return the share of a trial that is done after so many examples."""
        return examples / (config.total_updates(self.dataset.train_examples) * config.examples_per_update)

    def found(self, values: Values) -> dict[str, Any]:
        """Return the settings of a trial as a file for `run --config`: what the user gave, and what was found."""
        return nested({**self.sweep.settings, **values})


# The trials of a sweep, kept by Optuna in a journal file: drawn, reported, judged. The only module that holds a study.

FEWEST_FOR_IMPORTANCE = 8  # completed trials: of fewer, the shares say nothing

State = Literal["running", "completed", "pruned", "failed"]
_WHY = "why"


@dataclass(frozen=True)
class Trial:
    """A trial. `score`: on held-out examples, the last one known; None if there is none. `why`: of a failure."""

    number: int
    values: Values
    state: State = "running"
    score: float | None = None
    why: str = ""


def check_installed() -> None:
    """Raise UserError where Optuna is not installed."""
    try:
        import optuna  # noqa: F401
    except ImportError as error:
        raise UserError(f"sweep needs Optuna ({error}): {to_install('sweep')}") from error


class TrialBook:
    """All trials of a sweep. What it is told is on the disk when it returns.

    Scores are better if larger, unless `smaller_is_better`.
    """

    def __init__(self, file: Path, method: SearchMethod, space: Space, *, seed: int, smaller_is_better: bool):
        """Open the journal, or begin one. Raises UserError where it can't be used."""
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._optuna, self._method, self._space, self._seed = optuna, method, space, seed
        self.smaller_is_better = smaller_is_better
        if file.exists():
            untrusted.refuse_foreign(file)
        # The caller holds the folder. Optuna would wait for ever for the lock of a process that was killed.
        file.with_name(f"{file.name}.lock").unlink(missing_ok=True)
        with _quietly():
            try:
                self._study = optuna.create_study(
                    storage=JournalStorage(JournalFileBackend(str(file.absolute()))),
                    study_name="sweep",
                    direction="minimize" if smaller_is_better else "maximize",
                    pruner=method.pruner(),
                    load_if_exists=True,
                )
            except (ValueError, KeyError, OSError, optuna.exceptions.OptunaError) as error:
                raise UserError(f"'{file}' is no sound journal of trials ({error}): remove it to begin anew") from error
        running = (trial for trial in self._study.trials if trial.state.name == "RUNNING")
        self._open: dict[int, Any] = {trial.number: self._reopened(trial) for trial in running}
        if method.is_grid:  # all its combinations stand in the queue, each once
            for values in space.grid():
                self._study.enqueue_trial(space.labels(values), skip_if_exists=True)

    def _reopened(self, frozen: Any) -> Any:
        """Return a trial of an earlier process; what that had no time to draw is drawn now."""
        with _quietly():
            self._study.sampler = self._sampler(frozen.number)
            trial = self._optuna.trial.Trial(self._study, frozen._trial_id)
            self._space.drawn(trial)
        return trial

    def _sampler(self, number: int) -> Any:
        """Return a sampler for one trial: a single one would draw the same values again after a restart of the sweep."""
        return self._method.sampler(self._seed + 1_000_003 * number)

    @property
    def trials(self) -> list[Trial]:
        """All trials that were drawn, in their order."""
        frozen = self._study.get_trials(deepcopy=False)
        return [self._trial(one) for one in frozen if one.state.name != "WAITING"]

    @property
    def begun(self) -> list[Trial]:
        """The trials that are under way."""
        return [trial for trial in self.trials if trial.state == "running"]

    def draw(self) -> Trial:
        """Return a new trial."""
        with _quietly():
            self._study.sampler = self._sampler(len(self.trials))
            asked = self._study.ask()
            values = self._space.drawn(asked)
        self._open[asked.number] = asked
        return Trial(asked.number, values)

    def report(self, number: int, score: float, stage: int) -> bool:
        """Take the score after a stage; return whether the trial should stop there."""
        trial = self._open[number]
        with _quietly():
            trial.report(score, stage)
            return bool(trial.should_prune())

    def completed(self, number: int, score: float) -> None:
        self._tell(number, score, "COMPLETE")

    def pruned(self, number: int) -> None:
        self._tell(number, None, "PRUNED")

    def failed(self, number: int, why: str) -> None:
        self._open[number].set_user_attr(_WHY, why)
        self._tell(number, None, "FAIL")

    def ranked(self) -> list[Trial]:
        """Return all trials, the best first: completed, then stopped early, then under way, then failed ones."""
        sign = 1 if self.smaller_is_better else -1
        places = ("completed", "pruned", "running", "failed")

        def place(trial: Trial) -> tuple[int, float, int]:
            score = float("inf") if trial.score is None else sign * trial.score
            return places.index(trial.state), score, trial.number

        return sorted(self.trials, key=place)

    def best(self) -> Trial | None:
        """Return the best completed trial."""
        return next((trial for trial in self.ranked() if trial.state == "completed"), None)

    def importances(self) -> dict[str, float]:
        """Return each setting's share of what decides the score, by PED-ANOVA; none for few trials.

        Watanabe et al. 2023, "PED-ANOVA: Efficiently Quantifying Hyperparameter Importance in Arbitrary Subspaces".
        """
        done = [trial for trial in self.trials if trial.state == "completed"]
        if len(done) < FEWEST_FOR_IMPORTANCE or len({trial.score for trial in done}) == 1:
            return {}
        from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

        with _quietly():
            return dict(get_param_importances(self._study, evaluator=PedAnovaImportanceEvaluator()))

    def _tell(self, number: int, score: float | None, state: str) -> None:
        with _quietly():
            self._study.tell(self._open.pop(number), score, state=self._optuna.trial.TrialState[state])

    def _trial(self, frozen: Any) -> Trial:
        states: dict[str, State] = {"COMPLETE": "completed", "PRUNED": "pruned", "FAIL": "failed"}
        state = states.get(frozen.state.name, "running")
        last = frozen.intermediate_values[frozen.last_step] if frozen.last_step is not None else None
        trial = Trial(
            frozen.number, self._space.values(frozen.params), state, frozen.value if state == "completed" else last
        )
        return replace(trial, why=frozen.user_attrs.get(_WHY, ""))


@contextmanager
def _quietly() -> Iterator[None]:
    """Leave out Optuna's warnings that parts of it are new."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
