"""Write and read the files of sampled updates. A file has all inputs of an update, which the evaluator computes again.

    metrics/samples/update-000000123-term-000002.safetensors     written by the leader, removed by the evaluator
    metrics/recomputed.jsonl                                     a row for each update that was computed again

No TensorFlow.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field, model_validator

from ps_cluster.config import RunConfig
from ps_cluster.files.tensor_files import open_tensors, write_tensors
from ps_cluster.files.values import Malformed
from ps_cluster.files.writing import create_beside
from ps_cluster.runs.rows import Count, Index, Loss, Number, Row, Text, Word
from ps_cluster.runs.run_dir import RunDir

MOST_WAITING = 8  # while more files than this wait, no further update is sampled
# The most weights of a matrix that is sampled as a whole. A sample has about six arrays of its size, here 100 MB.
LARGEST_MATRIX = 2**22


@dataclass(frozen=True)
class SampledShard:
    """The record of one sampled update on one shard. Arrays are float32, unless another dtype is named.

    A large shard is recorded only at some positions. All positions are indices into the vector of all weights of the
    network.

    Attributes:
      update: the number of the update.
      worker: the worker that pulled the weights; below 0 in rounds, where all workers get the same weights.
      version: the version of the weights that the worker pulled.
      positions: int64 [k], the recorded positions, to which the arrays [k] below refer.
      given: [n], all weights of the shard that were sent to the worker; [vectors * n] if several vectors were sent, one
        after the other.
      given_positions: int64 [n], the positions of these weights.
      given_statistics: [m], the statistics of the shard that were sent to the worker.
      at_pull: by name, the values from which the weights in `given` were computed when they were pulled. "weights" is
        [k']. Each value of the staleness method is a vector [k'] or a single number [1]. The k' values belong to the
        first k' of the `positions`; the other positions are in rows of embedding tables.
      rows_at_pull: [r], the rows of embedding tables as the shard had them at the time of the pull. The last r values
        of `given` are what was sent to the worker for these rows.
      gradient: [k], as received; in rounds the mean of all gradients.
      before, after: "weights" and the slots by their names, before and after the update. Vectors are [k], and single
        numbers are [1].
      fresh: [m], the statistics that the step pushed.
      statistics_before, statistics_after: [m], the statistics of the shard before and after the update.
      keyed: three arrays for each dynamic embedding table, named by the table's number and a suffix. "_keys", int64
        [u]: the keys that the worker pulled. "_places", int64 [u]: the indices of these keys' rows in the table at the
        time of the push; -1 for a key without a row. "_given", float32 [u * width]: the rows that were sent to the
        worker for these keys, one after the other. A row has `width` numbers.
    """

    update: int
    worker: int
    version: int
    positions: np.ndarray
    given: np.ndarray
    given_positions: np.ndarray
    given_statistics: np.ndarray
    at_pull: Mapping[str, np.ndarray]
    rows_at_pull: np.ndarray
    gradient: np.ndarray
    before: Mapping[str, np.ndarray]
    after: Mapping[str, np.ndarray]
    fresh: np.ndarray
    statistics_before: np.ndarray
    statistics_after: np.ndarray
    keyed: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def given_at_pull(self) -> np.ndarray:
        """The weights that were sent to the worker, at the same positions as those in `at_pull`, float32 [k']."""
        order = np.argsort(self.given_positions)
        places = np.searchsorted(self.given_positions, self.positions[: len(self.at_pull["weights"])], sorter=order)
        found: np.ndarray = self.given[order[places]]
        return found


class SampledGradient(Row):
    """A gradient that a sampled update has applied, described by its row in the ledger.

    Attributes:
      learning_rate: the applied learning rate, including the row's `rate_factor`.
      remainders: with compressed pushes, the norm of what earlier pushes of the worker had left out, plus the norm of
        what this push leaves out.
      first_of_worker: whether this was the first push of the worker in the whole training.
    """

    step: Count
    worker: Index
    examples: Count
    learning_rate: Number
    remainders: Number = 0.0
    first_of_worker: bool = False


class SampleHeader(Row):
    """The header of a file of a sampled update.

    Attributes:
      gradients: the gradients that the update applied; several in rounds.
      workers: the workers that pushed the gradients or parts of them.
      versions: for each shard, the version to which the update was applied.
      pulled: for each shard, the version that the worker had pulled.
      pullers: for each shard, the index of the worker that pulled; below 0 in rounds, where all workers pull the same.
      lengths: for each shard, the number of its weights, if the shards are contiguous parts of the vector of all
        weights; otherwise empty.
      settings: a digest of the settings that decide what an update computes.
    """

    update: Count
    term: Count
    gradients: Annotated[list[SampledGradient], Field(min_length=1, max_length=10_000)]
    workers: list[Index]
    versions: list[Count]
    pulled: list[Count]
    pullers: list[int]
    lengths: list[Count] = []
    settings: Word = ""

    @model_validator(mode="after")
    def _same_number_of_shards(self) -> SampleHeader:
        shards = len(self.versions)
        if {len(self.pulled), len(self.pullers), len(self.lengths) or shards} != {shards}:
            raise ValueError("its lists describe different numbers of shards")
        return self


@dataclass(frozen=True)
class UpdateSample:
    """A sampled update, with a part for each shard."""

    header: SampleHeader
    shards: Sequence[SampledShard]


_GIVEN_POSITIONS = "given_positions"
_GROUPS = ("at_pull", "before", "after", "keyed")
_VECTORS = (
    "positions", "given", "given_statistics", "rows_at_pull", "gradient", "fresh", "statistics_before", "statistics_after",
)  # fmt: skip


def settings_digest(config: RunConfig) -> str:
    """Return a digest of the settings that decide what an update computes. A resumed training may change them."""
    sections = ("model", "mode", "staleness", "training", "optimizer", "lookahead", "schedule")
    settings = [config.model_dump(mode="json", include=set(sections)), config.wire]
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def write_sample(folder: Path, sample: UpdateSample) -> None:
    """Write a sampled update into a folder. Raises OSError if the disk is full or refuses the file."""
    arrays: dict[str, np.ndarray] = {}
    for index, shard in enumerate(sample.shards):
        if not sample.header.lengths:
            arrays[f"{index}/{_GIVEN_POSITIONS}"] = shard.given_positions
        arrays |= {f"{index}/{name}": getattr(shard, name) for name in _VECTORS}
        for group in _GROUPS:
            arrays |= {f"{index}/{group}/{name}": array for name, array in getattr(shard, group).items()}
    folder.mkdir(exist_ok=True)
    name = f"update-{sample.header.update:09d}-term-{sample.header.term:06d}.safetensors"
    with create_beside(folder / name, lasting=False) as file:
        write_tensors(file, sample.header, arrays)


def waiting_samples(folder: Path) -> list[Path]:
    """Return the files of sampled updates in a folder, in the order of updates; none if the folder does not exist."""
    return sorted(folder.glob("update-*.safetensors"))


def forget_samples(run_dir: RunDir) -> None:
    """Remove the sampled updates of an earlier training, and the results of their recomputation."""
    for path in run_dir.samples.glob("*.safetensors"):
        # The file may be missing: the evaluator, which may still run, removes samples that it has computed again.
        path.unlink(missing_ok=True)
    run_dir.recomputed.unlink(missing_ok=True)


def read_sample(path: Path) -> UpdateSample:
    """Read the file of a sampled update. Raises OSError, or Malformed for another format or an incomplete file."""
    header, arrays = open_tensors(path, SampleHeader)
    shards = []
    for index in range(len(header.versions)):
        try:
            vectors = {name: arrays[f"{index}/{name}"] for name in _VECTORS}
        except KeyError as error:
            raise Malformed(f"holds no array {error}") from error
        at_pull, before, after, keyed = (_below(arrays, f"{index}/{group}/") for group in _GROUPS)
        given_positions = arrays.get(f"{index}/{_GIVEN_POSITIONS}")
        if given_positions is None:
            if not header.lengths:
                raise Malformed(f"holds no array '{index}/{_GIVEN_POSITIONS}'")
            first = sum(header.lengths[:index])
            given_positions = np.arange(first, first + header.lengths[index])
        shards.append(
            SampledShard(
                header.update, header.pullers[index], header.pulled[index], given_positions=given_positions,
                at_pull=at_pull, before=before, after=after, keyed=keyed, **vectors,
            )
        )  # fmt: skip
    return UpdateSample(header, shards)


def _below(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


# The rows of metrics/recomputed.jsonl.


class RecomputedRow(Row):
    """The result of computing one update again.

    Attributes:
      deviations: for each quantity, the difference between the cluster's result and the recomputed one, as a multiple
        of the quantity's tolerance.
      problems: one line for each deviation beyond its tolerance.
      unchecked: one line for everything that could not be computed again, with the reason.
    """

    update: Count
    term: Count = 0
    workers: list[Index]
    deviations: dict[Word, Loss] = {}
    problems: list[Text] = []
    unchecked: list[Text] = []
    seconds: Number = 0.0
