"""Tell from a sentence, as a sequence of words, whether it praises: python examples/text.py"""

import sys

import numpy as np

import ps_cluster

SMALL = "--small" in sys.argv
PRAISE, BLAME = ("good", "great", "lovely", "fine"), ("bad", "awful", "dull", "poor")
FILLERS = ("the", "film", "plot", "music", "was", "is", "and", "it", "I", "found", "really", "for")
WORDS = {word: number for number, word in enumerate(("", "not", *PRAISE, *BLAME, *FILLERS))}
LENGTH = 12


def encode(sentence):
    """Return the numbers of the words, filled up with 0."""
    return [WORDS[word] for word in sentence.split()][:LENGTH] + [0] * (LENGTH - len(sentence.split()))


def sentences(count, seed):
    """Return generated sentences, and 1 for those that praise. "not" turns the word after it: its place counts."""
    draw = np.random.default_rng(seed)
    label, turned = draw.integers(0, 2, count), draw.integers(0, 2, count)
    found = []
    for praises, negated in zip(label, turned):
        words = draw.choice(FILLERS, draw.integers(5, 9)).tolist()
        opinion = draw.choice(PRAISE if praises != negated else BLAME)
        words.insert(draw.integers(0, len(words)), f"not {opinion}" if negated else opinion)
        if not negated:
            words.append("not")  # so the word "not" alone tells nothing
        found.append(encode(" ".join(words)))
    return np.array(found, np.int32), label


def build(examples, settings):
    """Return an embedding, a convolution over three words at a time, and the strongest answer of each filter."""
    import keras

    return keras.Sequential(
        [
            keras.Input(examples.inputs["x"].shape, dtype="int32"),
            keras.layers.Embedding(len(WORDS), 16),
            keras.layers.Conv1D(32, 3, activation="relu"),
            keras.layers.GlobalMaxPooling1D(),
            keras.layers.Dense(examples.outputs),
        ]
    )


rate = {"optimizer.rule": "adam", "optimizer.learning_rate": 0.005, "optimizer.momentum": 0.9}
data = (sentences(2_000 if SMALL else 20_000, seed=0), sentences(1_000, seed=1))
result = ps_cluster.train(model=build, data=data, workers=2, epochs=8, batch_size=32, settings=rate)
for sentence in ("I found the music really great", "the plot was not good", "it was not awful"):
    scores = result.model.predict(np.array([encode(sentence)], np.int32), verbose=0)[0]
    print(f"{sentence}: {'praises' if scores[1] > scores[0] else 'does not praise'}")
