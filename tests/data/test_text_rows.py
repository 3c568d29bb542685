"""Texts as inputs: packed as code points, and strings again before the network."""

import tracemalloc

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import tensorflow as tf

from ps_cluster.config import build_config
from ps_cluster.config.datasets import OwnDataSettings
from ps_cluster.config.networks import check_examples
from ps_cluster.config.objectives import ArrayField
from ps_cluster.data import table_files
from ps_cluster.data.own_arrays import as_contents
from ps_cluster.data.packing import write_packed
from ps_cluster.data.table_encoding import Encoding
from ps_cluster.data.table_files import ArrowTable
from ps_cluster.data.text_rows import MOST_CHARACTERS, TextSize, network_input, text_size_of, texts_of
from ps_cluster.errors import UserError
from ps_cluster.files.values import Malformed
from ps_cluster.runs.dataset_rows import TableEncoding
from tests.helpers.own_data import packed, refused

PLAIN = ["a film", "", "the plot", "bad"]
GREEK = ["ein Film für alle", "λόγος", "日本", "x" * 30]
FACES = [*PLAIN[:3], "fine 🙂"]


def contents_of(x):
    y = np.arange(len(next(iter(x.values())) if isinstance(x, dict) else x)) % 2
    return as_contents({"x_train": x, "y_train": y, "x_test": x, "y_test": y}, OwnDataSettings(dataset="packed_arrays"))


@pytest.mark.parametrize(
    "make", [list, np.array, pd.Series, tf.constant, lambda texts: np.char.encode(np.array(texts), "utf-8")]
)
@pytest.mark.parametrize(
    ("texts", "code", "longest"), [(PLAIN, "uint8", 8), (GREEK, "uint16", 30), (FACES, "int32", 8)]
)
def test_a_network_gets_the_texts_that_were_given(tmp_path, make, texts, code, longest):
    data = write_packed(tmp_path / "packed", "mine", "real", contents_of(make(texts)))
    field = data.spec.inputs["x"]
    assert field == ArrayField("string", (1,), characters=longest, code=code)
    found = network_input(data.inputs("train")["x"], field).numpy()
    assert [text.decode() for text in found[:, 0]] == texts


def test_several_texts_of_an_example_stand_beside_other_inputs(tmp_path):
    pairs, numbers = np.array([PLAIN, GREEK]).T, np.arange(8.0).reshape(4, 2)
    data = write_packed(tmp_path / "packed", "mine", "real", contents_of({"pair": pairs, "number": numbers}))
    found = network_input(data.inputs("test")["pair"], data.spec.inputs["pair"]).numpy()
    assert [[text.decode() for text in row] for row in found] == pairs.tolist()
    assert str(data.spec) == "pair string [2], number float64 [2]"


@pytest.mark.parametrize(
    ("x", "told"),
    [
        (pd.Series(["a", None, "b", "c"]), "'x' has .* in example 1, which is no text: give '' for a missing text"),
        (
            ["a", "b" * (MOST_CHARACTERS + 1), "c", "d"],
            "'x' has a text of 65,537 characters in example 1, more than 65,536: cut",
        ),
    ],
)
def test_what_is_no_text_or_too_long_is_told_with_its_place(x, told):
    with pytest.raises(Malformed, match=told):
        contents_of(x)


def test_a_network_of_the_package_says_that_it_takes_no_texts(tmp_path):
    data = write_packed(tmp_path / "packed", "mine", "real", contents_of(PLAIN))
    with pytest.raises(UserError, match="'mlp' can't be built for examples of x string .*'x' is text: bring a network"):
        check_examples(build_config(overrides={"model.name": "mlp"}).model, data.spec)


def test_a_column_of_free_text_of_a_table_is_an_input_beside_the_others(tmp_path):
    rows = "".join(f'{place},"{text}, \u00fcber {place}",{place % 2}\n' for place, text in enumerate(PLAIN * 10))
    (tmp_path / "reviews.csv").write_text(f"stars,review,label\n{rows},,1\n")
    data, _ = packed(tmp_path / "reviews.csv", target="label", text=("review",))
    assert data.spec.inputs["texts"] == ArrayField("string", (1,), characters=17, code="uint8")
    assert [*data.spec.inputs] == ["numbers", "texts"]
    field, found = data.spec.inputs["texts"], []
    for split in ("train", "test"):
        found += [text.decode() for text in network_input(data.inputs(split)["texts"], field).numpy()[:, 0]]
    assert sorted(found) == sorted(["", *(f"{text}, \u00fcber {place}" for place, text in enumerate(PLAIN * 10))])


def test_of_a_table_of_texts_alone_the_columns_that_are_left_out_are_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(table_files, "_BLOCK_BYTES", 2**12)
    rows = "".join(f"text {place},{place % 2},{place}\n" for place in range(1_000))
    (tmp_path / "reviews.csv").write_text(f"review,label,id\n{rows}the last text,1,an id that is no number\n")
    data, _ = packed(tmp_path / "reviews.csv", target="label", text=("review",), leave_out=("id",))
    assert [*data.spec.inputs] == ["texts"] and data.train_examples + data.test_examples == 1_001


def test_one_long_text_of_a_table_does_not_make_all_its_texts_take_as_much_memory_at_once():
    rows, longest = 5_000, 20_000
    texts = [*("a short text" for _ in range(rows - 1)), "\u00fc" * longest]
    encoding = Encoding(TableEncoding(target="label", numbers=[], categories=[], texts=["review"]))
    batch = pa.record_batch({"review": texts})
    table = ArrowTable({"review": pa.string()}, {}, "'reviews'", lambda columns: iter([batch]))
    tracemalloc.start()
    try:
        text_size = text_size_of("a column", encoding.text_pieces(table))
        found = encoding.arrays(table, rows, text_size)["texts"]
        ends = [found[place : place + 1] for place in (0, rows - 1)]
        assert tracemalloc.get_traced_memory()[1] < 4 * rows * longest / 4, "a quarter of all texts as 32-bit codes"
    finally:
        tracemalloc.stop()
    assert text_size == TextSize(longest, "uint8")
    assert [texts_of(end).tolist() for end in ends] == [[[texts[0]]], [[texts[-1]]]]


def test_a_column_of_free_text_that_nobody_named_is_told_what_to_set(tmp_path):
    rows = "".join(f"word {place},{place % 2}\n" for place in range(2_000))
    (tmp_path / "reviews.csv").write_text(f"review,label\n{rows}")
    line = refused(tmp_path / "reviews.csv", target="label")
    assert "give it to the network as text (--set 'data.text=[review]')" in line
