"""Measure network dlrm on data set clicks in PyTorch, with sparse gradients, in one process or several (gloo).

    python -m ps_cluster.tools.bench.ddp_tables RUN_DIR

One `EmbeddingBag` with bags of a single key holds the rows of all tables, one table after the other. So a batch is one
lookup, and its sparse gradient has only the rows of the batch. DistributedDataParallel gathers these rows from all
processes, each of which holds all tables. The update rule is PyTorch's own Adagrad. Examples, layers, batch size and
learning rate are those of the other arms. The initial weights are PyTorch's, and the examples come in another order.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from pydantic import AliasPath, Field
from torch import nn

from ps_cluster.data.packed import PackedDataset
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.tools.bench.ddp import Batch, DdpConfig, Work, ids_of_batches, main


class TableConfig(DdpConfig):
    """The settings of training a network with embedding tables."""

    rows: int = Field(validation_alias=AliasPath("data", "rows"))
    row_width: int = Field(validation_alias=AliasPath("model", "row_width"))
    bottom: tuple[int, ...] = Field(validation_alias=AliasPath("model", "bottom"))
    top: tuple[int, ...] = Field(validation_alias=AliasPath("model", "top"))
    epsilon: float = Field(validation_alias=AliasPath("optimizer", "epsilon"))
    initial_accumulator_value: float = Field(validation_alias=AliasPath("optimizer", "initial_accumulator_value"))


class Dlrm(nn.Module):
    """The network of `models/networks/dlrm.py` in PyTorch, with `columns` embedding tables of equal size."""

    def __init__(self, rows: int, columns: int, numbers: int, width: int, bottom: Sequence[int], top: Sequence[int]):
        super().__init__()
        self.tables = nn.EmbeddingBag(rows * columns, width, mode="sum", sparse=True)
        nn.init.uniform_(self.tables.weight, -0.05, 0.05)  # as Keras does
        self.bottom = nn.Sequential(nn.BatchNorm1d(numbers, eps=1e-3), _dense(numbers, (*bottom, width)))
        lower = torch.tril_indices(columns + 1, columns + 1, offset=-1)
        self.register_buffer("pairs", lower[0] * (columns + 1) + lower[1])
        self.top = nn.Sequential(_dense(width + lower.shape[1], top), nn.Linear(top[-1], 1))

    def forward(self, keys: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        """Return logits, float32 [B].

        Args:
          keys: row numbers in `tables`, int64 [B, columns].
          numbers: the numeric inputs, float32 [B, N].
        """
        rows = self.tables(keys.view(-1, 1)).view(*keys.shape, -1)
        dense = self.bottom(numbers)
        vectors = torch.cat([dense.unsqueeze(1), rows], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1).index_select(1, self.pairs)
        logits: torch.Tensor = self.top(torch.cat([dense, products], 1)).squeeze(1)
        return logits


def _dense(inputs: int, units: Sequence[int]) -> nn.Sequential:
    """Return dense layers, each with ReLU, for vectors of length `inputs`."""
    sizes = (inputs, *units)
    return nn.Sequential(*(layer for one in zip(sizes, units) for layer in (nn.Linear(*one), nn.ReLU())))


def batches(
    inputs: Mapping[str, np.ndarray], targets: np.ndarray, config: TableConfig, rank: int, processes: int
) -> Iterator[Batch]:
    """Yield the batches of process `rank`, without end.

    A batch has row numbers in `Dlrm.tables`, int64 [B, columns]; the numeric inputs, float32 [B, N]; and the targets,
    float32 [B].
    """
    firsts = config.rows * np.arange(inputs["categories"].shape[1])
    for _, ids in ids_of_batches(len(targets), config, rank, processes):
        arrays = inputs["categories"][ids] + firsts, inputs["numbers"][ids], targets[ids].astype(np.float32)
        yield tuple(map(torch.from_numpy, arrays))


def loss(network: nn.Module, batch: Batch) -> torch.Tensor:
    """Return the mean cross-entropy of a batch."""
    keys, numbers, targets = batch
    return nn.functional.binary_cross_entropy_with_logits(network(keys, numbers), targets)


def table_work(dataset: PackedDataset, config: TableConfig, rank: int, processes: int) -> Work:
    """Return the work of a process, which holds all tables and trains on its share of the examples."""
    torch.manual_seed(config.seed)
    inputs = dataset.inputs("train")
    columns, numbers = (inputs[name].shape[1] for name in ("categories", "numbers"))
    network = Dlrm(config.rows, columns, numbers, config.row_width, config.bottom, config.top)
    optimizer = torch.optim.Adagrad(
        network.parameters(), config.learning_rate, eps=config.epsilon,
        initial_accumulator_value=config.initial_accumulator_value,
    )  # fmt: skip
    return Work(network, optimizer, loss, batches(inputs, dataset.target("train"), config, rank, processes))


if __name__ == "__main__":
    main(RunDir.open(Path(sys.argv[1])), TableConfig, table_work)
