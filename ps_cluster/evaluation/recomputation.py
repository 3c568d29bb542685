"""Compute sampled updates again, outside the cluster, and compare them with what the cluster did.

    weights that a worker got  ──Keras, float32──►  gradient, fresh statistics   compared with what the shards received
    gradient                   ──numpy, float64──►  weights, slots, statistics   compared with the shards afterwards
    weights of a shard         ──numpy, float64──►  weights that a pull returns  compared with what the worker got

The tolerances follow from the precision in which the cluster computes. A deviation is reported as a multiple of its
tolerance. Rounding explains a deviation of up to 1.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ps_cluster.config import RunConfig
from ps_cluster.config.equations import ArrivedParts, Matrix, Slots, UpdateParts, mean_of
from ps_cluster.config.modes import Mode
from ps_cluster.config.optimizer_rules import RULES
from ps_cluster.config.staleness_methods import METHODS
from ps_cluster.data.packed import PackedDataset
from ps_cluster.errors import UserError
from ps_cluster.files.json_rows import append_row
from ps_cluster.files.values import Malformed, one_line
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.runs.update_samples import (
    LARGEST_MATRIX,
    RecomputedRow,
    SampledShard,
    UpdateSample,
    read_sample,
    settings_digest,
    waiting_samples,
)

if TYPE_CHECKING:  # imports TensorFlow
    from ps_cluster.training.recomputed_steps import RecomputedSteps

# The largest relative error of a gradient, |received - recomputed| / |recomputed|, by the dtype of the workers'
# computation.
GRADIENT_TOLERANCE = {"float32": 0.01, "bfloat16": 0.1}
# If the error is larger, plain Keras also computes the gradient in bfloat16. The received gradient may deviate from the
# float32 gradient TIMES_ROUNDING times as much as this bfloat16 gradient does.
TIMES_ROUNDING = 3.0
# The largest relative error of the change of the weights in a period of local steps. In bfloat16, with an optimizer
# that divides by the size of the gradient, small differences grow from step to step. So it is only checked that the
# weights moved in roughly the same direction. An optimizer that makes steps orthogonal enlarges the small differences
# between two gradients up to 500 times, also in float32.
PERIOD_TOLERANCE = {"float32": 0.05, "bfloat16": 1.0}
PERIOD_TOLERANCE_OF_MATRICES = 0.5
# The largest relative error of fresh statistics: first that of a step, then that of a period of local steps.
STATISTICS_TOLERANCE = {"float32": 0.001, "bfloat16": 0.02}
PERIOD_STATISTICS_TOLERANCE = {"float32": 0.02, "bfloat16": 0.5}
STEP_TOLERANCE = 1e-3  # relative to the norm of the change by an update; TensorFlow's kernels compute in float32
ROUNDING = 2.0**-22  # relative error of a float32 value after a few operations
_MOST_ROUNDED_DIFFERENTLY = 0.01  # the largest share of weights that may be rounded to the neighbouring value
_ALWAYS_ALLOWED = 1e-9  # an absolute error that is always allowed


@dataclass
class _Findings:
    """The results of the comparisons of one update: the fields of a `RecomputedRow`."""

    name: str
    deviations: dict[str, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)

    def note(self, quantity: str, error: float, tolerance: float, problem: str) -> None:
        """Record the deviation of a quantity. `problem`: the line to report if the deviation exceeds its tolerance."""
        deviation = error / tolerance if tolerance > 0 else math.inf if error > 0 else 0.0
        deviation = deviation if math.isfinite(deviation) else 1e300
        self.deviations[quantity] = max(self.deviations.get(quantity, 0.0), deviation)
        if deviation > 1:
            self.problems.append(f"{self.name}: {problem}")

    def leave_unchecked(self, line: str) -> None:
        """Record a line about what can't be computed again, unless this line is recorded already."""
        if line not in self.unchecked:
            self.unchecked.append(line)


