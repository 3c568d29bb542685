"""recall@k: against sets in plain Python, where scores are equal, and of a network that is scored through a data set."""

import numpy as np
import pytest

from ps_cluster.config import build_config
from ps_cluster.config.datasets import DATASETS
from ps_cluster.config.objectives import ArrayField, ExampleSpec
from ps_cluster.evaluation import recall
from ps_cluster.evaluation.recall import Recall, recall_at

RNG = np.random.default_rng(3)
USERS, ITEMS = 40, 30
TASTE = RNG.normal(size=(USERS, ITEMS))
DRAWN = RNG.permutation(USERS * ITEMS)
KNOWN, HELD_OUT = (np.stack(np.divmod(part, ITEMS), axis=1) for part in (DRAWN[:500], DRAWN[480:700]))  # 20 are in both
BY_USER = recall.by_user(KNOWN)
EVERY_ITEM = np.arange(ITEMS)


def by_taste(pairs):
    return TASTE[pairs[:, 0], pairs[:, 1]]


def plain_recall(k, held_out=HELD_OUT):
    of_users = []
    for user in range(USERS):
        known, wanted = ({item for one, item in pairs.tolist() if one == user} for pairs in (KNOWN, held_out))
        best = sorted(set(range(ITEMS)) - known, key=lambda item, user=user: -TASTE[user, item])[:k]
        if wanted - known:
            of_users.append(len(set(best) & wanted) / len(wanted - known))
    return np.mean(of_users)


@pytest.mark.parametrize("k", [1, 5, 10, ITEMS - 1, ITEMS, 100])
def test_recall_is_the_mean_over_users_of_the_share_of_held_out_items_among_the_k_best_unknown_ones(k, monkeypatch):
    monkeypatch.setattr(recall, "_PAIRS_AT_ONCE", 7 * ITEMS)  # several batches, the last with fewer users
    found = recall_at(k, by_taste, EVERY_ITEM, BY_USER, HELD_OUT)
    assert found == pytest.approx(plain_recall(k))
    assert (found == 1) == (k >= ITEMS - 1)


@pytest.mark.parametrize("score", [0.0, np.nan])
def test_items_of_one_score_are_not_found_in_the_order_of_their_numbers(score):
    assert recall_at(3, lambda pairs: np.full(len(pairs), score), EVERY_ITEM, BY_USER, HELD_OUT) == 0


@pytest.mark.parametrize("held_out", [KNOWN[:50], KNOWN[:0]])
def test_without_an_unknown_held_out_item_there_is_no_recall(held_out):
    assert recall_at(10, by_taste, EVERY_ITEM, BY_USER, held_out) is None


def test_of_too_many_users_some_are_taken_all_over(monkeypatch):
    monkeypatch.setattr(recall, "MOST_PAIRS", 3 * ITEMS)
    asked = []
    recall_at(5, lambda pairs: asked.append(pairs) or by_taste(pairs), EVERY_ITEM, BY_USER, HELD_OUT)
    users = np.unique(HELD_OUT[:, 0])
    assert np.unique(np.concatenate(asked)[:, 0]).tolist() == [users[0], users[(len(users) - 1) // 2], users[-1]]


class Pairs:
    """A data set of pairs in two inputs, as far as `Recall` needs it. The first half of the held-out pairs is validation."""

    def __init__(self, objective, classes=(), validation=110):
        keys = {"user": ArrayField("int32", (), codes=(USERS,)), "item": ArrayField("int64", (1,), codes=(ITEMS,))}
        self.spec = ExampleSpec(keys, ArrayField("float32", ()), objective, classes)
        self.splits = {"train": KNOWN, "validation": HELD_OUT[:validation], "test": HELD_OUT[validation:]}

    def inputs(self, split):
        user, item = self.splits[split].T
        return {"user": user.astype(np.int32), "item": item[:, None]}

    def target(self, split):
        return np.arange(len(self.splits[split])) % 2


@pytest.mark.parametrize(
    ("objective", "classes", "wanted"),
    [("regression", (), slice(None)), ("classification", ("no", "yes"), slice(1, None, 2))],
)
@pytest.mark.parametrize("outputs", [1, 2])
def test_all_rated_and_all_clicked_items_are_to_be_found(objective, classes, wanted, outputs):
    def network(inputs):
        assert (inputs["user"].dtype, inputs["item"].dtype, inputs["item"].shape[1:]) == (np.int32, np.int64, (1,))
        taste = TASTE[inputs["user"], inputs["item"][:, 0]]
        return np.stack([np.ones_like(taste), taste + 1], axis=1)[:, -outputs:]

    of_pairs = Recall(5, Pairs(objective, classes), network)
    for split, held_out in (("validation", HELD_OUT[:110]), ("test", HELD_OUT[110:])):
        assert of_pairs.of(split) == pytest.approx(plain_recall(5, held_out[wanted]))


def test_without_examples_for_validation_all_held_out_ones_are_test_examples():
    of_pairs = Recall(5, Pairs("regression", validation=0), lambda inputs: by_taste(np.stack(
        [inputs["user"], inputs["item"][:, 0]], axis=1
    ))[:, None])  # fmt: skip
    assert of_pairs.of("test") == pytest.approx(plain_recall(5))


@pytest.mark.parametrize(
    ("codes", "objective", "classes", "fits"),
    [
        ((5, 9), "regression", (), True),
        ((5, 9), "classification", ("a", "b"), True),
        ((5, 9, 2), "regression", (), False),
        ((), "regression", (), False),
        ((5, 9), "classification", ("a", "b", "c"), False),
    ],
)
def test_a_ranking_of_other_examples_is_refused(codes, objective, classes, fits):
    spec = ExampleSpec({"keys": ArrayField("int32", (2,), codes=codes)}, ArrayField("int64", ()), objective, classes)
    config = build_config(None, {"data.dataset": "clicks", "evaluation.recall_at": 5})
    if fits:
        DATASETS["clicks"].check_examples(config, spec)
    else:
        with pytest.raises(
            ValueError, match=r"evaluation.recall_at: got 5: a ranking needs examples that are pairs of"
        ):
            DATASETS["clicks"].check_examples(config, spec)
