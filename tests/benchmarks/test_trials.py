"""How a study chooses settings, in which order it trains, and how it corrects p values."""

from contextlib import nullcontext
from dataclasses import replace

import pytest

from benchmarks import delay_of_one, staleness_chart
from benchmarks.delay_of_one import ARMS, RULES, costs
from benchmarks.staleness_chart import arms_of
from benchmarks.training import train
from benchmarks.trials import Arm, Choice, Difference, Study, Trial, holm, score_of, shares_of_cores
from ps_cluster.errors import RunFailed, UserError
from ps_cluster.runs.checkpoints import mark_ended
from ps_cluster.runs.run_dir import RunDir
from tests.helpers.fake_runs import Fake, write_run


def arm(name="a", momenta=(0.9, 0.5), scale=1.0):
    return Arm(name, {}, (0.1, 0.2), 100, scale, "optimizer.momentum", momenta)


def scores(**by_rate_and_momentum):
    """Return the scores of choices by names such as `r1_m9`: a rate of 0.1 with momentum 0.9."""
    pairs = ((name.split("_"), score) for name, score in by_rate_and_momentum.items())
    return {
        Choice(rate=int(rate[1:]) / 10, momentum=int(momentum[1:]) / 10): score for (rate, momentum), score in pairs
    }


def test_the_first_rates_are_tried_with_the_first_momentum():
    assert arm().missing({}) == [Choice(rate=0.1, momentum=0.9), Choice(rate=0.2, momentum=0.9)]
    assert arm(momenta=()).missing({}) == [Choice(rate=0.1, momentum=None), Choice(rate=0.2, momentum=None)]


def test_all_choices_next_to_the_best_one_are_tried_until_it_stays_the_best():
    tried = scores(r1_m9=0.6, r2_m9=0.7)
    assert arm().missing(tried) == list(scores(r4_m9=0, r2_m5=0)), "its rate was at the edge"
    tried |= scores(r4_m9=0.5, r2_m5=0.8)
    assert arm().missing(tried) == list(scores(r1_m5=0, r4_m5=0)), "the best choice has another momentum now"
    tried |= scores(r1_m5=0.7, r4_m5=0.7)
    assert arm().missing(tried) == []
    assert arm().best(tried) == Choice(rate=0.2, momentum=0.5)


def test_a_training_that_diverged_is_worse_than_any_other():
    tried = scores(r1_m9=5.0, r2_m9=None)
    assert arm(scale=-1.0).best(tried) == Choice(rate=0.1, momentum=0.9)
    assert Choice(rate=0.05, momentum=0.9) in arm(scale=-1.0).missing(tried)


def study(tmp_path, arms, *trials):
    made = Study(tmp_path / "record.json", arms)
    for trial in trials:
        made.keep(trial)
    return Study(tmp_path / "record.json", arms)  # read again, as after an interruption


def trial(name, rate, seed, held_out, score):
    return Trial(arm=name, rate=rate, momentum=None, seed=seed, held_out=held_out, score=score, commit="c")


def test_choices_are_made_before_final_trials_and_seeds_are_trained_in_turns(tmp_path):
    arms = [arm("a", ()), arm("b", ())]
    chosen = [trial("a", rate, 0, 100, score) for rate, score in ((0.05, 0.1), (0.1, 0.9), (0.2, 0.5))]
    partly = study(tmp_path, arms, *chosen)
    assert [(one.name, choice.rate, seed, held_out) for one, choice, seed, held_out in partly.missing(2)] == [
        ("b", 0.1, 0, 100), ("b", 0.2, 0, 100), ("a", 0.1, 1, 0), ("a", 0.1, 2, 0),
    ]  # fmt: skip
    chosen += [trial("b", rate, 0, 100, score) for rate, score in ((0.1, 0.1), (0.2, 0.9), (0.4, 0.5))]
    whole = study(tmp_path, arms, *chosen, trial("a", 0.1, 1, 0, 0.8))
    assert [(one.name, choice.rate, seed, held_out) for one, choice, seed, held_out in whole.missing(2)] == [
        ("b", 0.2, 1, 0), ("a", 0.1, 2, 0), ("b", 0.2, 2, 0),
    ]  # fmt: skip