class Recomputation:
    """Computes the sampled updates of a run again, one per call. The first call imports TensorFlow."""

    def __init__(self, run_dir: RunDir, config: RunConfig, dataset: Callable[[], PackedDataset]):
        """Create a recomputation of a run's sampled updates. `dataset`: returns the packed data set of the run."""
        self._run_dir, self._config, self._find_dataset = run_dir, config, dataset
        self._mode: Mode = config.chosen_mode

    def next(self) -> RecomputedRow | None:
        """Compute again the oldest sampled update that is still waiting. Record the result, and return it.

        Return None if no update is waiting.

        Raises:
          OSError: the result can't be written.
          UserError: the data set of the run can't be found, or its network can't be built.
        """
        for path in waiting_samples(self._run_dir.samples):
            started = time.monotonic()
            try:
                sample = read_sample(path)
            except FileNotFoundError:
                continue
            except Malformed as error:
                row = RecomputedRow(update=0, workers=[], unchecked=[f"a sampled update that is damaged: {error}"])
            else:
                row = self._recompute_safely(sample)
            append_row(self._run_dir.recomputed, row.model_copy(update={"seconds": time.monotonic() - started}))
            if not row.problems:  # a sample that disagrees is kept as evidence
                path.unlink(missing_ok=True)
            else:
                path.rename(path.with_name(f"disagrees-{path.name}"))
            return row
        return None

    def _recompute_safely(self, sample: UpdateSample) -> RecomputedRow:
        """Compute an update again. If this fails, the update counts as unchecked, and the evaluator can continue."""
        header = sample.header
        workers = " and ".join(f"worker-{index}" for index in header.workers)
        findings = _Findings(f"update {header.update} of {workers}")
        try:
            with np.errstate(all="ignore"):  # a diverging training has NaN or infinite values
                self._compare(sample, findings)
        except UserError:
            raise
        except Exception as error:
            why = one_line(f"{type(error).__name__}: {error}", 300)
            findings = _Findings("", unchecked=[f"an update that could not be computed again: {why}"])
        return RecomputedRow(
            update=header.update,
            term=header.term,
            workers=header.workers,
            deviations=findings.deviations,
            problems=findings.problems,
            unchecked=findings.unchecked,
        )

    def _compare(self, sample: UpdateSample, findings: _Findings) -> None:
        if sample.header.settings != settings_digest(self._config):
            return findings.leave_unchecked("updates computed before the run was resumed with other settings")
        if not all(map(_is_finite, sample.shards)):
            return findings.leave_unchecked("updates with values that are not finite")
        self._compare_gradients(sample, findings)
        self._compare_statistics(sample, findings)
        for index, shard in enumerate(sample.shards):
            holder = "worker" if self._mode.shares_steps else "parameter server"
            where = f" on {holder} {index}" if len(sample.shards) > 1 else ""
            self._compare_given(shard, findings, where)
            self._compare_update(sample, index, findings, where)

    @cached_property
    def _dataset(self) -> PackedDataset:
        return self._find_dataset()

    @cached_property
    def _steps(self) -> RecomputedSteps:
        return self._steps_in("float32")

    @cached_property
    def _rounding_steps(self) -> RecomputedSteps:
        """Computes steps again in the run's precision, not in float32, to measure how rounding changes gradients."""
        return self._steps_in(self._config.model.precision)

    def _steps_in(self, precision: str) -> RecomputedSteps:
        return self._mode.recomputed_steps()(self._config, self._dataset, precision)

    # Compare what the workers computed.

    def _compare_gradients(self, sample: UpdateSample, findings: _Findings) -> None:
        """Compare the gradient and the fresh statistics that the shards received with those of plain Keras.

        The fresh statistics are what a step adds to the kept share of the moving statistics.
        """
        gradients, steps = sample.header.gradients, self._steps
        reasons = [*map(steps.why_unchecked, gradients), steps.take_keys(sample.shards, self._config.wire)]
        for reason in filter(None, reasons):
            return findings.leave_unchecked(reason)
        statistics = np.concatenate([shard.given_statistics for shard in sample.shards])
        given = _pulled_weights(sample, steps.length)
        found = [steps.recompute(gradient, given, statistics) for gradient in gradients]
        gradient = mean_of([one.gradient for one in found])
        expected = np.concatenate(self._at_positions(sample, gradient))
        received = np.concatenate([shard.gradient for shard in sample.shards]).astype(np.float64)
        error = _norm(received - expected)
        if self._mode.synchrony.takes_local_steps:
            of_matrices = PERIOD_TOLERANCE_OF_MATRICES if steps.matrices else 0.0
            tolerance = max(of_matrices, PERIOD_TOLERANCE[self._precision]) * _norm(expected)
        else:
            tolerance = GRADIENT_TOLERANCE[self._precision] * _norm(expected)
        if error > tolerance and self._config.model.precision == "bfloat16":
            rounded = [self._rounding_steps.recompute(gradient, given, statistics) for gradient in gradients]
            in_bfloat16 = self._at_positions(sample, np.mean([one.gradient for one in rounded], axis=0))
            tolerance = max(tolerance, TIMES_ROUNDING * _norm(np.concatenate(in_bfloat16) - expected))
        problem = f"its gradient differs from the one that was computed again: {_difference_text(received, expected)}"
        # With lossy compression the received vector is the gradient, plus what earlier pushes left out, minus
        # what this push leaves out.
        remainders = float(np.mean([one.remainders for one in gradients]))
        findings.note("gradient", error, tolerance + remainders + _ALWAYS_ALLOWED, problem)
        fresh = np.mean([one.fresh for one in found], axis=0)
        pushed = np.concatenate([shard.fresh for shard in sample.shards]).astype(np.float64)
        tolerances = PERIOD_STATISTICS_TOLERANCE if self._mode.synchrony.takes_local_steps else STATISTICS_TOLERANCE
        tolerance = tolerances[self._precision] * _norm(fresh) + _ALWAYS_ALLOWED
        problem = f"the statistics that it pushed differ from those that were computed again: {_difference_text(pushed, fresh)}"
        findings.note("fresh statistics", _norm(pushed - fresh), tolerance, problem)

    def _at_positions(self, sample: UpdateSample, vector: np.ndarray) -> list[np.ndarray]:
        """Return the values of a vector of the whole network, [n], at the sampled positions of each shard, [k] each."""
        return [vector[shard.positions] for shard in sample.shards]

    @property
    def _precision(self) -> str:
        """The less precise of the dtypes in which gradients are computed and sent."""
        return "bfloat16" if "bfloat16" in (self._config.model.precision, self._config.wire) else "float32"

    # Compare what the parameter servers did.

    def _compare_given(self, shard: SampledShard, findings: _Findings, where: str) -> None:
        """Compare the weights that a worker got with those that the shard had at the moment of the pull."""
        if self._mode.delay(self._config):
            return findings.leave_unchecked(
                "the weights given to workers: mode.simulate_workers gives weights of older versions"
            )
        if len(shard.given) != len(shard.given_positions):
            return findings.leave_unchecked(
                f"the weights given to workers: in mode {self._mode.name}, each worker has separate weights"
            )
        differ = self.differing_weights(shard)
        tolerance = _MOST_ROUNDED_DIFFERENTLY if set(shard.at_pull) - {"weights"} else 0.0
        problem = (
            f"{differ:.1%} of the weights{where} that the worker got differ from those of the version that it pulled"
        )
        findings.note("given weights", differ, tolerance, problem)
        rows = shard.rows_at_pull
        given_rows = shard.given[len(shard.given) - len(rows) :]
        differ = int(np.sum(_in_dtype(rows, self._config.wire) != given_rows))
        problem = (
            f"{differ:,} numbers in rows of tables{where} that the worker got differ from those of the version that it "
            "pulled"
        )
        findings.note("given weights", differ, 0.0, problem)

    def differing_weights(self, shard: SampledShard) -> float:
        """Return the share of a worker's weights that differ from those of the shard at the moment of the pull.

        Weights that a staleness method has computed in float32 may differ by rounding.
        """
        at_pull = _as_float64(shard.at_pull)
        expected = METHODS[self._config.staleness.method].pulled_weights(at_pull)
        given = shard.given_at_pull
        differs = _in_dtype(expected, self._config.wire) != given
        if set(at_pull) - {"weights"}:
            differs &= np.abs(given - expected) > 2 * ROUNDING * (np.abs(at_pull["weights"]) + np.abs(expected))
        return float(np.mean(differs))

    def _compare_update(self, sample: UpdateSample, index: int, findings: _Findings, where: str) -> None:
        """Compare how an update changed weights and slots with how the equations of the update rule change them."""
        # With local steps, the workers apply the rule that needs whole matrices.
        needed = () if self._mode.synchrony.takes_local_steps else self._steps.matrices
        shard, matrices = without_cut_matrices(sample.shards[index], needed)
        if any(matrix.size > LARGEST_MATRIX for matrix in needed):
            findings.leave_unchecked(f"the updates of matrices with more than {LARGEST_MATRIX:,} weights")
        expected = self._after_update(sample, shard, matrices, sample.header.versions[index])
        if expected is None:
            name = self._config.optimizer.rule
            return findings.leave_unchecked(
                f"the weights and slots after updates, because optimizer.rule {name} or the staleness method has no `equation`"
            )
        before = _as_float64(shard.before)
        for name in sorted(expected):
            step, made = expected[name] - before[name], shard.after[name].astype(np.float64) - before[name]
            tolerance = self._step_tolerance * _norm(step) + ROUNDING * _norm(before[name]) + _ALWAYS_ALLOWED
            what = "the weights" if name == "weights" else f"the slot '{name}'"
            problem = f"the change of {what}{where} is not what the equation of the update says: {_difference_text(made, step)}"
            findings.note("weights" if name == "weights" else "slots", _norm(made - step), tolerance, problem)

    @property
    def _step_tolerance(self) -> float:
        """The largest allowed error of the change that an update makes, relative to the norm of this change."""
        return STEP_TOLERANCE + 2.0**-23 / (1 - self._config.optimizer.slowest_decay)

    def _after_update(
        self, sample: UpdateSample, shard: SampledShard, matrices: Sequence[Matrix], before: int
    ) -> Slots | None:
        """Compute the weights and slots of a shard after an update, by the equations of the update rule.

        Return None if the update rule or the staleness method has no equation.

        Args:
          shard, matrices: the results of `without_cut_matrices`.
          before: the version of the shard before the update.
        """
        config, slots, steps = self._config, _as_float64(shard.before), self._steps
        weights, gradient, gradient_scale = slots.pop("weights"), shard.gradient.astype(np.float64), None
        method, changed = METHODS[config.staleness.method], dict[str, np.ndarray]()
        if "staleness" not in self._mode.unused_settings:
            arrived = ArrivedParts(
                gradient, before - shard.version, before, self._mode.emulated_workers(config), weights, slots
            )
            if (corrected := method.equation(config.staleness, arrived)) is None:
                return None
            gradient, gradient_scale, changed = (
                corrected.gradient,
                corrected.gradient_scale,
                dict(corrected.slots or {}),
            )
        factors, decay = (vector[shard.positions] for vector in (steps.factors, steps.decay))
        rate, updates_before = sample.header.gradients[0].learning_rate, before
        if (every := method.gathered_gradients(config) or 1) > 1:
            gathered = slots["gathered"] + (1.0 if gradient_scale is None else gradient_scale) * gradient
            if (before + 1) % every:
                kept = {**changed, "weights": weights, "gathered": gathered}
                return self._after_lookahead(kept, slots, before + 1)
            gradient, gradient_scale, updates_before = gathered / every, None, before // every
            changed["gathered"] = 0 * gathered
        parts = UpdateParts(weights, gradient, slots, rate, updates_before, factors, decay, gradient_scale, matrices)
        made = self._mode.equation(config, parts)
        if made is None:
            made = RULES[config.optimizer.rule].equation(method.optimizer(config), parts)
        return None if made is None else self._after_lookahead({**made, **changed}, slots, before + 1)

    def _after_lookahead(self, made: Slots, slots: Slots, version: int) -> Slots:
        """Apply lookahead (Zhang et al. 2019, arXiv:1907.08610) to the weights after the update to `version`."""
        settings, total = self._config.lookahead, self._config.total_updates(self._dataset.train_examples)
        if "slow" not in slots or "weights" not in made or (version % settings.every_updates and version != total):
            return made
        if version % settings.every_updates:  # the training ends with the slow weights
            return {**made, "weights": slots["slow"]}
        decay = settings.decay**settings.every_updates * (version / total) ** 3
        mean = made["weights"] + decay * (slots["slow"] - made["weights"])
        return {**made, "weights": mean, "slow": mean}

    def _compare_statistics(self, sample: UpdateSample, findings: _Findings) -> None:
        """Compare the moving statistics after an update with their decayed earlier values plus what was pushed."""
        before = _joined(shard.statistics_before for shard in sample.shards)
        fresh = _joined(shard.fresh for shard in sample.shards)
        after = _joined(shard.statistics_after for shard in sample.shards)
        expected = self._steps.keep**self._config.batches_per_step * before + fresh
        difference = _difference_text(after - before, expected - before)
        problem = f"the change of the moving statistics does not follow from the pushed statistics: {difference}"
        tolerance = ROUNDING * (_norm(before) + _norm(fresh)) + _ALWAYS_ALLOWED
        findings.note("statistics", _norm(after - expected), tolerance, problem)


