import signal
from itertools import islice

import pytest

from ps_cluster.config.modes import MODES
from ps_cluster.tools.chaos.kind import ChaosFailed
from ps_cluster.tools.chaos.kinds import FAULTS
from ps_cluster.tools.chaos.kinds.tasks import Signalled
from ps_cluster.tools.chaos.settings import (
    LONGEST_PAUSE_S,
    SHORTEST_PAUSE_S,
    ChaosSettings,
    allowed_here,
    enough_for_all,
    plan,
)


def possible(mode):
    """The kinds that the mode can have."""
    return [kind for kind, reason in ChaosSettings(mode=mode).wanted().items() if reason is None]


def first(count, seed, mode="async", workers=3, parameter_servers=2):
    tasks = ChaosSettings(mode=mode, workers=workers, parameter_servers=parameter_servers).topology.tasks
    return list(islice(plan(seed, possible(mode), tasks, MODES[mode].on_death), count))


def test_a_plan_is_the_same_for_the_same_seed_and_another_for_another():
    assert first(40, seed=7) == first(40, seed=7)
    assert first(20, seed=7) == first(40, seed=7)[:20]
    assert first(20, seed=7) != first(20, seed=8)


@pytest.mark.parametrize("mode", ["async", "sync-ps", "sync"])
@pytest.mark.parametrize("seed", range(20))
def test_every_kind_is_in_the_first_twenty_faults(seed, mode):
    enough = enough_for_all(possible(mode), MODES[mode].on_death)
    assert enough <= 20
    assert {fault.kind for fault in first(enough, seed, mode)} == set(possible(mode))


@pytest.mark.parametrize("mode", ["async", "sync-ps", "sync"])
@pytest.mark.parametrize("seed", range(20))
def test_the_whole_cluster_is_hit_at_most_every_other_time(seed, mode):
    whole = [fault.whole_cluster for fault in first(40, seed, mode)]
    assert all(one != next_one for one, next_one in zip(whole, whole[1:]))


class Picky(Signalled):
    """Of a system that allows nothing."""

    def why_not(self, run):
        return "not here"


def test_what_the_mode_or_the_system_does_not_allow_is_sorted_out_with_the_reason():
    picky, other = Picky("picky", (), signal.SIGKILL), Signalled("other", (), signal.SIGKILL)
    kinds = {FAULTS["kill ps"]: "mode sync has no ps", picky: None, other: None}
    lines = []
    skipped = {"kill ps": "mode sync has no ps", "picky": "not here"}
    assert allowed_here(kinds, None, lines.append) == ([other], skipped)
    assert lines == ["skipped: kill ps: mode sync has no ps", "skipped: picky: not here"]
    with pytest.raises(ChaosFailed, match="none of the kinds of fault can be injected here: not here"):
        allowed_here({picky: None}, None, lines.append)


def test_kinds_that_all_take_the_cluster_along_follow_each_other():
    tasks = ChaosSettings().topology.tasks
    kinds = [FAULTS["kill ps"], FAULTS["hang up"]]
    faults = list(islice(plan(0, kinds, tasks, MODES["async"].on_death), 4))
    assert {fault.kind for fault in faults[:2]} == {fault.kind for fault in faults[2:]} == set(kinds)


def test_victims_are_tasks_of_the_run_and_each_of_them_is_hit_sooner_or_later():
    victims = {victim for fault in first(400, seed=0) for victim in fault.victims}
    expected = ["chief-0", "evaluator-0", "ps-0", "ps-1", "worker-0", "worker-1", "worker-2"]
    assert sorted(map(str, victims)) == expected


def test_pauses_are_short():
    assert all(SHORTEST_PAUSE_S <= fault.pause_s <= LONGEST_PAUSE_S for fault in first(100, seed=0))


def test_only_what_hits_the_chief_or_a_parameter_server_or_ends_the_run_takes_the_cluster_along():
    alone = {kind.name for kind in FAULTS if kind.launched and not kind.whole_cluster(MODES["async"].on_death)}
    deaths = {"kill worker", "freeze worker", "kill evaluator", "out of memory", "fork server stopped"}
    assert alone == deaths | {"throttle", "link cut", "link slow", "out of inodes", "clock set back"}


def test_in_mode_sync_the_death_of_a_worker_takes_all_along_and_there_is_no_chief_and_no_ps_to_hit():
    refused = {kind.name: reason for kind, reason in ChaosSettings(mode="sync").wanted().items() if reason}
    assert refused["kill ps"] == "mode sync has no ps"
    assert refused["kill ps+chief"] == "mode sync has no chief and no ps"
    assert all("ps" in name or "chief" in name for name in refused)
    assert FAULTS["kill worker"].whole_cluster(MODES["sync"].on_death)
