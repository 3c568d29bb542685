import time

from ps_cluster.system.probes import until_none_works


def test_a_wait_for_the_end_of_others_lasts_as_long_as_one_answers_and_asks_nobody_again_that_was_gone():
    asked, answers = [], {"host-1:1": 3, "host-2:1": 0}

    def ask(addresses):
        asked.extend(addresses)
        return {address for address in addresses if asked.count(address) <= answers[address]}

    until_none_works(answers, within_s=60, ask=ask, sleep=lambda seconds: None)
    assert asked.count("host-1:1") == 4 and asked.count("host-2:1") == 1


def test_a_wait_for_the_end_of_others_is_bounded():
    before = time.monotonic()
    until_none_works(["host-2:1"], within_s=0.1, ask=set)
    assert 0.1 <= time.monotonic() - before < 5
