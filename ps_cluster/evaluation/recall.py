"""Score how well a network ranks items for users: recall@k. Examples are (user, item) pairs. Imports no TensorFlow."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ps_cluster.config.objectives import OBJECTIVES
from ps_cluster.data.packed import PackedDataset, PackedSplit

# The largest number of pairs that are scored. MovieLens 100K has 1.5 million pairs, for which the network
# two_tower takes 2.2 s on one processor.
MOST_PAIRS = 2**23
_PAIRS_AT_ONCE = 2**14


def recall_at(
    k: int, scores_of: Callable[[np.ndarray], np.ndarray], items: np.ndarray, known: np.ndarray, held_out: np.ndarray
) -> float | None:
    """Return recall@k: the share of a user's held-out items that are among the k best items, averaged over the users.

    Krichene and Rendle 2020, "On Sampled Metrics for Item Recommendation", KDD: Recall(R)@k is the share of the
    relevant items R whose rank is at most k. Following their advice, all items are ranked, instead of a sample of
    them. Only the items that `known` has for the user are left out. The rank of an item is the number of ranked items,
    including itself, whose score is not lower. So if a network gives more than k items the same score, none of these
    items is found, whatever their order. The mean is over the users who have a pair in `held_out` that is not in
    `known`, and each user counts once. Each pair of a user and an item needs a score. If there are more than
    `MOST_PAIRS` such pairs, only some of the users are taken, spread evenly over the sorted users.

    Args:
      scores_of: takes pairs of a user and an item, int64 [n, 2], and returns their scores, float [n]. An item with the
        score NaN is ranked last.
      items: int64 [I], the items that are ranked, ascending and distinct.
      known: int64 [N, 2], the pairs that were trained on, sorted by user (`by_user`).
      held_out: int64 [M, 2], the pairs to be found. `items` contains all items of `known` and `held_out`.
    Returns:
      The mean over the users, 0..1; None if no user has a pair in `held_out` that is not in `known`.
    """
    if not len(held_out):
        return None
    users = np.unique(held_out[:, 0])
    users = users[np.unique(np.linspace(0, len(users) - 1, min(len(users), MOST_PAIRS // len(items) or 1), dtype=int))]
    held_out = by_user(held_out)
    at_once = _PAIRS_AT_ONCE // len(items) or 1
    shares = []
    for some in np.split(users, range(at_once, len(users), at_once)):
        pairs = np.stack([np.repeat(some, len(items)), np.tile(items, len(some))], axis=1)
        scores = np.nan_to_num(scores_of(pairs), nan=-np.inf).reshape(len(some), len(items))
        excluded = _has(known, some, items)
        wanted = _has(held_out, some, items) & ~excluded
        scores[excluded] = -np.inf
        beaten = np.partition(scores, -k - 1)[:, -k - 1] if k < len(items) else np.full(len(some), -np.inf)
        found, total = ((rows & wanted).sum(1) for rows in (scores > beaten[:, None], wanted))
        shares.append(found[total > 0] / total[total > 0])
    every = np.concatenate(shares)
    return float(every.mean()) if len(every) else None


def by_user(pairs: np.ndarray) -> np.ndarray:
    """Return pairs of a user and an item, [n, 2], sorted by user."""
    return pairs[np.argsort(pairs[:, 0], kind="stable")]


def _has(pairs: np.ndarray, users: np.ndarray, items: np.ndarray) -> np.ndarray:
    """Return for each pair of a user and an item whether it is in `pairs`, which are sorted by user: bool [U, I]."""
    found = np.zeros((len(users), len(items)), bool)
    first, end = np.searchsorted(pairs[:, 0], [users[0], users[-1] + 1])
    some = pairs[first:end]
    some = some[np.isin(some[:, 0], users)]
    found[np.searchsorted(users, some[:, 0]), np.searchsorted(items, some[:, 1])] = True
    return found


class Recall:
    """Computes recall@k on a data set whose examples are pairs of a user and an item (`ExampleSpec.is_pair`)."""

    def __init__(self, k: int, dataset: PackedDataset, outputs: Callable[[dict[str, np.ndarray]], np.ndarray]):
        """Create an object that computes recall@k on a data set.

        Args:
          k: a held-out item counts as found if it is among the k best items.
          outputs: takes inputs by name, and returns the network's outputs, float32 [n, 1], or [n, 2] for the scores of
            two classes.
        """
        self.k = k
        self._dataset, self._outputs = dataset, outputs
        pairs = [self._pairs(split) for split in ("train", "validation", "test")]
        self._items = np.unique(np.concatenate([some[:, 1] for some in pairs]))
        self._known = by_user(pairs[0])  # sorted once, because there may be millions of them

    def of(self, split: PackedSplit) -> float | None:
        """Return recall@k for a split: the test examples or the validation examples.

        Every item of the data set is ranked, except those that the user has in the examples that were trained on. The
        pairs to be found are the split's pairs that `Objective.pairs_to_find` selects.
        """
        wanted = OBJECTIVES[self._dataset.spec.objective].pairs_to_find(self._dataset.target(split), self._dataset.spec)
        held_out = self._pairs(split)[wanted]
        return recall_at(self.k, self._scores, self._items, self._known, held_out)

    def _pairs(self, split: PackedSplit) -> np.ndarray:
        inputs, fields = self._dataset.inputs(split), self._dataset.spec.inputs
        columns = [rows.reshape(len(rows), len(fields[name].codes)) for name, rows in inputs.items()]
        return np.concatenate(columns, axis=1).astype(np.int64)

    def _scores(self, pairs: np.ndarray) -> np.ndarray:
        inputs, first = {}, 0
        for name, field in self._dataset.spec.inputs.items():
            columns = pairs[:, first : first + len(field.codes)]
            inputs[name] = columns.reshape(-1, *field.shape).astype(field.dtype)
            first += len(field.codes)
        outputs = self._outputs(inputs).astype(np.float64)
        return outputs[:, -1] - (outputs[:, 0] if outputs.shape[1] == 2 else 0)
