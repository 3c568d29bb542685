"""Choose the settings of each arm of a study on held-out examples, then train the arm with fresh seeds, several at a time.

A study keeps every training, a *trial*, in a record as soon as it has ended. The same command on the same record continues an
interrupted study, also on another machine or after the folder of the runs is gone.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import click
from pydantic import BaseModel, ConfigDict

from benchmarks.records import Column, Record, half_interval, keep
from benchmarks.training import train
from ps_cluster.cli.value_types import Integer
from ps_cluster.files.json_files import read_json
from ps_cluster.quiet_import import import_tensorflow
from ps_cluster.report.terminal import print_line
from ps_cluster.system import machine
from ps_cluster.tools.compare.records import read_record

STEP = 2.0  # from one learning rate to the next
DATA_DIR = click.option(
    "--data-dir", type=click.Path(exists=True, path_type=Path, resolve_path=True), help="The folder of CIFAR-10."
)
AT_A_TIME = click.option(
    "--at-a-time", type=Integer(1, 16), default=2, help="Number of trainings that run at the same time."
)
COLUMNS = {
    "arm": Column(heading="arm"),
    "rate": Column(heading="learning rate", digits=5),
    "momentum": Column(heading="momentum", digits=2),
    "seed": Column(heading="seed"),
    "held_out": Column(heading="held-out examples"),
    "score": Column(heading="score", digits=4),
    "commit": Column(heading="commit"),
}


class Choice(BaseModel):
    """A learning rate, and a momentum if the rule has one. A study chooses them on held-out examples."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rate: float
    momentum: float | None

    @property
    def text(self) -> str:
        """The rate, and the momentum if there is one, for tables."""
        return f"{self.rate:g}" if self.momentum is None else f"{self.rate:g}, {self.momentum:g}"


@dataclass(frozen=True)
class Arm:
    """One of the ways to train that a study compares.

    Attributes:
      name: its name, which is unique in a study.
      settings: the settings of every trial, by their dotted keys.
      rates: the learning rates that are tried first, each `STEP` times the previous rate.
      held_out: the number of training examples that are held out to choose the rate and the momentum.
      scale: the factor that turns a score into the unit of tables. It is negative if a smaller score is better.
      momentum_key: the name of the setting that holds the momentum.
      momenta: the momenta to choose from. A rule without momentum has (). The first rates are tried with the first of them.
      averaged: the number of last scores whose mean is the score of a trial. At a constant learning rate, single scores
        vary from one checkpoint to the next.
      tuning_seeds: the number of seeds with which each choice is tried, beginning with seed 0. The seeds of the final
        trials come after them.
    """

    name: str
    settings: Mapping[str, Any]
    rates: tuple[float, ...]
    held_out: int
    scale: float
    momentum_key: str = ""
    momenta: tuple[float, ...] = ()
    averaged: int = 1
    tuning_seeds: int = 1

    def merit(self, score: float | None) -> float:
        """Return a score such that larger is better. `score`: None for a training that diverged."""
        return -math.inf if score is None else self.scale * score

    def best(self, tried: Mapping[Choice, float | None]) -> Choice:
        """Return the choice with the best score. `tried`: the scores on held-out examples."""
        return max(tried, key=lambda choice: self.merit(tried[choice]))

    def missing(self, tried: Mapping[Choice, float | None]) -> list[Choice]:
        """Return the choices to try next; none if the best choice is better than all its neighbours.

        The first rates come first. Then all neighbours of the best choice are tried, until it stays the best. So the
        best rate is never at the edge of the rates that were tried.
        """
        first = [Choice(rate=rate, momentum=self.momenta[0] if self.momenta else None) for rate in self.rates]
        if wanted := [choice for choice in first if choice not in tried]:
            return wanted
        best = self.best(tried)
        beside = [best.model_copy(update={"rate": rate}) for rate in (best.rate / STEP, best.rate * STEP)]
        beside += [best.model_copy(update={"momentum": momentum}) for momentum in self.momenta]
        return [choice for choice in beside if choice not in tried]


