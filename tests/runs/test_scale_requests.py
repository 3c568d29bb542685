"""`ps-cluster scale` and the launcher talk through a file for each request, and one for its answer."""

import pytest

from ps_cluster.errors import UserError
from ps_cluster.files import locks
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.runs.scale_requests import ANSWER_WITHIN_S, ScaleRequestHandler, ask


class Launcher:
    """Answers while the other side sleeps, as often as it is told to."""

    def __init__(self, run_dir, *answers):
        self.notices, self.heard, self.now = [], [], 0.0
        self.desk = ScaleRequestHandler(run_dir, self.notices.append)
        self._answers = list(answers)

    def sleep(self, seconds):
        self.now += seconds
        if self._answers and (workers := self.desk.asked()) is not None:
            self.heard.append(workers)
            line, refused = self._answers.pop(0)
            self.desk.answer(line, refused=refused)

    def ask(self, run_dir, workers):
        return ask(run_dir, workers, clock=lambda: self.now, sleep=self.sleep)


def left(run_dir):
    return list(run_dir.root.glob("scale*"))


@pytest.fixture
def run_dir(tmp_path):
    run_dir = RunDir.create(tmp_path / "run")
    with locks.sole_use(run_dir.root, "run", lambda _: None):
        yield run_dir


def test_the_launcher_hears_the_request_and_the_answer_comes_back_and_no_file_is_left(run_dir):
    launcher = Launcher(run_dir, ("started worker-3", False), ("stopped worker-3", False))
    assert launcher.ask(run_dir, 4) == "started worker-3"
    assert launcher.ask(run_dir, 3) == "stopped worker-3" and launcher.heard == [4, 3]
    assert left(run_dir) == []


def test_a_refusal_is_bad_input(run_dir):
    with pytest.raises(UserError, match="too many"):
        Launcher(run_dir, ("too many", True)).ask(run_dir, 9)


def test_of_two_requests_the_earlier_one_is_heard_first_and_each_has_its_answer(run_dir):
    launcher, later = Launcher(run_dir, ("started worker-4", False), ("stopped worker-4", False)), []

    def a_second_command_comes(_):
        later.append(launcher.ask(run_dir, 4))

    assert ask(run_dir, 5, sleep=a_second_command_comes) == "started worker-4"
    assert later == ["stopped worker-4"] and launcher.heard == [5, 4] and left(run_dir) == []


def test_a_request_that_was_heard_keeps_its_answer_when_another_one_is_answered_first(run_dir):
    launcher, later = Launcher(run_dir, ("stopped worker-4", False)), []

    def is_heard_and_a_second_command_comes(_):
        assert launcher.desk.asked() == 5
        launcher.desk.answer("started worker-4", refused=False)
        later.append(launcher.ask(run_dir, 4))

    assert ask(run_dir, 5, sleep=is_heard_and_a_second_command_comes) == "started worker-4"
    assert later == ["stopped worker-4"] and left(run_dir) == []


def test_a_launcher_that_does_not_answer_is_not_waited_for_longer_than_the_limit(run_dir):
    launcher = Launcher(run_dir)
    with pytest.raises(UserError, match="no answer within"):
        launcher.ask(run_dir, 2)
    assert launcher.now < ANSWER_WITHIN_S + 1 and left(run_dir) == []


def test_a_request_that_nobody_heard_is_not_for_the_next_launcher(run_dir):
    run_dir.scale_request("7").write_text('{"workers": 2}')
    assert ScaleRequestHandler(run_dir, lambda _: None).asked() is None


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"workers": 2.5}', '{"workers": -1}'])
def test_a_request_that_can_not_be_read_is_left_out_and_said_once(run_dir, content):
    launcher = Launcher(run_dir)
    run_dir.scale_request("7").write_text(content)
    assert launcher.desk.asked() is None and launcher.desk.asked() is None
    assert len(launcher.notices) == 1 and "scale-7.json" in launcher.notices[0]


def test_a_request_that_can_not_be_removed_is_said_once_and_the_next_one_is_heard(run_dir):
    old, new = run_dir.scale_request("6"), run_dir.scale_request("7")
    old.mkdir()
    launcher = Launcher(run_dir, ("started worker-3", False))
    assert launcher.desk.asked() is None and launcher.notices == []
    new.mkdir()
    assert launcher.desk.asked() is None and launcher.desk.asked() is None
    assert len(launcher.notices) == 1 and "scale-7.json" in launcher.notices[0]
    assert launcher.ask(run_dir, 4) == "started worker-3" and set(left(run_dir)) == {old, new}


def test_a_run_that_has_ended_is_told_at_once(tmp_path):
    run_dir = RunDir.create(tmp_path / "ended")
    with pytest.raises(UserError, match="its run is not active"):
        ask(run_dir, 2)
