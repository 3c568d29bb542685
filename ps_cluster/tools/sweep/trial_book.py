"""Keep the trials of a sweep in Optuna's journal file. No other module uses Optuna's study."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from ps_cluster.errors import UserError
from ps_cluster.files import untrusted
from ps_cluster.installation import install_command
from ps_cluster.tools.sweep.methods import SearchMethod
from ps_cluster.tools.sweep.space import Space, Values

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial
    from optuna.trial import Trial as OptunaTrial

STUDY = "sweep"  # the name of the study in the journal

State = Literal["completed", "pruned", "running", "failed"]  # the best first
_RANKED: tuple[State, ...] = get_args(State)
_STATES: dict[str, State] = {"COMPLETE": "completed", "PRUNED": "pruned", "FAIL": "failed"}
_WHY = "why"


@dataclass(frozen=True)
class Trial:
    """A trial of a sweep.

    Attributes:
      score: its last recorded score on held-out examples; None if no score is recorded.
      why: why the trial failed; "" if it has not failed.
    """

    number: int
    values: Values
    state: State = "running"
    score: float | None = None
    why: str = ""


def check_installed() -> None:
    """Raise UserError if Optuna is not installed."""
    try:
        import optuna  # noqa: F401
    except ImportError as error:
        raise UserError(f"sweep needs Optuna ({error}): {install_command('sweep')}") from error


class TrialBook:
    """A record of all trials of a sweep, kept in Optuna's journal file.

    When a method that changes the record returns, the change is on the disk.
    A larger score is better, unless `smaller_is_better`.
    """

    def __init__(self, file: Path, method: SearchMethod, space: Space, *, seed: int, smaller_is_better: bool):
        """Open the journal in `file`, or create it. Raises UserError if the file can't be used."""
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._method, self._space, self._seed = method, space, seed
        self.smaller_is_better = smaller_is_better
        if file.exists():
            untrusted.refuse_foreign(file)
        # A killed process may have left this lock, and Optuna would wait for ever. The caller holds the lock of the folder.
        file.with_name(f"{file.name}.lock").unlink(missing_ok=True)
        try:
            self._study = optuna.create_study(
                storage=JournalStorage(JournalFileBackend(str(file.absolute()))),
                study_name=STUDY,
                direction="minimize" if smaller_is_better else "maximize",
                pruner=method.pruner(),
                load_if_exists=True,
            )
        except (ValueError, KeyError, OSError, optuna.exceptions.OptunaError) as error:
            raise UserError(f"'{file}' is not a valid journal of trials ({error}): remove it to begin anew") from error
        running = (trial for trial in self._study.trials if trial.state.name == "RUNNING")
        self._open: dict[int, OptunaTrial] = {trial.number: self._reopened(trial) for trial in running}
        if method.is_grid:  # all combinations of a grid are in the queue, each once
            for combination in space.grid():
                self._study.enqueue_trial(combination, skip_if_exists=True)

    def _reopened(self, frozen: FrozenTrial) -> OptunaTrial:
        """Return a trial that an earlier process began. Draw the values that the earlier process had no time to draw."""
        from optuna.trial import Trial as OptunaTrial

        self._study.sampler = self._sampler(frozen.number)
        trial = OptunaTrial(self._study, frozen._trial_id)
        self._space.drawn(trial)
        return trial

    def _sampler(self, number: int) -> BaseSampler:
        """Return a sampler for one trial. A shared sampler would repeat its draws when the sweep restarts."""
        return self._method.sampler(self._seed + 1_000_003 * number)

    @property
    def trials(self) -> list[Trial]:
        """All trials that were drawn, in the order of drawing."""
        frozen = self._study.get_trials(deepcopy=False)
        return [self._trial(one) for one in frozen if one.state.name != "WAITING"]

    def draw(self) -> Trial:
        """Begin a new trial, and return it with the values of its settings."""
        self._study.sampler = self._sampler(len(self.trials))
        asked = self._study.ask()
        self._open[asked.number] = asked
        return Trial(asked.number, self._space.drawn(asked))

    def report(self, number: int, score: float, stage: int) -> bool:
        """Record a trial's score after a stage of its training. Return whether the trial should be stopped early."""
        trial = self._open[number]
        with warnings.catch_warnings():
            # A sweep that continues reads the scores of its trials again. Optuna warns that it keeps the first report.
            warnings.simplefilter("ignore", UserWarning)
            trial.report(score, stage)
        return trial.should_prune()

    def completed(self, number: int, score: float) -> None:
        """Record the final score of a trial."""
        self._study.tell(self._open.pop(number), score)

    def pruned(self, number: int) -> None:
        """Record that a trial was stopped early."""
        from optuna.trial import TrialState

        self._study.tell(self._open.pop(number), state=TrialState.PRUNED)

    def failed(self, number: int, why: str) -> None:
        """Record that a trial failed."""
        from optuna.trial import TrialState

        trial = self._open.pop(number)
        trial.set_user_attr(_WHY, why)
        self._study.tell(trial, state=TrialState.FAIL)

    def ranked(self) -> list[Trial]:
        """Return all trials, the best first: completed trials, then those stopped early, under way, and failed."""
        sign = 1 if self.smaller_is_better else -1

        def place(trial: Trial) -> tuple[int, float, int]:
            score = float("inf") if trial.score is None else sign * trial.score
            return _RANKED.index(trial.state), score, trial.number

        return sorted(self.trials, key=place)

    def best(self) -> Trial | None:
        """Return the best completed trial, or None if no trial has completed."""
        return next((trial for trial in self.ranked() if trial.state == "completed"), None)

    def _trial(self, frozen: FrozenTrial) -> Trial:
        state = _STATES.get(frozen.state.name, "running")
        last = frozen.intermediate_values[frozen.last_step] if frozen.last_step is not None else None
        score = frozen.value if state == "completed" else last
        return Trial(
            frozen.number, self._space.from_optuna(frozen.params), state, score, frozen.user_attrs.get(_WHY, "")
        )
