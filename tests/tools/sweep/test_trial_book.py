import pytest

from ps_cluster.errors import UserError
from ps_cluster.tools.sweep.methods import SEARCH_METHODS
from ps_cluster.tools.sweep.space import read_space
from ps_cluster.tools.sweep.trial_book import TrialBook

RATE, SIZE = "optimizer.learning_rate", "training.batch_size_per_worker"
SPACE = read_space({RATE: "0.01..1:log", SIZE: [64, 128]})


@pytest.fixture
def open_book(tmp_path):
    def open_one(method="random", space=SPACE, smaller=False):
        return TrialBook(tmp_path / "journal", SEARCH_METHODS[method], space, seed=3, smaller_is_better=smaller)

    return open_one


def begun(book):
    return [trial for trial in book.trials if trial.state == "running"]


def test_a_continued_sweep_draws_what_it_would_have_drawn_without_a_pause(open_book, tmp_path):
    at_once = [open_book().draw().values]
    book = open_book()
    at_once += [book.draw().values for _ in range(3)]
    (tmp_path / "journal").unlink()
    again = [open_book().draw().values for _ in range(4)]  # opened anew for each
    assert again == at_once and len({values[RATE] for values in again}) == 4


def test_trials_under_way_are_known_after_a_restart_and_can_be_completed(open_book):
    book = open_book()
    first, second = book.draw(), book.draw()
    book.completed(first.number, 0.5)
    again = open_book()
    assert [trial.number for trial in begun(again)] == [second.number]
    again.completed(second.number, 0.75)
    assert open_book().best().number == second.number and not begun(open_book())


def test_a_trial_that_was_begun_but_not_drawn_when_the_sweep_died_is_drawn_later(open_book):
    space = read_space({RATE: "0.1,0.2", SIZE: [64, 128]})
    book = open_book("grid", space)
    book._study.ask()  # what `draw` does first
    assert [trial.values for trial in begun(open_book("grid", space))] == [{RATE: 0.1, SIZE: 64}]


def test_a_grid_tries_each_combination_once_also_after_restarts(open_book):
    space = read_space({RATE: "0.1..0.5:3", SIZE: [64, 128]})
    drawn = []
    for _ in range(6):
        book = open_book("grid", space)
        trial = book.draw()
        book.completed(trial.number, trial.values[RATE])
        drawn.append(tuple(trial.values.values()))
    assert drawn == [(rate, size) for rate in (0.1, 0.3, 0.5) for size in (64, 128)]


def test_halving_stops_a_trial_that_is_worse_than_those_at_its_rung(open_book):
    book = open_book("halving")
    good, bad, better = book.draw(), book.draw(), book.draw()
    assert not book.report(good.number, 0.6, 1)
    assert book.report(bad.number, 0.5, 1)
    assert not book.report(better.number, 0.7, 1)
    book.pruned(bad.number)
    assert not book.report(better.number, 0.1, 2), "stage 2 is no rung"
    assert not book.report(good.number, 0.65, 3)
    assert book.report(better.number, 0.64, 3)
    assert not open_book("halving").report(good.number, 0.1, 3), "the first report of a stage counts, without a warning"


def test_the_best_are_first_and_an_error_is_better_if_smaller(open_book):
    book = open_book(smaller=True)
    trials = [book.draw() for _ in range(4)]
    book.completed(trials[0].number, 2.0)
    book.failed(trials[1].number, "broke")
    book.completed(trials[3].number, 1.0)
    assert [trial.number for trial in book.ranked()] == [3, 0, 2, 1]
    assert [trial.state for trial in book.ranked()] == ["completed", "completed", "running", "failed"]
    assert book.ranked()[-1].why == "broke" and book.best().score == 1.0


def test_a_search_that_learns_from_scores_causes_no_warning(open_book):
    book = open_book("tpe")
    for _ in range(12):  # the first ten are drawn at random
        trial, under_way = book.draw(), book.draw()
        book.completed(trial.number, trial.values[RATE])
        book.pruned(under_way.number)
    assert len(open_book("tpe").trials) == 24


def test_a_damaged_journal_is_refused_in_one_line(open_book, tmp_path):
    (tmp_path / "journal").write_text("no journal\n{]\n")
    with pytest.raises(UserError, match="is not a valid journal of trials"):
        open_book()
