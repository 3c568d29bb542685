"""Real digits in the form of MNIST, trained in modes that do not share their way of training."""

import pytest

from tests.helpers.digits import digits, write_as_keras
from tests.helpers.real_cluster import run


@pytest.mark.cluster
def test_the_same_digits_train_by_all_reduce_on_a_parameter_server_and_in_one_process(tmp_path):
    file = write_as_keras(tmp_path, digits())
    few = ("--dataset", "mnist", "--data-dir", file, "--steps", 3, "--no-evaluator")
    for mode, workers in (("sync", ("--workers", 2)), ("sync-ps", ("--workers", 2)), ("single", ())):
        summary = run(tmp_path / mode, "--mode", mode, *workers, *few)
        assert (summary["dataset"], summary["dataset_kind"]) == ("mnist", "real")
        assert summary["updates"]["applied"] == 3 and summary["proof"]["holds"]
