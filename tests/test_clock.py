from ps_cluster.clock import LONGEST_GAP_S, AwakeClock


class Seconds:
    now = 1000.0

    def __call__(self):
        return self.now


def test_time_passes_as_usual_for_who_looks_often():
    machine = Seconds()
    clock = AwakeClock(machine)
    for _ in range(100):
        machine.now += 0.25
        clock()
    assert clock() == 25.0


def test_the_time_of_a_process_that_was_stopped_does_not_count():
    machine = Seconds()
    clock = AwakeClock(machine)
    machine.now += 90
    assert clock() == LONGEST_GAP_S
    machine.now += 1
    assert clock() == LONGEST_GAP_S + 1
