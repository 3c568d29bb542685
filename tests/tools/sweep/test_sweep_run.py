"""The trials of a sweep on a fleet whose runs end as a table says."""

import json

import pytest
from rich.console import Console

from ps_cluster.errors import UserError
from ps_cluster.files.json_rows import append_row
from ps_cluster.runs.result_rows import EvaluationRow
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.tools.fleet import EndedJob
from ps_cluster.tools.sweep.sweep_plan import SweepPlan, checked_space, read_sweep
from ps_cluster.tools.sweep.sweep_report import BEST, RESULTS, print_sweep_result, write_sweep_report
from ps_cluster.tools.sweep.sweep_run import SweepRun
from ps_cluster.tools.sweep.trial_book import TrialBook

RATE = "optimizer.learning_rate"
SETTINGS = {"data.dataset": "synthetic", "model.name": "tutorial_cnn", "model.precision": "float32"}
SETTINGS |= {"training.epochs": 9}
TEST_SCORE = 0.987654
PRINTED = "printed.txt"


class FakeFleet:
    """Runs that write a score at each look and end after the last: trial → its scores after each ninth, or an `EndedJob`."""

    def __init__(self, scores, burst):
        self.burst = burst  # scores between two looks
        self.scores, self.seen, self.jobs, self.asked, self.at_once = scores, {}, (), [], 0

    @property
    def has_room(self):
        return len(self.jobs) < 2

    def start(self, job):
        self.jobs = (*self.jobs, job)
        self.at_once = max(self.at_once, len(self.jobs))
        self.seen[job.index] = 0
        (job.root / "metrics").mkdir(parents=True, exist_ok=True)

    def poll(self):
        return [ended for _ in range(self.burst) for job in self.jobs if (ended := self._step(job))]

    def _step(self, job):
        scores, place = self.scores[job.index], self.seen[job.index]
        if job in self.asked or isinstance(scores, str) or place == len(scores):
            self.jobs = tuple(one for one in self.jobs if one != job)
            outcome = "stopped" if job in self.asked else "failed" if isinstance(scores, str) else "completed"
            return EndedJob(job, outcome, scores if isinstance(scores, str) else "")
        self.seen[job.index] += 1
        done = 900 * (place + 1) * 9 // len(scores)
        row = EvaluationRow(step=place, test_accuracy=TEST_SCORE, validation_accuracy=scores[place], examples=done)
        append_row(RunDir(job.root).evaluation, row)
        return None

    def ask_to_stop(self, job):
        assert job in self.jobs, "a process that has ended can't be asked"
        self.asked.append(job)

    def end_all(self):
        self.jobs = ()


class Requests:
    """Stop requests of a user, the first at a look of the sweep."""

    exit_code = 130

    def __init__(self, at=None):
        self.count, self._left = 0, at

    def poll(self, _seconds):
        if self._left is not None:
            self._left -= 1
            self.count = int(self._left <= 0)


@pytest.fixture
def sweep(dataset, tmp_path):
    """Return a function that runs a sweep on a fake fleet: its exit code, book and fleet."""

    def run(scores, stop_at=None, burst=1, **changes):
        found = read_sweep(None, {"vary": {RATE: "0.01..1:log"}, "trials": len(scores)} | changes, SETTINGS)
        plan = SweepPlan.on(dataset, found, checked_space(found))
        book = TrialBook(tmp_path / "journal", plan.method, plan.space, seed=0, smaller_is_better=False)
        fleet, requests = FakeFleet(scores, burst), Requests(stop_at)
        code = SweepRun(plan, book, fleet, tmp_path, sleep=requests.poll).run(requests)
        write_sweep_report(plan, book, tmp_path)
        with (tmp_path / PRINTED).open("w") as file:
            print_sweep_result(plan, book, tmp_path, Console(file=file, width=200))
        return code, book, fleet

    return run


def states(book):
    return {trial.number: trial.state for trial in book.trials}