def without_cut_matrices(shard: SampledShard, matrices: Sequence[Matrix]) -> tuple[SampledShard, list[Matrix]]:
    """Remove from a sampled shard the values of matrices that are sampled only in part.

    Return the shard without these values, and the matrices that are sampled completely.

    Args:
      matrices: matrices of the network, with their positions in the vector of the network. The returned matrices have
        their positions among the sampled values instead.
    """
    positions = shard.positions
    is_kept, whole = np.ones(len(positions), bool), list[tuple[int, Matrix]]()
    for matrix in matrices:
        inside = (positions >= matrix.begin) & (positions < matrix.end)
        if inside.sum() == matrix.size:
            whole.append((int(np.argmax(inside)), matrix))
        else:
            is_kept &= ~inside

    def kept(of: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: one[is_kept] if len(one) == len(positions) else one for name, one in of.items()}

    gradient, before, after = shard.gradient[is_kept], kept(shard.before), kept(shard.after)
    part = replace(shard, positions=positions[is_kept], gradient=gradient, before=before, after=after)
    return part, [one._replace(begin=int(is_kept[:begin].sum())) for begin, one in sorted(whole)]


def _is_finite(shard: SampledShard) -> bool:
    vectors = (shard.given, shard.given_statistics, shard.gradient, shard.fresh, shard.statistics_after)
    return all(bool(np.isfinite(vector).all()) for vector in (*vectors, *shard.before.values(), *shard.after.values()))