class Trial(BaseModel):
    """One training of an arm, with its score.

    Attributes:
      held_out: the number of training examples that were held out and scored; 0: the test examples were scored.
      score: the metric of the last weights, or the mean of the last scores (`Arm.averaged`); None if the training diverged.
      commit: the commit of the code that trained.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    arm: str
    rate: float
    momentum: float | None
    seed: int
    held_out: int
    score: float | None
    commit: str

    @property
    def choice(self) -> Choice:
        return Choice(rate=self.rate, momentum=self.momentum)


@dataclass(frozen=True)
class Difference:
    """A difference between trainings, taken seed by seed.

    Attributes:
      text: the name of the difference.
      values: a difference for each seed that all compared trainings have, in the units of the table.
    """

    text: str
    values: tuple[float, ...]

    def p_value(self) -> float:
        """Return the probability that chance moves a mean at least this far from 0 (two-sided, Student's t for pairs)."""
        import_tensorflow()
        import tensorflow as tf  # of the installed libraries, only TensorFlow has this distribution

        error = stdev(self.values) / math.sqrt(len(self.values))
        if not error:
            return 0.0 if mean(self.values) else 1.0
        degrees, t = len(self.values) - 1, mean(self.values) / error
        return float(
            tf.math.betainc(*(tf.constant(x, tf.float64) for x in (degrees / 2, 0.5, degrees / (degrees + t * t))))
        )


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p values corrected for their number (Holm 1979, "A simple sequentially rejective multiple test procedure")."""
    corrected, largest = [1.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected


def lines_of(differences: Sequence[Difference], digits: int) -> list[str]:
    """Return a line for each difference: its mean, half of its 95 % interval, and its p value by Holm's correction."""
    return [
        f"{one.text}: {mean(one.values):+.{digits}f} ± {half_interval(one.values):.{digits}f}, n = {len(one.values)}, "
        f"corrected p = {p:.2g}"
        for one, p in zip(differences, holm([one.p_value() for one in differences]))
    ]


class Wanted(NamedTuple):
    """A trial that is still to be trained. `held_out`: as in a `Trial`."""

    arm: Arm
    choice: Choice
    seed: int
    held_out: int


def _trials_in(record: Path) -> list[Trial]:
    return [Trial.model_validate(row) for row in read_json(record, Record).rows]


class Study:
    """A study that compares arms. It trains their trials, and keeps all trials in a record."""

    def __init__(self, record: Path, arms: Sequence[Arm], used_again: Sequence[Path] = ()):
        """Read the trials that the records already have.

        Args:
          record: the JSON file of the study, which may be missing.
          used_again: the records of other studies, whose trials of arms with the same names are used too.
        """
        self._record = record
        self._arms = arms
        self._lock = threading.Lock()
        self._trials = _trials_in(record) if record.exists() else []
        self._of_others = [trial for other in used_again for trial in _trials_in(other)]

    @property
    def _all(self) -> list[Trial]:
        return [*self._of_others, *self._trials]

    def on_held_out(self, arm: Arm) -> dict[Choice, dict[int, float | None]]:
        """Return the scores of an arm's trials on held-out examples, by choice and seed.

        The score of a trial that diverged is None.
        """
        found: dict[Choice, dict[int, float | None]] = {}
        for trial in self._all:
            if trial.arm == arm.name and trial.held_out:
                found.setdefault(trial.choice, {})[trial.seed] = trial.score
        return found

    def tried(self, arm: Arm) -> dict[Choice, float | None]:
        """Return the choices that were tried with all seeds, and the mean of their scores on held-out examples.

        The mean is None if a training diverged.
        """
        return {
            choice: None if None in scores.values() else mean(score for score in scores.values() if score is not None)
            for choice, scores in self.on_held_out(arm).items()
            if len(scores) >= arm.tuning_seeds
        }

    def commits(self, on_held_out: bool) -> set[str]:
        """Return the commits with which the trials of all arms were trained.

        `on_held_out`: True for the trials that were scored on held-out examples, False for the final trials.
        """
        names = {arm.name for arm in self._arms}
        return {trial.commit for trial in self._all if trial.arm in names and bool(trial.held_out) == on_held_out}

    def finals(self, arm: Arm) -> dict[int, Trial]:
        """Return the trials with the best choice of an arm that were scored on the test examples, by their seeds.

        Trials of another choice are left out. They may come from another study, which tried fewer choices.
        """
        trials = [trial for trial in self._all if trial.arm == arm.name and not trial.held_out]
        if tried := self.tried(arm):
            best = arm.best(tried)
            trials = [trial for trial in trials if trial.choice == best]
        return {trial.seed: trial for trial in trials}

    def scores(self, arm: Arm) -> dict[int, float]:
        """Return the scores of an arm's final trials by their seeds, without trainings that diverged."""
        return {seed: trial.score for seed, trial in sorted(self.finals(arm).items()) if trial.score is not None}

    def difference(self, text: str, of: Arm, against: Arm) -> Difference:
        """Return by how much `of` is better than `against`, for each seed that both have. `text`: the name of the result."""
        return self.contrast(text, [of], [against])

    def contrast(self, text: str, added: Sequence[Arm], subtracted: Sequence[Arm]) -> Difference:
        """Return the sum of the scores of some arms minus that of others, for each seed that all of them have.

        `text`: the name of the result. The arms have the same `scale`.
        """
        scale, scores = added[0].scale, [self.scores(one) for one in (*added, *subtracted)]
        signs = [1] * len(added) + [-1] * len(subtracted)
        seeds = sorted(set[int].intersection(*map(set, scores)))
        return Difference(
            text, tuple(scale * sum(sign * of[seed] for sign, of in zip(signs, scores)) for seed in seeds)
        )

    def missing(self, seeds: int) -> list[Wanted]:
        """Return the trials that can be trained now.

        Trials that find the choices come first. Then come the final trials of the arms whose choice is made, seed by seed,
        so that the arms take turns. The list is empty when each arm has its `seeds` final trials.
        """
        choices, finals = [], []
        for arm in self._arms:
            tried = self.tried(arm)
            if wanted := arm.missing(tried):
                done = self.on_held_out(arm)
                choices += [
                    Wanted(arm, choice, seed, arm.held_out)
                    for choice in wanted
                    for seed in range(arm.tuning_seeds)
                    if seed not in done.get(choice, {})
                ]
            else:
                first, best = arm.tuning_seeds, arm.best(tried)
                new = [seed for seed in range(first, first + seeds) if seed not in self.finals(arm)]
                finals += [Wanted(arm, best, seed, 0) for seed in new]
        return choices + sorted(finals, key=lambda trial: trial.seed)

    def train(self, seeds: int, at_a_time: int, data: Mapping[str, Any] = {}) -> None:
        """Train all trials of the study that are missing.

        Args:
          seeds: the number of final trials of each arm.
          at_a_time: the number of trainings that run at the same time.
          data: settings that locate the data, e.g. `data.data_dir`.

        Raises:
          RunFailed: a training failed. Trials that ended before are kept.
        """
        running: dict[Future[None], Wanted] = {}
        shares = shares_of_cores(sorted(os.sched_getaffinity(0)), at_a_time)
        with ThreadPoolExecutor(at_a_time, initializer=lambda: os.sched_setaffinity(0, shares.pop())) as pool:
            while True:
                # Each score may change what is missing, so the next trial is chosen only when there is room for it.
                wanted = [trial for trial in self.missing(seeds) if trial not in running.values()]
                for trial in wanted[: at_a_time - len(running)]:
                    running[pool.submit(self._train, trial, data)] = trial
                if not running:
                    return
                for done in wait(running, return_when=FIRST_COMPLETED).done:
                    running.pop(done)
                    done.result()

    def _train(self, wanted: Wanted, data: Mapping[str, Any]) -> None:
        """Train once, and keep the trial."""
        arm, choice, seed, held_out = wanted
        settings = {
            **arm.settings, **data, "optimizer.learning_rate": choice.rate, "training.seed": seed,
            "evaluation.validation_examples": held_out,
        }  # fmt: skip
        if choice.momentum is not None:
            settings[arm.momentum_key] = choice.momentum
        score = score_of(settings, arm.averaged)
        trial = Trial(
            arm=arm.name, **choice.model_dump(), seed=seed, held_out=held_out, score=score,
            commit=machine.describe().commit or "unknown",
        )  # fmt: skip
        self.keep(trial)
        print_line(f"{arm.name}, {choice}, seed {seed}: {score}")

    def keep(self, trial: Trial) -> None:
        """Add a trial to the record, which may also have new trials of another process."""
        with self._lock:
            self._trials = [*(_trials_in(self._record) if self._record.exists() else []), trial]
            keep(self._record, [one.model_dump() for one in self._trials], COLUMNS)


def shares_of_cores(cores: Sequence[int], at_a_time: int) -> list[set[int]]:
    """Return the cores of each training, so that trainings at the same time do not compete for a core unless they must.

    A thread of the pool keeps its cores, and its trainings inherit them, because in Linux each thread has its own set of
    cores. Whether two of these cores are hyperthreads of the same physical core is not considered.
    """
    return [set(cores[number::at_a_time]) or {cores[number % len(cores)]} for number in range(at_a_time)]


def score_of(settings: Mapping[str, Any], averaged: int = 1) -> float | None:
    """Train with some settings, and return the mean of the last `averaged` scores; None if the training diverged.

    The settings have no time limit, so a training that did not diverge has a last score.

    Raises:
      RunFailed: the training failed.
    """
    with TemporaryDirectory(prefix="trial-") as folder:
        root = Path(folder) / "run"
        train(root, settings, may_diverge=True)
        record = read_record(root)
        return None if record.diverged else mean(value for _, value in record.track[-averaged:])
