"""Keep the trials of a sweep in Optuna's journal file. No other module holds a study."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ps_cluster.errors import UserError
from ps_cluster.files import untrusted
from ps_cluster.installation import to_install
from ps_cluster.tools.sweep.methods import SearchMethod
from ps_cluster.tools.sweep.space import Space, Values

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial
    from optuna.trial import Trial as OptunaTrial

STUDY = "sweep"  # the name of the study in the journal

State = Literal["completed", "pruned", "running", "failed"]
_RANKED: tuple[State, ...] = ("completed", "pruned", "running", "failed")
_STATES: dict[str, State] = {"COMPLETE": "completed", "PRUNED": "pruned", "FAIL": "failed"}
_WHY = "why"


@dataclass(frozen=True)
class Trial:
    """A trial. `score` is the last known one on held-out examples, or None. `why` is the reason of a failure."""

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
        raise UserError(f"sweep needs Optuna ({error}): {to_install('sweep')}") from error


class TrialBook:
    """All trials of a sweep. Every change is on the disk when the method that makes it returns.

    A larger score is better, unless `smaller_is_better`.
    """

    def __init__(self, file: Path, method: SearchMethod, space: Space, *, seed: int, smaller_is_better: bool):
        """Open the journal, or begin one. Raises UserError if the file can't be used."""
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
        with _without_warnings():
            try:
                self._study = optuna.create_study(
                    storage=JournalStorage(JournalFileBackend(str(file.absolute()))),
                    study_name=STUDY,
                    direction="minimize" if smaller_is_better else "maximize",
                    pruner=method.pruner(),
                    load_if_exists=True,
                )
            except (ValueError, KeyError, OSError, optuna.exceptions.OptunaError) as error:
                raise UserError(
                    f"'{file}' is not a valid journal of trials ({error}): remove it to begin anew"
                ) from error
        running = (trial for trial in self._study.trials if trial.state.name == "RUNNING")
        self._open: dict[int, OptunaTrial] = {trial.number: self._reopened(trial) for trial in running}
        if method.is_grid:  # all combinations of a grid are in the queue, each once
            for values in space.grid():
                self._study.enqueue_trial(space.labels(values), skip_if_exists=True)

    def _reopened(self, frozen: FrozenTrial) -> OptunaTrial:
        """Return a trial of an earlier process. Draw the values that the earlier process had no time to draw."""
        from optuna.trial import Trial as OptunaTrial

        with _without_warnings():
            self._study.sampler = self._sampler(frozen.number)
            trial = OptunaTrial(self._study, frozen._trial_id)
            self._space.drawn(trial)
        return trial

    def _sampler(self, number: int) -> BaseSampler:
        """Return a sampler for one trial. A shared one would repeat its draws when the sweep restarts."""
        return self._method.sampler(self._seed + 1_000_003 * number)

    @property
    def trials(self) -> list[Trial]:
        """All trials that were drawn, in the order of drawing."""
        frozen = self._study.get_trials(deepcopy=False)
        return [self._trial(one) for one in frozen if one.state.name != "WAITING"]

    def draw(self) -> Trial:
        """Return a new trial."""
        with _without_warnings():
            self._study.sampler = self._sampler(len(self.trials))
            asked = self._study.ask()
            values = self._space.drawn(asked)
        self._open[asked.number] = asked
        return Trial(asked.number, values)

    def report(self, number: int, score: float, stage: int) -> bool:
        """Record the score after a stage. Return whether the trial should stop there."""
        trial = self._open[number]
        with _without_warnings():
            trial.report(score, stage)
            return bool(trial.should_prune())

    def completed(self, number: int, score: float) -> None:
        """Record the final score of a trial."""
        self._tell(number, score, "COMPLETE")

    def pruned(self, number: int) -> None:
        """Record that a trial was stopped early."""
        self._tell(number, None, "PRUNED")

    def failed(self, number: int, why: str) -> None:
        """Record that a trial failed."""
        self._open[number].set_user_attr(_WHY, why)
        self._tell(number, None, "FAIL")

    def ranked(self) -> list[Trial]:
        """Return all trials, the best first: the completed ones, then those stopped early, under way, and failed."""
        sign = 1 if self.smaller_is_better else -1

        def place(trial: Trial) -> tuple[int, float, int]:
            score = float("inf") if trial.score is None else sign * trial.score
            return _RANKED.index(trial.state), score, trial.number

        return sorted(self.trials, key=place)

    def best(self) -> Trial | None:
        """Return the best completed trial."""
        return next((trial for trial in self.ranked() if trial.state == "completed"), None)

    def _tell(self, number: int, score: float | None, state: str) -> None:
        from optuna.trial import TrialState

        with _without_warnings():
            self._study.tell(self._open.pop(number), score, state=TrialState[state])

    def _trial(self, frozen: FrozenTrial) -> Trial:
        state = _STATES.get(frozen.state.name, "running")
        last = frozen.intermediate_values[frozen.last_step] if frozen.last_step is not None else None
        score = frozen.value if state == "completed" else last
        return Trial(frozen.number, self._space.values(frozen.params), state, score, frozen.user_attrs.get(_WHY, ""))


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Suppress Optuna's warnings that some of its parts are experimental."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
