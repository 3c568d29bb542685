"""The trials of a sweep, kept by Optuna in a journal file: drawn, reported, judged. The only module that holds a study."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ps_cluster.errors import UserError
from ps_cluster.files import ownership
from ps_cluster.installation import to_install
from ps_cluster.sweep.methods import SearchMethod
from ps_cluster.sweep.space import Space, Values

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
            ownership.refuse_foreign(file)
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

    def queue(self, space: Space) -> None:
        """Put all combinations of a grid into the queue, each once."""
        for values in space.grid():
            self._study.enqueue_trial(space.labels(values), skip_if_exists=True)

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
