import pytest

from ps_cluster.config import build_config
from ps_cluster.launch.memory import needed_bytes, warning
from ps_cluster.system.limits import FreeMemory

GB = 10**9


def config(**values):
    return build_config(None, {"data.dataset": "synthetic", "training.batch_size_per_worker": 128} | values)


def test_more_workers_and_larger_batches_need_more_and_no_evaluator_less():
    usual = needed_bytes(config())
    assert needed_bytes(config(**{"cluster.workers": 8})) == usual + 5 * 0.48 * GB
    assert needed_bytes(config(**{"training.batch_size_per_worker": 512})) > usual + 2 * GB
    assert needed_bytes(config(**{"cluster.evaluator": False})) < usual - GB // 10
    single, sync = (needed_bytes(config(**{"mode.name": mode})) for mode in ("single", "sync"))
    assert single < sync < usual


def test_a_run_that_fits_is_not_talked_about():
    assert warning(config(), FreeMemory(8 * GB, 4 * GB)) is None
    assert warning(config(), FreeMemory(4 * GB)) is None


@pytest.mark.parametrize(
    ("limit", "available", "why"),
    [
        (GB, 64 * GB, "the control group (cgroup) allows 1.0 GB more"),
        (None, GB, "the machine has 1.0 GB free"),
        (8 * GB, GB, "the machine has 1.0 GB free"),
    ],
)
def test_one_that_does_not_is_told_in_a_line_with_what_takes_less(limit, available, why):
    line = warning(config(), FreeMemory(available, limit))
    assert why in line and "cluster.workers" in line and "--no-evaluator" in line and "\n" not in line
