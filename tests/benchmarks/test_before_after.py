import pytest

from benchmarks.before_after import Measured, compared
from ps_cluster.errors import UserError

BEFORE = Measured(examples_per_second=100.0, cpu_seconds=20.0, startup_seconds=4.0, peak_memory_bytes=8e9)


def test_ratios_are_those_of_now_to_before():
    now = Measured(examples_per_second=150.0, cpu_seconds=10.0, startup_seconds=5.0, peak_memory_bytes=6e9)
    assert compared(BEFORE, now) == {
        "before": 100.0, "now": 150.0, "ratio": 1.5, "cpu": 0.5, "start": 1.25, "memory": 0.75,
    }  # fmt: skip


def test_a_run_without_a_rate_says_what_to_do():
    with pytest.raises(UserError, match="--set training.steps: .*: give more steps"):
        compared(BEFORE, BEFORE.model_copy(update={"examples_per_second": None}))
