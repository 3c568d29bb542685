"""Tell from a sentence, as a string, whether it praises, by a small transformer: python examples/text_transformer.py

The sentences are generated. TextVectorization is inside the model, which therefore takes strings, also when it is saved.
"""

import sys

import numpy as np
import tensorflow as tf

import ps_cluster

SMALL = "--small" in sys.argv
PRAISE, BLAME = ("good", "great", "lovely", "fine"), ("bad", "awful", "dull", "poor")
FILLERS = ("the", "film", "plot", "music", "was", "is", "and", "it", "I", "found", "really", "for")
WORDS = 24
FILLERS_OF_ONE = (4, 7) if SMALL else (5, 15)


def sentences(count, seed):
    """Return generated sentences, and 1 for those that praise. "not" turns the word after it: its place counts."""
    draw, texts = np.random.default_rng(seed), []
    label, turned = draw.integers(0, 2, count), draw.integers(0, 2, count)
    for praises, negated in zip(label, turned):
        words = draw.choice(FILLERS, draw.integers(*FILLERS_OF_ONE)).tolist()
        opinion = draw.choice(PRAISE if praises != negated else BLAME)
        if not negated and draw.integers(0, 2):  # so the word "not" alone tells little
            words.insert(draw.integers(0, len(words)), "not it")
        words.insert(draw.integers(0, len(words)), f"not {opinion}" if negated else opinion)
        texts.append(" ".join(words))
    return texts, label


def build():
    import keras
    from keras import layers

    words = layers.TextVectorization(output_sequence_length=WORDS)
    words.adapt(sentences(2_000, seed=0)[0])
    text = keras.Input((1,), dtype="string")
    places = layers.Embedding(WORDS, 32)(keras.ops.arange(WORDS))
    x = layers.Embedding(words.vocabulary_size(), 32)(words(text)) + places
    normed = layers.LayerNormalization()(x)
    x = x + layers.MultiHeadAttention(4, 8)(normed, normed)
    x = x + layers.Dense(32)(layers.Dense(64, "gelu")(layers.LayerNormalization()(x)))
    model = keras.Model(text, layers.Dense(2)(layers.GlobalAveragePooling1D()(x)))
    rate = keras.optimizers.schedules.CosineDecay(1e-4, STEPS, warmup_target=4e-3, warmup_steps=STEPS // 10)
    model.compile(keras.optimizers.AdamW(rate), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


STEPS = 900 if SMALL else 2_500
data = (sentences(10_000 if SMALL else 20_000, seed=0), sentences(1_000, seed=1))
result = ps_cluster.train(model=build, data=data, workers=2, ps=1, steps=STEPS, batch_size=32)
print(f"test accuracy {result.history[-1]['test_accuracy']:.1%}")
for sentence in ("I found the music really great", "the plot was not good", "it was not awful"):
    scores = result.model.predict(tf.constant([[sentence]]), verbose=0)[0]
    print(f"{sentence}: {'praises' if scores[1] > scores[0] else 'does not praise'}")