def test_trials_are_judged_by_their_last_score_on_held_out_examples(sweep):
    code, book, fleet = sweep([[0.9, 0.2], [0.3, 0.5], [0.4, 0.4]])
    assert code == 0 and fleet.at_once == 2
    assert [(trial.number, trial.score) for trial in book.ranked()] == [(1, 0.5), (2, 0.4), (0, 0.2)]


def test_the_sweep_continues_after_a_failed_trial_and_prints_why_it_failed(sweep, tmp_path):
    code, book, _ = sweep(["SIGKILL: no memory", [0.5], [0.6]])
    assert code == 0 and states(book) == {0: "failed", 1: "completed", 2: "completed"}
    assert "failed: SIGKILL: no memory" in (tmp_path / PRINTED).read_text()


def test_halving_stops_a_trial_that_is_behind_at_a_rung_and_marks_it(sweep):
    rising = [0.1 * ninth for ninth in range(1, 10)]
    code, book, fleet = sweep([rising, [0.05] * 9, [0.01] * 9], method="halving")
    assert code == 0 and states(book) == {0: "completed", 1: "pruned", 2: "pruned"}
    assert [job.index for job in fleet.asked] == [1, 2] and fleet.seen[1] < 9


@pytest.mark.parametrize("skipped", [0, 2])
def test_a_trial_whose_score_at_a_rung_is_missing_is_not_judged_by_a_later_one(sweep, skipped):
    """Its later score is that of a longer training, so it can't be compared with the scores at the rung."""
    rising = [0.1 * ninth for ninth in range(1, 10)]
    late = [0.15 if skipped else None, 0.05, None, *[0.05] * 6]
    code, book, _ = sweep([rising, late], method="halving")
    assert code == 0 and states(book) == {0: "completed", 1: "completed"}


def test_scores_that_come_after_a_trial_was_stopped_change_nothing(sweep):
    code, book, _fleet = sweep([[0.5] * 9, [0.05] * 9], method="halving", burst=3)
    assert code == 0 and states(book) == {0: "completed", 1: "pruned"} and book.ranked()[1].score == 0.05


def test_a_trial_that_has_ended_before_its_rung_was_read_is_completed(sweep):
    """Its last scores are read after its process has ended, so nothing is left to stop."""
    code, book, fleet = sweep([[0.5] * 9, [0.05] * 9], method="halving", burst=10)
    assert code == 0 and states(book) == {0: "completed", 1: "completed"} and fleet.asked == []


def test_a_trial_that_can_not_be_started_now_has_not_failed(sweep, monkeypatch):
    start = FakeFleet.start

    def start_others(fleet, job):
        if job.index == 0:
            raise UserError("an earlier process still runs")
        start(fleet, job)

    monkeypatch.setattr(FakeFleet, "start", start_others)
    code, book, _ = sweep([[0.5], [0.6]])
    assert code == 1 and states(book) == {0: "running", 1: "completed"}
    monkeypatch.undo()
    code, book, _ = sweep([[0.5], [0.6]])
    assert code == 0 and states(book) == {0: "completed", 1: "completed"}


def test_an_interrupted_sweep_continues_with_the_trials_that_were_under_way(sweep):
    scores = [[0.1, 0.2, 0.3]] * 3
    code, book, fleet = sweep(scores, stop_at=2)
    assert code == 130 and states(book) == {0: "running", 1: "running"} and len(fleet.asked) == 2
    code, book, fleet = sweep(scores)
    assert code == 0 and set(states(book).values()) == {"completed"} and list(fleet.seen) == [0, 1, 2]


def test_no_result_of_a_sweep_has_a_score_on_the_test_set(sweep, tmp_path):
    sweep([[0.25], [0.5]])
    written = json.loads((tmp_path / RESULTS).read_text())
    assert [trial["held_out_score"] for trial in written["trials"]] == [0.5, 0.25]
    for name in (RESULTS, BEST, PRINTED):
        text = (tmp_path / name).read_text()
        assert "0.98" not in text and "98.7" not in text and ("0.5" in text or "50.00%" in text), name
