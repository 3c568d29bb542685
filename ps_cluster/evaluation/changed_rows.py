"""Write the rows of embedding tables that have changed since a step.

A program that serves the model during training can update its copy with these rows. Two checkpoints are compared: the
newest of all, and the newest at or before the step. The file has exactly the changes between these two checkpoints, and
the steps of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from ps_cluster.config import RunConfig, load_config
from ps_cluster.data.packed import PackedDataset
from ps_cluster.errors import RunFailed, UserError
from ps_cluster.evaluation.scorer import dataset_or_description
from ps_cluster.files.writing import create_beside
from ps_cluster.notices import Notify
from ps_cluster.quiet_import import import_tensorflow
from ps_cluster.runs import checkpoints
from ps_cluster.runs.checkpoints import Checkpoint
from ps_cluster.runs.run_dir import RunDir


@dataclass(frozen=True)
class TablePosition:
    """The position of a table in a checkpoint's vector of weights: its rows are contiguous, from index `begin`."""

    name: str
    begin: int
    rows: int
    width: int

    def values(self, checkpoint: Checkpoint) -> np.ndarray:
        """Return the table's rows in a checkpoint, float32 [rows, width].

        Raises UserError if the checkpoint does not contain them, because it belongs to another network.
        """
        found = checkpoint.arrays["weights"][self.begin : self.begin + self.rows * self.width]
        if len(found) < self.rows * self.width:
            raise UserError(
                f"checkpoint of step {checkpoint.step} belongs to another network: it has no table '{self.name}'"
            )
        return found.reshape(self.rows, self.width)


def export_changed_rows(root: Path, since: int, output: Path, data_dir: Path | None, notify: Notify) -> None:
    """Write the rows of embedding tables that have changed since a step to an .npz file.

    The file appears when it is complete. For each table NAME it contains `NAME.ids`, the ascending numbers of the
    changed rows, int64 [n], and `NAME.rows`, their values, float32 [n, width]. It also contains `step`, int64 [], the
    step of these values, and `since`, int64 [], the step of the checkpoint that they were compared with.

    Args:
      root: a run directory.
      since: a step, e.g. the `step` of the previous file.
      output: the file to write.
      data_dir: the folder of the data set; None: use the description of the data in the run directory or, if there is
        none, the copy that the run used.
    Raises:
      UserError: the run has no tables, or no checkpoint at or before `since` is kept.
      RunFailed: the file can't be written.
    """
    run_dir = RunDir.open(root)
    config = load_config(run_dir.config)
    dataset = dataset_or_description(run_dir, config, data_dir, notify)
    before, after = _two_checkpoints(run_dir.checkpoints, since)
    places = table_positions(config, dataset)
    if not places:
        raise UserError(
            f"--changed-since: the network of run '{root}' has no embedding table whose rows are pulled and pushed "
            "separately: leave this option out, to export the whole model"
        )
    changed = {place.name: changed_rows(place, before, after) for place in places}
    arrays: dict[str, Any] = {"step": np.int64(after.step), "since": np.int64(before.step)}
    for name, (ids, rows) in changed.items():
        arrays |= {f"{name}.ids": ids, f"{name}.rows": rows}
    try:
        with create_beside(output) as file:
            np.savez(file, **arrays)
    except OSError as error:
        raise RunFailed(f"--output: '{output}' can't be written: {error.strerror or error}") from error
    count, total = sum(len(ids) for ids, _ in changed.values()), sum(place.rows for place in places)
    notify(f"{count:,} of {total:,} rows have changed from step {before.step:,} to step {after.step:,}")


def _two_checkpoints(folder: Path, since: int) -> tuple[Checkpoint, Checkpoint]:
    """Return the newest checkpoint at or before a step, and the newest of all."""
    kept = checkpoints.by_step(folder)
    earlier = [step for step in kept if step <= since]
    if not earlier:
        there = f"the oldest is of step {min(kept):,}" if kept else "there is no checkpoint"
        raise UserError(
            f"--changed-since: got {since}: no checkpoint of this step or an earlier one is kept ({there}): export the "
            "whole model, and set checkpoints.keep to keep more"
        )
    after = checkpoints.load(kept[max(kept)])
    return (after if after.step == max(earlier) else checkpoints.load(kept[max(earlier)])), after


def table_positions(config: RunConfig, dataset: PackedDataset) -> Sequence[TablePosition]:
    """Build the network of a run, and return the positions of its embedding tables.

    Tables that the run pulls and pushes as a whole are not included.
    """
    import_tensorflow()
    from ps_cluster.models.build import build
    from ps_cluster.models.flat import FlatLayout
    from ps_cluster.training.table_limits import tables_of

    model = build(config.model, dataset.spec, seed=config.training.seed)
    tables = tables_of(model, config, dataset.spec).tables
    begins = accumulate([0, *FlatLayout.of(model.trainable_variables).sizes])
    begin_of = dict(zip(map(id, model.trainable_variables), begins))
    return [
        TablePosition(variable.path.rpartition("/")[0], begin_of[id(variable)], table.rows, table.width)
        for table in tables
        for variable in [table.layer.embeddings]
    ]


def changed_rows(place: TablePosition, before: Checkpoint, after: Checkpoint) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of the table's rows that differ, int64 [n], and these rows in `after`, float32 [n, width]."""
    values = place.values(after)
    ids = np.flatnonzero((place.values(before) != values).any(axis=1))
    return ids, values[ids]
