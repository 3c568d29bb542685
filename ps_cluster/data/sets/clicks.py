"""Generate data like the clicks that recommenders learn from. The true probability of each click is known.

An example has 26 categorical columns and 13 numbers, as Criteo's data has. The keys of each column follow Zipf's law,
and key 0 is the most frequent one. The probability of a click is a logistic function of hidden effects: each key has
an effect, some pairs of columns interact through hidden vectors of keys, and the numbers have linear and quadratic
effects. So the best score that any model can reach is known. A trained model stays below it, because it sees rare keys
too seldom to learn their effects.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from pydantic import Field

from ps_cluster.config.datasets import Contents, DataSet, DataSettings
from ps_cluster.config.objectives import ArrayField, ExampleSpec

COLUMNS = 26
NUMBERS = 13
PAIRS = ((0, 1), (2, 3), (4, 5))  # the columns that interact
CLASSES = ("no click", "click")

_PARTS = 2  # the length of the hidden vectors; a key has one for each pair that contains its column
# The standard deviations that all keys together, all pairs and all numbers contribute to the logit.
_KEYS_DEVIATION, _PAIRS_DEVIATION, _NUMBERS_DEVIATION = 1.3, 0.6, 0.9
_BIAS = -1.5  # the logit of an example without effects, so that about a quarter of the examples are clicks


class ClickSettings(DataSettings):
    """Settings of the generated click data."""

    rows: int = Field(default=20_000, ge=2, le=100_000_000, description="Number of keys in each categorical column.")
    zipf_exponent: float = Field(
        default=1.05,
        ge=0,
        le=10,
        description="Exponent s of Zipf's law: the frequency of key k is proportional to (k+1)^-s.",
    )
    train_examples: int = Field(
        default=200_000, ge=100, le=1_000_000_000, description="Number of examples to train on."
    )
    test_examples: int = Field(default=50_000, ge=100, le=100_000_000, description="Number of examples to test on.")


def zipf_keys(rng: np.random.Generator, count: int, rows: int, exponent: float) -> np.ndarray:
    """Draw keys int32 [count] from 0 to rows - 1. The probability of key k is proportional to (k + 1) ** -exponent.

    The draw is exact, because it inverts the cumulative probabilities of all keys.
    """
    cumulative = np.cumsum(np.arange(1, rows + 1, dtype=np.float64) ** -exponent)
    # A uniform number is below 1, so its product is below the last sum, and the index found is below `rows`.
    keys: np.ndarray = np.searchsorted(cumulative, rng.random(count) * cumulative[-1], side="right").astype(np.int32)
    return keys


def auc(labels: np.ndarray, scores: np.ndarray) -> float:
    """Return the area under the ROC curve of scores [N] for labels [N] of 0 and 1.

    It is the probability that a positive example scores higher than a negative one, where equal scores count half (Mann
    and Whitney's U, from ranks).
    """
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
    positives = np.count_nonzero(labels)
    above = ranks[labels > 0].sum() - positives * (positives + 1) / 2
    return float(above / (positives * (len(labels) - positives)))


def log_loss(labels: np.ndarray, probabilities: np.ndarray) -> float:
    """Return the mean negative logarithm, in nats, of the probabilities that predictions give to the true labels.

    `labels`: [N], 0 or 1. `probabilities`: [N], the predicted probability of label 1.
    """
    return float(-np.log(np.where(labels > 0, probabilities, 1 - probabilities)).mean())


def click_spec(rows: int) -> ExampleSpec:
    """Return the description of examples of clicks. `rows`: the number of keys in each categorical column."""
    categories = ArrayField("int32", (COLUMNS,), codes=(rows,) * COLUMNS)
    numbers = ArrayField("float32", (NUMBERS,))
    return ExampleSpec({"categories": categories, "numbers": numbers}, ArrayField("uint8", ()), classes=CLASSES)


def generate(settings: ClickSettings, seed: int = 0) -> tuple[Contents, dict[str, np.ndarray]]:
    """Generate the data set. Return it, and the true click probabilities of its examples, float64 [N] for each split.

    With the same version of numpy, equal arguments give equal data sets. The number of training examples does not
    change the test examples.
    """
    truth, *of_splits = np.random.SeedSequence(seed).spawn(3)
    draws = {split: np.random.default_rng(one) for split, one in zip(("train", "test"), of_splits)}
    examples = {"train": settings.train_examples, "test": settings.test_examples}
    arrays = {split: _draw_inputs(draws[split], examples[split], settings) for split in draws}
    logits = _logits(np.random.default_rng(truth), settings.rows, arrays)
    probabilities = {split: 1 / (1 + np.exp(-one)) for split, one in logits.items()}
    for split, one in probabilities.items():
        arrays[split]["target"] = (draws[split].random(len(one)) < one).astype(np.uint8)
    labels, best = arrays["test"]["target"], probabilities["test"]
    note = (
        f"the best scores that a model can reach on the test examples, by the true click probabilities: "
        f"AUC {auc(labels, best):.4f}, log loss {log_loss(labels, best):.4f}, "
        f"accuracy {((best > 0.5) == labels).mean():.2%}"
    )
    return Contents(click_spec(settings.rows), arrays, notes=(note,)), probabilities


def _draw_inputs(rng: np.random.Generator, examples: int, settings: ClickSettings) -> dict[str, np.ndarray]:
    """Return categories int32 [N, 26] and numbers float32 [N, 13]. The numbers are normally distributed."""
    categories = np.empty((examples, COLUMNS), np.int32)
    for column in range(COLUMNS):
        categories[:, column] = zipf_keys(rng, examples, settings.rows, settings.zipf_exponent)
    return {"categories": categories, "numbers": rng.standard_normal((examples, NUMBERS), np.float32)}


def _logits(rng: np.random.Generator, rows: int, arrays: dict[str, dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return the logit of the true click probability of each example, float64 [N] for each split.

    Effects are drawn one column, or one pair, at a time, so that large tables need little memory.
    """
    logits = {split: np.full(len(one["numbers"]), _BIAS) for split, one in arrays.items()}
    linear = rng.standard_normal(NUMBERS) * _NUMBERS_DEVIATION * np.sqrt(0.75 / NUMBERS)
    quadratic = rng.standard_normal(NUMBERS) * _NUMBERS_DEVIATION * np.sqrt(0.25 / (2 * NUMBERS))
    for split, one in arrays.items():
        logits[split] += one["numbers"] @ linear + (one["numbers"] ** 2 - 1) @ quadratic
    shares = 1 / np.arange(1, COLUMNS + 1)  # each column's part of the variance: the first columns matter most
    for column, deviation in enumerate(_KEYS_DEVIATION * np.sqrt(shares / shares.sum())):
        effects = rng.standard_normal(rows, np.float32) * deviation
        for split, one in arrays.items():
            logits[split] += effects[one["categories"][:, column]]
    for first, second in PAIRS:
        scale = (_PAIRS_DEVIATION / np.sqrt(len(PAIRS) * _PARTS)) ** 0.5
        vectors, others = (rng.standard_normal((rows, _PARTS), np.float32) * scale for _ in range(2))
        for split, one in arrays.items():
            keys = one["categories"]
            logits[split] += (vectors[keys[:, first]] * others[keys[:, second]]).sum(1)
    return logits


class Clicks(DataSet[ClickSettings]):
    """The generated click data."""

    name = "clicks"
    title = "the generated click data"
    generated = True
    Settings = ClickSettings
    recipe = {"model": {"name": "dlrm"}}

    def read(self, source: Path | None, settings: ClickSettings) -> Contents:
        contents, _ = generate(settings)
        return contents