def test_an_arm_with_several_tuning_seeds_chooses_by_their_mean_and_its_final_seeds_come_after_them(tmp_path):
    one = replace(arm("a", ()), tuning_seeds=2)
    made = study(
        tmp_path, [one], trial("a", 0.1, 0, 100, 1.0), trial("a", 0.1, 1, 100, 3.0), trial("a", 0.2, 0, 100, 2.5)
    )
    assert made.tried(one) == {Choice(rate=0.1, momentum=None): 2.0}, "the other rate has one seed of two"
    assert [(choice.rate, seed) for _, choice, seed, _ in made.missing(1)] == [(0.2, 1)]
    made.keep(trial("a", 0.2, 1, 100, None))
    made.keep(trial("a", 0.05, 0, 100, 1.0))
    made.keep(trial("a", 0.05, 1, 100, 1.0))
    assert made.tried(one)[Choice(rate=0.2, momentum=None)] is None, "one of two trainings diverged"
    assert [(choice.rate, seed, held_out) for _, choice, seed, held_out in made.missing(1)] == [(0.1, 2, 0)]


def test_a_study_never_overwrites_trials_that_another_one_has_kept(tmp_path):
    """As when two studies train different networks with the same record, one after the other or at the same time."""
    first = study(tmp_path, [arm("a", ())], trial("a", 0.1, 0, 100, 0.5))
    both = study(tmp_path, [arm("b", ())], trial("b", 0.1, 0, 100, 0.5))
    first.keep(trial("a", 0.2, 0, 100, 0.5))
    assert len(first.tried(arm("a", ()))) == 2 and first.tried(arm("b", ()))
    both.keep(trial("b", 0.2, 0, 100, 0.5))
    assert len(both.tried(arm("a", ()))) == 2 and len(both.tried(arm("b", ()))) == 2


COPIES_A_RUN = """import pathlib, shutil, sys
shutil.copytree(pathlib.Path(__file__).with_name("ended"), sys.argv[sys.argv.index("--run-dir") + 1])
sys.exit(1)
"""


@pytest.mark.parametrize(("outcome", "is_result"), [("diverged", True), ("completed", False)])
def test_of_runs_that_end_with_an_error_only_one_that_diverged_is_a_result(tmp_path, outcome, is_result):
    """A completed run ends with an error if the proof of its updates fails."""
    ended = write_run(tmp_path / "ended", Fake({}, outcome=outcome))
    mark_ended(RunDir(ended).checkpoints, last_step=2, outcome=outcome)
    (tmp_path / "cli.py").write_text(COPIES_A_RUN)
    with nullcontext() if is_result else pytest.raises(RunFailed, match="exit code 1"):
        train(tmp_path / "run", {}, checkout=tmp_path, may_diverge=True)


def test_trials_of_another_study_are_used_again_and_stay_in_its_record(tmp_path):
    other = study(
        tmp_path, [arm(momenta=())], *(trial("a", rate, 0, 100, score) for rate, score in ((0.1, 5.0), (0.2, 6.0)))
    )
    mine = Study(tmp_path / "mine.json", [arm(momenta=())], used_again=[tmp_path / "record.json"])
    assert mine.tried(arm()) == other.tried(arm()) and len(mine.tried(arm())) == 2
    mine.keep(trial("a", 0.4, 0, 100, 4.0))
    again = Study(tmp_path / "mine.json", [arm(momenta=())])
    assert list(again.tried(arm()).values()) == [4.0], "its own record has only its own trials"


@pytest.mark.exhaustive
@pytest.mark.cluster
def test_a_training_that_diverged_has_no_score():
    settings = {"model.name": "mlp", "data.dataset": "synthetic", "mode.name": "single", "training.steps": 60}
    optimizer = {"optimizer.rule": "sgd", "optimizer.learning_rate": 1e5}
    assert score_of({**settings, **optimizer, "evaluation.draw_results": False}) is None


