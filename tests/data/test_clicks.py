"""Generated click data: the law of its keys, what is known about its truth, and what it tells about itself."""

import numpy as np
import pytest

from ps_cluster.data.sets.clicks import ClickSettings, auc, generate, log_loss, zipf_keys


def settings(**given):
    return ClickSettings(dataset="clicks", **{"rows": 50, "train_examples": 2000, "test_examples": 1000} | given)


@pytest.mark.parametrize("exponent", [0.0, 0.8, 1.05, 1.2])
def test_the_frequencies_of_keys_follow_zipfs_law(exponent):
    rows, count = 1000, 400_000
    found = np.bincount(zipf_keys(np.random.default_rng(3), count, rows, exponent), minlength=rows)
    assert len(found) == rows, "no key is outside"
    weights = np.arange(1, rows + 1) ** -exponent
    expected = count * weights / weights.sum()
    # Pearson's statistic has a mean of rows - 1 and, with so many examples, a deviation of the root of twice that.
    statistic = ((found - expected) ** 2 / expected).sum()
    assert abs(statistic - (rows - 1)) < 5 * np.sqrt(2 * (rows - 1))


def test_a_draw_inverts_the_cumulative_probabilities():
    class Uniform:
        def random(self, count):
            return np.array([0.0, 0.5454, 0.5455, 0.8181, 0.8182, 1 - 2**-53])  # 6/11, 9/11 with weights 1, 1/2, 1/3

    assert zipf_keys(Uniform(), 6, 3, 1.0).tolist() == [0, 0, 1, 1, 2, 2]


def test_the_same_seed_gives_the_same_set_and_another_seed_another():
    first, again, other = (generate(settings(), seed)[0].arrays for seed in (1, 1, 2))
    for split in ("train", "test"):
        for name in ("categories", "numbers", "target"):
            assert np.array_equal(first[split][name], again[split][name])
            assert not np.array_equal(first[split][name], other[split][name])


def test_the_number_of_training_examples_does_not_change_the_test_examples():
    few, many = (generate(settings(train_examples=count))[0].arrays["test"] for count in (100, 3000))
    assert all(np.array_equal(few[name], many[name]) for name in few)


def test_the_examples_have_the_form_that_their_spec_says():
    contents, _ = generate(settings(rows=30))
    assert contents.spec.inputs["categories"].codes == (30,) * 26 and contents.spec.classes == ("no click", "click")
    for split, count in (("train", 2000), ("test", 1000)):
        arrays = contents.arrays[split]
        assert arrays["categories"].shape == (count, 26) and arrays["categories"].dtype == np.int32
        assert arrays["numbers"].shape == (count, 13) and arrays["numbers"].dtype == np.float32
        assert arrays["target"].dtype == np.uint8 and 0.15 < arrays["target"].mean() < 0.45
        assert arrays["categories"].min() == 0 and arrays["categories"].max() == 29


def test_clicks_are_as_frequent_as_their_probabilities_say():
    contents, truth = generate(settings(train_examples=100_000))
    labels, probabilities = contents.arrays["train"]["target"], truth["train"]
    place = np.digitize(probabilities, np.linspace(0, 1, 11)) - 1
    for one in range(10):
        mine = place == one
        deviation = np.sqrt((probabilities[mine] * (1 - probabilities[mine])).sum()) / mine.sum()
        assert abs(labels[mine].mean() - probabilities[mine].mean()) < 5 * deviation


def test_the_area_under_the_curve_is_the_share_of_pairs_in_the_right_order():
    draw = np.random.default_rng(0)
    labels, scores = draw.integers(0, 2, 200), draw.integers(0, 30, 200) / 10  # with ties
    apart = scores[labels == 1][:, None] - scores[labels == 0][None]
    assert auc(labels, scores) == pytest.approx((apart > 0).mean() + (apart == 0).mean() / 2, abs=1e-12)
    assert auc(np.array([0, 0, 1]), np.array([0.1, 0.2, 0.3])) == 1


def test_the_set_tells_the_scores_of_the_true_probabilities():
    contents, truth = generate(settings())
    labels, best = contents.arrays["test"]["target"], truth["test"]
    in_nats = -(labels * np.log(best) + (1 - labels) * np.log(1 - best)).mean()
    assert log_loss(labels, best) == pytest.approx(in_nats)
    (note,) = contents.notes
    assert f"AUC {auc(labels, best):.4f}, log loss {in_nats:.4f}" in note
    for worse in (best**2, 1 - best, best + np.random.default_rng(0).normal(0, 0.3, len(best))):
        assert auc(labels, best) >= auc(labels, worse) - 1e-12
