"""The files of sampled updates: all that a few updates were made of, for an auditor that computes them again.

    metrics/samples/update-000000123-term-000002.safetensors     the leader writes it, the auditor removes it
    metrics/recomputed.jsonl                                     a row for each update that was computed again

No TensorFlow.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from ps_cluster.config import RunConfig
from ps_cluster.files.tensor_files import open_tensors, write_tensors
from ps_cluster.files.values import Malformed
from ps_cluster.files.writing import create_beside
from ps_cluster.runs.rows import Count, Index, Loss, Number, Row, Text, Word
from ps_cluster.runs.run_dir import RunDir

MOST_WAITING = 8  # files: while there are more, no further update is sampled


@dataclass(frozen=True)
class SampledShard:
    """All that a shard kept of one update. All arrays are float32, unless it says otherwise.

    Attributes:
      update: its number.
      worker: that pulled the weights; below 0 in rounds, where all workers get the same.
      version: that the worker pulled.
      length: n, the number of the shard's weights.
      positions: int64 [k], the positions in the shard's vectors at which the parts below lie.
      given: [n] or [vectors * n], the weights that the worker got, all of them.
      given_statistics: [m], the statistics that it got.
      at_pull: what the given weights were made of, at the moment of the pull: "weights" [k], and more by the staleness
        method; single numbers are [1].
      gradient: [k], as received; of rounds the mean.
      before, after: "weights" and the slots by their names, [k] each, single numbers [1].
      fresh: [m], the statistics that the step pushed.
      statistics_before, statistics_after: [m].
    """

    update: int
    worker: int
    version: int
    length: int
    positions: np.ndarray
    given: np.ndarray
    given_statistics: np.ndarray
    at_pull: Mapping[str, np.ndarray]
    gradient: np.ndarray
    before: Mapping[str, np.ndarray]
    after: Mapping[str, np.ndarray]
    fresh: np.ndarray
    statistics_before: np.ndarray
    statistics_after: np.ndarray


class SampledGradient(Row):
    """A gradient that a sampled update has applied, from its row in the ledger.

    Attributes:
      learning_rate: that was applied, with the factor of a row.
      remainders: the norms of what earlier pushes of the worker had left out and of what this one leaves out, together.
      first_of_worker: whether it was the first push of this worker in the whole training.
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
      update: its number. term: of the leader.
      gradients: those that it applied; several in rounds.
      workers: those that pushed them, or their parts.
      versions: int, of each shard: the version that the update was applied to.
      pulled: of each shard: the version that the worker had pulled.
      pullers: of each shard: the worker that pulled, or a number below 0 in rounds.
      lengths: of each shard: the number of its weights.
      settings: a digest of the settings that decide what an update computes.
    """

    update: Count
    term: Count
    gradients: Annotated[list[SampledGradient], Field(min_length=1, max_length=10_000)]
    workers: list[Index]
    versions: list[Count]
    pulled: list[Count]
    pullers: list[int]
    lengths: list[Count]
    settings: Word = ""


@dataclass(frozen=True)
class UpdateSample:
    """A sampled update, with a part for each shard.

    Attributes:
      places: int64 [n], where each weight of all shards, one shard after the other, is in the vector of the whole network;
        None where the shards are contiguous parts of that vector.
    """

    header: SampleHeader
    shards: Sequence[SampledShard]
    places: np.ndarray | None = None


_GROUPS = ("at_pull", "before", "after")
_VECTORS = (
    "positions", "given", "given_statistics", "gradient", "fresh", "statistics_before", "statistics_after",
)  # fmt: skip


def settings_digest(config: RunConfig) -> str:
    """Return a digest of the settings that decide what an update computes. A resumed training may have other ones."""
    sections = ("model", "mode", "staleness", "training", "optimizer", "lookahead", "schedule")
    settings = [config.model_dump(mode="json", include=set(sections)), config.wire]
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def write_sample(folder: Path, sample: UpdateSample) -> None:
    """Write a sampled update into a folder. Raises OSError."""
    arrays: dict[str, np.ndarray] = {} if sample.places is None else {"places": sample.places}
    for index, shard in enumerate(sample.shards):
        arrays |= {f"{index}/{name}": getattr(shard, name) for name in _VECTORS}
        for group in _GROUPS:
            arrays |= {f"{index}/{group}/{name}": array for name, array in getattr(shard, group).items()}
    folder.mkdir(exist_ok=True)
    name = f"update-{sample.header.update:09d}-term-{sample.header.term:06d}.safetensors"
    with create_beside(folder / name, lasting=False) as file:
        write_tensors(file, sample.header, arrays)


def waiting_samples(folder: Path) -> list[Path]:
    """Return the files of sampled updates in a folder, in the order of updates; none where there is no folder."""
    return sorted(folder.glob("update-*.safetensors"))


def forget_samples(run_dir: RunDir) -> None:
    """Remove the sampled updates of an earlier training, and what was found about them."""
    for path in run_dir.samples.glob("*.safetensors"):
        path.unlink()
    run_dir.recomputed.unlink(missing_ok=True)


def read_sample(path: Path) -> UpdateSample:
    """Read the file of a sampled update.

    Raises:
      OSError: the system refused.
      Malformed: it is not such a file, or not whole.
    """
    header, arrays = open_tensors(path, SampleHeader)
    shards = []
    for index in range(len(header.versions)):
        try:
            vectors = {name: arrays[f"{index}/{name}"] for name in _VECTORS}
        except KeyError as error:
            raise Malformed(f"holds no array {error}") from error
        at_pull, before, after = (_below(arrays, f"{index}/{group}/") for group in _GROUPS)
        worker, version, length = header.pullers[index], header.pulled[index], header.lengths[index]
        shards.append(
            SampledShard(header.update, worker, version, length, at_pull=at_pull, before=before, after=after, **vectors)
        )
    return UpdateSample(header, shards, arrays.get("places"))


def _below(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


# metrics/recomputed.jsonl


class RecomputedRow(Row):
    """An update that was computed again.

    Attributes:
      workers: whose gradients it has applied.
      deviations: quantity → how far what the cluster did lies from what was computed again; see `Recomputation` for units.
      problems: the deviations beyond their tolerance, a line each.
      unchecked: what could not be computed again, and why, a line each.
      seconds: that it took.
    """

    update: Count
    term: Count = 0
    workers: list[Index]
    deviations: dict[Word, Loss] = {}
    problems: list[Text] = []
    unchecked: list[Text] = []
    seconds: Number = 0.0
