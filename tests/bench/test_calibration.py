"""The length of a measurement of a network that nobody has measured."""

import pytest

from ps_cluster.config import build_config
from ps_cluster.tools.bench import throughput

CASE = build_config(overrides={"training.batch_size_per_worker": 100})


class FakeArm:
    """Trains at a steady rate. It tells the rate of a run that is longer than `blind_s`. Keeps the updates of each run."""

    def __init__(self, steps_per_second, blind_s=0.0):
        self.runs, self._rate, self._blind_s = [], steps_per_second, blind_s

    def __call__(self, config):
        self.runs.append(config.training.steps)
        return 100.0 * self._rate if config.training.steps / self._rate > self._blind_s else None


def lengths(arm, *cases):
    said = []
    found = throughput.with_lengths(cases, arm, unit="examples", arm="cluster", notify=said.append)
    return [case.training.steps for case in found], said


@pytest.mark.parametrize(
    ("steps_per_second", "runs", "steps"),
    [
        (40.0, [90], 400),
        (300.0, [90, 900], 3000),
        (2.0, [90], 90),  # 45 s: fewer updates would say too little
        (1e6, [90, 900, 9000, 50_000], 50_000),  # 50 ms: nothing is that quick
    ],
)
def test_short_runs_grow_until_one_is_long_enough_and_the_measurement_takes_10_seconds(steps_per_second, runs, steps):
    arm = FakeArm(steps_per_second)
    assert lengths(arm, CASE)[0] == [steps] and arm.runs == runs


def test_a_run_that_was_over_before_it_had_a_rate_is_followed_by_a_longer_one():
    arm = FakeArm(40.0, blind_s=3.0)
    assert lengths(arm, CASE)[0] == [400] and arm.runs == [90, 900]


def test_a_network_of_which_the_number_is_known_is_not_run():
    arm = FakeArm(40.0)
    assert lengths(arm, CASE.with_values({"training.steps": 7})) == ([7], []) and not arm.runs


def test_what_was_found_is_said_in_one_line():
    _, (line,) = lengths(FakeArm(40.0), CASE)
    assert line.startswith("airbench ") and "\n" not in line
    assert line.endswith(
        "40,000 examples make a measurement: about 10 s, at the 4,000 examples/s of a short run of arm cluster"
    )