@pytest.mark.parametrize(
    ("cores", "shares"),
    [([2, 3], [{2}, {3}]), ([0, 1, 2], [{0, 2}, {1}]), ([5], [{5}, {5}])],
)
def test_trainings_at_the_same_time_share_the_cores(cores, shares):
    assert shares_of_cores(cores, at_a_time=2) == shares


def test_the_correction_of_holm_is_that_of_a_worked_example():
    """By hand: 4 x 0.005, 3 x 0.01, 2 x 0.03, and then never below the one before."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_the_p_value_of_a_difference_is_that_of_students_t():
    """t = 3.873 with 3 degrees of freedom; the value is that of printed tables of t (between 0.02 and 0.05)."""
    assert Difference("", (1.0, 2.0, 3.0, 4.0)).p_value() == pytest.approx(0.0305, abs=5e-4)
    assert Difference("", (-1.0, 1.0)).p_value() == pytest.approx(1.0)


def final(name, seed, score):
    return Trial(arm=name, rate=0.1, momentum=0.9, seed=seed, held_out=0, score=score, commit="c")


def test_a_contrast_is_taken_over_the_seeds_that_all_its_arms_have(tmp_path):
    """As for what staleness costs one rule more than another. A negative scale turns errors into gains."""
    arms = [arm(name, (), -1.0) for name in "abcd"]
    tried = [
        trial(name, rate, 0, 100, score) for name in "abcd" for rate, score in ((0.05, 3.0), (0.1, 1.0), (0.2, 2.0))
    ]
    final_scores = {"a": (5.0, 9.0), "b": (1.0, 2.0), "c": (3.0, 4.0), "d": (0.5,)}
    finals = [trial(name, 0.1, 1 + n, 0, score) for name, of in final_scores.items() for n, score in enumerate(of)]
    kept = study(tmp_path, arms, *tried, *finals)
    assert kept.contrast("", [arms[0], arms[1]], [arms[2], arms[3]]).values == pytest.approx([-(5.0 + 1.0 - 3.0 - 0.5)])
    assert kept.difference("", arms[0], arms[2]).values == pytest.approx([-(5.0 - 3.0), -(9.0 - 4.0)])


def test_final_trials_of_another_choice_than_the_best_do_not_count(tmp_path):
    """A study whose trials are used again tried no second momentum, so it chose another one."""
    tried = Trial(arm="a", rate=0.1, momentum=0.9, seed=0, held_out=100, score=0.5, commit="c")
    better = tried.model_copy(update={"momentum": 0.5, "score": 0.6})
    assert study(tmp_path, [], tried, final("a", 1, 0.5)).scores(arm()) == {1: 0.5}
    assert study(tmp_path, [], better).scores(arm()) == {}


def test_the_cost_of_a_delay_is_taken_over_the_seeds_that_all_arms_have(tmp_path):
    """A study that was interrupted has one more training of some arms than of others."""
    (adam, adam_late), (muon, muon_late) = [[ARMS[rule.name, delay].name for delay in (0, 1)] for rule in RULES]
    trials = [final(adam, 1, 3.0), final(adam, 2, 3.5), final(adam, 3, 9.0), final(adam_late, 1, 3.25)]
    trials += [final(adam_late, 2, 4.0), final(muon, 1, 2.0), final(muon, 2, 2.5), final(muon_late, 2, 2.5)]
    with pytest.raises(UserError, match="fewer than two seeds"):
        costs(study(tmp_path, [], *trials))
    assert costs(study(tmp_path, [], final(muon_late, 1, 2.125))) == {"adam": [0.25, 0.5], "muon_adam": [0.125, 0.0]}


def test_a_record_without_final_trials_is_told_in_one_line(tmp_path):
    study(tmp_path, [], trial("a", 0.1, 0, 100, 0.5))
    for draw in (staleness_chart.draw, delay_of_one.draw):
        with pytest.raises(UserError, match="run the study without --draw first"):
            draw(tmp_path / "record.json")


def test_the_chart_has_each_training_once():
    """Without staleness, predicted weights change nothing, and ordered momentum is momentum."""
    names = [one.name for one in arms_of("tutorial_cnn")]
    assert len(names) == len(set(names)) == 16
