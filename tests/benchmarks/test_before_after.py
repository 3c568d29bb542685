from benchmarks.before_after import pair


def test_both_codes_are_measured_in_turns_and_every_second_time_the_later_one_comes_first():
    told = []

    def code(name, rate):
        return lambda: told.append(name) or {"examples_per_second": rate}

    both = pair(code("before", 100.0), code("now", 98.0))
    assert both() == both() == {"before": 100.0, "now": 98.0, "ratio": 0.98}
    assert told == ["before", "now", "now", "before"]
