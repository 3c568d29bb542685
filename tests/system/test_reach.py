import pytest

from ps_cluster.system import probes

ADDRESSES = ["host-1:1", "host-2:1"]


@pytest.fixture
def answers(monkeypatch):
    """How many more times each address answers; it also counts who was asked."""
    left, asked = dict.fromkeys(ADDRESSES, 0), []

    def works(address, within_s=0.0):
        asked.append(address)
        left[address] -= 1
        return left[address] >= 0

    monkeypatch.setattr(probes, "works", works)
    monkeypatch.setattr(probes, "_ASK_EVERY_S", 0.01)
    left["asked"] = asked
    return left


def test_a_wait_for_the_end_of_others_lasts_as_long_as_one_answers_and_asks_nobody_again_that_was_gone(answers):
    answers["host-1:1"] = 3
    probes.until_none_works(ADDRESSES, within_s=60)
    assert answers["asked"].count("host-1:1") == 4 and answers["asked"].count("host-2:1") == 1


def test_a_wait_for_the_end_of_others_is_bounded(answers):
    answers["host-2:1"] = 10**9
    probes.until_none_works(ADDRESSES, within_s=0.1)
    assert answers["host-2:1"] < 10**9
