"""Which updates are sampled, what is kept of them, and the files that the auditor gets."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.config import build_config
from ps_cluster.evaluation.recomputation import Recomputation
from ps_cluster.files.json_rows import append_row
from ps_cluster.files.values import Malformed
from ps_cluster.runs.ledger import WORKER_COLUMNS
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.runs.update_samples import (
    MOST_WAITING,
    RecomputedRow,
    SampledGradient,
    read_sample,
    waiting_samples,
    write_sample,
)
from ps_cluster.server.store import StepPush
from ps_cluster.training.ledger_reader import LedgerReader
from ps_cluster.training.run_progress import RunProgress
from ps_cluster.training.sampling import ENOUGH_OF_A_WORKER, PATIENCE, UpdateSampler
from tests.helpers.stores import LENGTH, eagerly, make_store, row
from tests.helpers.waiting import identity


class Training:
    """Workers that take turns at a real store, with a real sampler."""

    takes_files = True

    def __init__(self, folder, workers=3, shards=2, steps=400, rule="sgd", length=LENGTH, **values):
        values |= {"cluster.workers": workers, "cluster.parameter_servers": shards}
        self.config = build_config(
            overrides={"training.steps": steps, "model.name": "tutorial_cnn", "cluster.wire": "float32"} | values
        )
        self.run_dir = RunDir.create(folder / "run")
        self.store = make_store(shards, values=values, steps=steps, rule=rule, length=length)
        self.progress = RunProgress(self.config, 50_000)
        self.sampler = UpdateSampler(self.config, self.run_dir, self.store, self.progress, term=1)
        self._reader = LedgerReader(self.store, self.progress, [], on_rows=self.sampler.poll)
        self.sampler.start()
        self._worker_of = {}
        self.files = []

    def run(self, steps):
        """Pull and push each of `steps`: worker → step ids, or step ids of which the workers take turns."""
        for number, step in enumerate(steps):
            self.pull(step, number % self.config.cluster.workers)
            self.push(step)
            self.poll()

    def pull(self, step, worker):
        self.progress.note_scheduled(np.array([step]))
        self._worker_of[step] = worker, self.store.pull(identity(worker), step=identity(step))

    def push(self, step, columns=None):
        worker, pulled = self._worker_of[step]
        columns = row(worker=worker) if columns is None else columns
        self.store.push(StepPush(identity(step), pulled.versions, pulled.weights, pulled.statistics, columns))

    def poll(self):
        """Let the sampler look, and take its files as an auditor does, in no time."""
        self._reader.poll()
        for path in waiting_samples(self.run_dir.samples) if self.takes_files else ():
            self.files.append(read_sample(path))
            path.unlink()


@eagerly()
def test_the_next_updates_of_each_worker_are_sampled_until_there_are_enough(tmp_path):
    training = Training(tmp_path, shards=1)
    training.run(range(40))
    workers = [worker for sample in training.files for worker in sample.header.workers]
    assert sorted(workers) == sorted(list(range(3)) * ENOUGH_OF_A_WORKER)


@eagerly()
def test_a_worker_that_never_pushes_does_not_keep_the_only_buffer_from_the_others(tmp_path):
    training = Training(tmp_path, shards=1, steps=1_000, length=400_000)
    assert training.store.sample_buffers == 1
    for step in range(3 * PATIENCE + 20):
        training.pull(step, worker=1 + step % 2)
        training.push(step)
        training.poll()
    assert [sample.header.workers for sample in training.files][:2] == [[1], [2]]


@eagerly()
def test_a_slow_worker_whose_sample_was_given_up_is_sampled_later(tmp_path):
    training = Training(tmp_path, shards=1, steps=1_000, length=400_000)
    sampled = []
    for step in range(9 * PATIENCE):
        is_turn_of_slow_one = step % (4 * PATIENCE) == 4 * PATIENCE - 1
        training.pull(step, worker=0 if is_turn_of_slow_one else 1 + step % 2)
        training.push(step)
        training.poll()
        sampled.append([0] in [sample.header.workers for sample in training.files])
    assert not sampled[7 * PATIENCE] and sampled[-1], "the first sample was given up, the second one was not"


@eagerly()
def test_an_update_whose_remainders_are_not_numbers_is_not_sampled(tmp_path):
    training = Training(tmp_path, workers=1, shards=1)
    columns = np.stack([row()])
    columns[:, WORKER_COLUMNS.index("remainder_after")] = np.nan
    training.pull(0, worker=0)
    training.push(0, tf.constant(columns))
    training.poll()
    training.run(range(1, 4))
    sampled = [sample.header.gradients[0].step for sample in training.files]
    assert len(sampled) == ENOUGH_OF_A_WORKER and 0 not in sampled


@eagerly()
def test_a_sample_has_all_that_its_update_was_made_of(tmp_path):
    training = Training(tmp_path, workers=1)
    training.run(range(2))
    sample = training.files[0]
    assert sample.header.gradients == [
        SampledGradient(step=0, worker=0, examples=1, learning_rate=0.1, first_of_worker=True)
    ]
    assert (sample.header.versions, sample.header.pulled, sum(sample.header.lengths)) == ([0, 0], [0, 0], LENGTH)
    start = np.linspace(-1, 1, LENGTH, dtype=np.float32)
    for shard, positions in zip(sample.shards, np.array_split(np.arange(LENGTH), 2)):
        assert shard.given_positions.tolist() == sorted(shard.positions) == positions.tolist()
        assert shard.given == pytest.approx(start[positions])
        assert shard.gradient == pytest.approx(start[shard.positions]), "the pulled weights were pushed"
        assert shard.at_pull["weights"] == pytest.approx(start[shard.positions])
        assert shard.given_at_pull == pytest.approx(start[shard.positions])
        assert shard.before["weights"] == pytest.approx(start[shard.positions])
        assert shard.after["weights"] == pytest.approx(0.9 * start[shard.positions])


@eagerly()
def test_the_remainders_of_a_sampled_gradient_are_those_of_all_shards_together(tmp_path):
    training = Training(tmp_path, workers=1)
    columns = np.stack([row()] * 2)
    columns[:, WORKER_COLUMNS.index("remainder_before")] = 3, 4
    columns[:, WORKER_COLUMNS.index("remainder_after")] = 6, 8
    training.pull(0, worker=0)
    training.push(0, tf.constant(columns))
    training.poll()
    (gradient,) = training.files[0].header.gradients
    assert gradient.remainders == pytest.approx(5 + 10)


@eagerly()
@pytest.mark.parametrize("wrong", [{"pulled": [0]}, {"pullers": [0, 0, 0]}, {"lengths": [1]}])
def test_a_sample_whose_header_does_not_describe_its_shards_is_refused(tmp_path, wrong):
    training = Training(tmp_path, workers=1)
    training.run(range(2))
    sample = training.files[0]
    folder = tmp_path / "made up"
    write_sample(folder, replace(sample, header=sample.header.model_copy(update=wrong)))
    with pytest.raises(Malformed, match="different numbers of shards"):
        read_sample(*waiting_samples(folder))


@eagerly()
def test_a_step_that_is_handed_out_again_is_not_taken_for_another_step_of_its_first_worker(tmp_path):
    """Worker 1 pulled step 0 and never pushed it; worker 0 did it, and worker 1 goes on with other steps."""
    training = Training(tmp_path, workers=2, shards=1)
    training.pull(0, worker=1)
    training.pull(0, worker=0)
    training.push(0)
    training.poll()
    for step in range(1, 20):
        training.pull(step, worker=step % 2)
        training.push(step)
        training.poll()
    assert {worker for sample in training.files for worker in sample.header.workers} == {0, 1}
    for sample in training.files:
        (gradient,), (shard,) = sample.header.gradients, sample.shards
        assert (shard.update, shard.worker) == (gradient.step, gradient.worker)
        assert shard.gradient == pytest.approx(shard.given[shard.positions]), "what was pulled was pushed"


@eagerly()
def test_an_update_that_can_not_be_computed_again_is_reported_and_ends_nothing(tmp_path):
    training = Training(tmp_path, workers=1, shards=1)
    training.takes_files = False
    training.run(range(2))

    def broken():
        raise ValueError("this network can't be built twice")

    row = Recomputation(training.run_dir, training.config, broken).next()
    told = "an update that could not be computed again: ValueError: this network can't be built twice"
    assert (row.unchecked, row.problems, row.deviations) == ([told], [], {})


@eagerly()
def test_a_sample_of_before_a_resume_with_other_settings_is_not_compared(tmp_path):
    training = Training(tmp_path, workers=1, shards=1)
    training.takes_files = False
    training.run(range(2))
    other = training.config.with_values({"optimizer.learning_rate": 0.7})
    row = Recomputation(training.run_dir, other, lambda: None).next()
    assert (row.unchecked, row.problems) == (["updates computed before the run was resumed with other settings"], [])


@eagerly()
def test_weights_that_a_method_predicts_are_those_of_its_equation_but_for_their_rounding(tmp_path):
    training = Training(tmp_path, shards=1, rule="adam", length=5000, **{"staleness.method": "predict"})
    for first in range(0, 30, 3):  # all workers pull before one pushes
        for worker in range(3):
            training.pull(first + worker, worker)
        for worker in range(3):
            training.push(first + worker)
        training.poll()
    predicted = [shard for sample in training.files for shard in sample.shards if shard.at_pull["staleness"] > 0]
    assert predicted
    recomputation = Recomputation(training.run_dir, training.config, lambda: None)
    assert [recomputation.differing_weights(shard) for shard in predicted] == [0.0] * len(predicted)
    stale = replace(predicted[0], given=predicted[0].given * np.float32(1.001))
    assert recomputation.differing_weights(stale) > 0.9


@eagerly()
def test_where_nothing_takes_the_samples_away_no_more_are_made_than_the_disk_shall_hold(tmp_path):
    training = Training(tmp_path, workers=20, shards=1)
    training.takes_files = False
    training.run(range(100))
    assert len(waiting_samples(training.run_dir.samples)) == MOST_WAITING


@eagerly()
def test_where_it_takes_long_to_compute_updates_again_there_is_one_of_each_worker(tmp_path):
    training = Training(tmp_path, shards=1)
    append_row(training.run_dir.recomputed, RecomputedRow(update=0, workers=[0], seconds=1000.0))
    training.run(range(40))
    assert sorted(worker for sample in training.files for worker in sample.header.workers) == [0, 1, 2]


@eagerly()
def test_a_step_whose_weights_were_given_to_another_worker_too_is_not_taken_for_a_sample(tmp_path):
    """A worker died after its pull: the step was handed out again, and the first one pushes after all."""
    training = Training(tmp_path, workers=1, shards=1)
    training.pull(0, worker=0)
    first = training._worker_of[0]
    training.pull(0, worker=1)
    training._worker_of[0] = first
    training.push(0)
    training.poll()
    assert training.files == []


@eagerly()
def test_a_run_that_does_not_want_it_keeps_nothing(tmp_path):
    for number, off in enumerate(({"evaluation.recompute_updates": False}, {"cluster.evaluator": False})):
        (folder := tmp_path / str(number)).mkdir()
        training = Training(folder, **off)
        training.run(range(10))
        assert training.store.sample_buffers == 0 and training.files == []
