import numpy as np
import pytest

torch = pytest.importorskip(
    "torch", reason="no PyTorch here: it takes an environment of benchmarks/requirements-ddp.txt"
)

from ps_cluster.tools.bench import ddp_tables  # noqa: E402


def test_every_column_has_a_table_of_its_own_and_only_rows_of_the_batch_have_gradients():
    inputs = {"categories": np.array([[0, 2], [1, 0]], np.int32), "numbers": np.zeros((2, 3), np.float32)}
    config = ddp_tables.TableConfig.model_validate(
        {
            "mode": {"name": "single"}, "cluster": {"workers": 1, "intra_op_threads": 1, "pin_workers": False},
            "training": {"seed": 0, "batch_size_per_worker": 2, "steps": 1}, "data": {"rows": 3},
            "model": {"row_width": 4, "bottom": [8], "top": [8]},
            "optimizer": {"learning_rate": 0.1, "epsilon": 1e-7, "initial_accumulator_value": 0.1},
        }
    )  # fmt: skip
    batch = next(ddp_tables.batches(inputs, np.array([0, 1], np.uint8), config, 0, 1))
    assert sorted(batch[0].tolist()) == [[0, 5], [1, 3]] and batch[0].dtype == torch.int64
    network = ddp_tables.Dlrm(3, 2, 3, width=4, bottom=[8], top=[8])
    ddp_tables.loss(network, batch).backward()
    assert network.tables.weight.grad.coalesce().indices().tolist() == [[0, 1, 3, 5]]


def test_the_network_has_as_many_parameters_as_in_keras():
    network = ddp_tables.Dlrm(100, 26, 13, width=16, bottom=[64], top=[128, 64])
    assert sum(weight.numel() for weight in network.parameters()) == 98_987