def _pulled_weights(sample: UpdateSample, length: int) -> np.ndarray:
    """Return the weights that a worker got, in the order of the network.

    The shape is [length], or [vectors, length] if the worker got several vectors. Rows of embedding tables that the
    worker did not get are 0.
    """
    vectors = len(sample.shards[0].given) // len(sample.shards[0].given_positions)
    found = np.zeros([vectors, length], np.float32)
    for shard in sample.shards:
        found[:, shard.given_positions] = shard.given.reshape(vectors, -1)
    return found[0] if vectors == 1 else found


def _in_dtype(vector: np.ndarray, dtype: str) -> np.ndarray:
    """Round a vector to a dtype; return it as float32."""
    import tensorflow as tf

    rounded: np.ndarray = tf.cast(tf.cast(vector.astype(np.float32), dtype), tf.float32).numpy()
    return rounded


def _joined(vectors: Iterable[np.ndarray]) -> np.ndarray:
    """Return vectors concatenated as one, float64."""
    return np.concatenate(list(vectors)).astype(np.float64)


def _as_float64(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: array.astype(np.float64) for name, array in arrays.items()}


def _norm(vector: np.ndarray) -> float:
    return float(np.linalg.norm(vector))


def _difference_text(found: np.ndarray, expected: np.ndarray) -> str:
    """Describe how two vectors differ in norm and direction."""
    if not (length := _norm(expected)):
        return f"the norm is {_norm(found):.3g} instead of 0"
    if not _norm(found):
        return f"the norm is 0 instead of {length:.3g}"
    cosine = float(found @ expected) / (_norm(found) * length)
    angle = math.degrees(math.acos(min(1.0, max(-1.0, cosine))))
    return f"the norm is {_norm(found) / length:.3f} times as large, and the direction differs by {angle:.1f} degrees"
