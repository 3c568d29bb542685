"""Tables: the roles of columns, and their encoding by the training rows alone."""

import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ps_cluster.data import table_files
from ps_cluster.data.describing import describe, example_rows
from ps_cluster.data.table_encoding import Encoding
from ps_cluster.files.values import Malformed
from tests.helpers.own_data import packed, refused

TRAIN = "size,city,rooms,price\n" + "1.0,Rome,2,10.5\n" * 3 + "3.0,Oslo,3,20\n" * 3 + ",Oslo,4,30\n,,5,40\n"
TEST = "price,rooms,city,size\n7.5,2,Rome,101\n8.5,3,Paris,\n"


@pytest.fixture
def table(tmp_path):
    """table(train, test): the path of a folder with these tables, or of the only one."""

    def write(train=TRAIN, test=TEST):
        folder = tmp_path / "t"
        folder.mkdir(exist_ok=True)
        for name, text in (("train", train), ("test", test)):
            if text is not None:
                (folder / f"{name}.csv").write_text(text)
        return folder if test is not None else folder / "train.csv"

    return write


def test_a_column_without_a_name_is_refused_before_anything_is_packed(table):
    path = table(",size,price\n0,1.0,2\n1,2.0,3\n" * 1, test=None)
    assert "a column has the name '', which can't be used: rename it" in refused(path, target="price")


def test_a_name_that_is_too_long_to_be_stored_is_told_in_one_line(table):
    path = table(f"price,{'x' * 5000}\n1.5,2\n2.5,3\n", test=None)
    assert "name: got 'xxx" in (told := refused(path, target="price")) and told.count("\n") == 0
    assert told.endswith("String should have at most 4096 characters")


def test_numbers_are_standardised_by_the_training_rows_alone(table):
    dataset, _ = packed(table(), target="price")
    sizes, rooms = np.array([1, 1, 1, 3, 3, 3, np.nan, np.nan]), np.array([2, 2, 2, 3, 3, 3, 4, 5.0])
    expected = np.stack([(sizes - 2) / 1, (rooms - rooms.mean()) / rooms.std()], 1)
    np.testing.assert_allclose(dataset.inputs("train")["numbers"], np.nan_to_num(expected), rtol=1e-6)
    assert dataset.inputs("test")["numbers"][:, 0].tolist() == [99, 0], "missing is the training mean"
    assert (dataset.spec.objective, dataset.target("test").tolist()) == ("regression", [7.5, 8.5])


def test_categories_are_codes_of_the_training_rows_and_0_is_unknown(table):
    dataset, _ = packed(table(), target="price")
    assert dataset.inputs("train")["categories"][:, 0].tolist() == [2, 2, 2, 1, 1, 1, 1, 0]
    assert dataset.inputs("test")["categories"][:, 0].tolist() == [2, 0], "Paris was not seen"
    assert dataset.spec.inputs["categories"].codes == (3,)


def test_the_encoding_is_kept_beside_the_data(table):
    encoding = packed(table(), target="price")[0].encoding()
    assert encoding.target == "price" and [column.name for column in encoding.numbers] == ["size", "rooms"]
    assert (encoding.numbers[0].mean, encoding.numbers[0].std) == (2, 1)
    assert [(column.name, column.values) for column in encoding.categories] == [("city", ["Oslo", "Rome"])]


def test_missing_values_are_counted_and_not_described_as_the_values_that_they_were_replaced_by(table):
    dataset, _ = packed(table(), target="price")
    told = {one.name.partition(" ")[0]: one for one in describe(dataset)}
    assert {name: one.missing for name, one in told.items()} == {"size": 2, "rooms": 0, "city": 1, "target": 0}
    size = told["size"]
    assert (size.low, size.mean, size.std, size.high) == (1, 2, 1, 3), "two zeros would make the deviation smaller"
    names, rows = example_rows(dataset, slice(8))
    columns = dict(zip(names, zip(*rows)))
    assert columns["size"] == ("1", "1", "1", "3", "3", "3", "missing", "missing")
    assert columns["city"][-2:] == ("Oslo", "missing or unknown")


def test_of_one_file_the_rows_held_out_have_no_part_in_the_statistics(table):
    rows = [f"{value},{value * 2}.5" for value in range(100)]
    dataset, told = packed(table("a,b\n" + "\n".join(rows), None), target="b", held_out=0.25)
    assert (dataset.train_examples, dataset.test_examples) == (75, 25)
    trained = (dataset.target("train") - 0.5) / 2
    numbers = dataset.encoding().numbers[0]
    assert numbers.mean == pytest.approx(trained.mean()) and numbers.std == pytest.approx(trained.std())
    for split in ("train", "test"):
        shown = dataset.inputs(split)["numbers"][:, 0] * numbers.std + numbers.mean
        np.testing.assert_allclose(shown, (dataset.target(split) - 0.5) / 2, atol=1e-4)
    assert any(line.startswith("held out 25 of 100") for line in told)


def test_a_table_is_the_same_in_pieces(table, monkeypatch):
    lines = [f"{row},{'xyz'[row % 3]},{row % 7}.5" for row in range(5000)]
    path = table("a,b,c\n" + "\n".join(lines), None)
    whole, _ = packed(path, target="c")
    monkeypatch.setattr(table_files, "_BLOCK_BYTES", 3000)
    pieces, _ = packed(path, target="c", held_out=0.1000001)  # another copy
    for name, rows in whole.inputs("train").items():
        np.testing.assert_allclose(pieces.inputs("train")[name], rows, atol=1e-6)


@pytest.mark.parametrize(
    ("values", "settings", "objective", "classes"),
    [
        ("b a b c", {}, "classification", ("a", "b", "c")),
        ("10 20 10 20", {}, "classification", ("10", "20")),
        ("1.0 2.0 1.0 2.5", {}, "regression", ()),
        ("1.5 2 1.5 2", {"objective": "classification"}, "classification", ("1.5", "2.0")),
        ("true false true true", {}, "classification", ("false", "true")),
        (" ".join(map(str, range(101))), {}, "regression", ()),
    ],
)
def test_the_target_column_says_what_is_trained_for(table, values, settings, objective, classes):
    rows = [f"{number},{value}" for number, value in enumerate(values.split() * 2)]
    spec = packed(table("a,b\n" + "\n".join(rows), None), target="b", **settings)[0].spec
    assert (spec.objective, spec.classes) == (objective, classes)


def test_columns_can_be_left_out_weigh_or_be_names_though_they_look_like_numbers(table):
    rows = "id,code,w,y\n" + "".join(f"{row},0{row % 2},{row}.0,{row * 1.5}\n" for row in range(8))
    path = table(rows, rows)
    dataset, _ = packed(path, target="y", categorical=["code"], leave_out=["id"], weight="w")
    assert list(dataset.inputs("train")) == ["categories"] and dataset.weight("train").tolist() == list(range(8))
    assert dataset.encoding().categories[0].values == ["00", "01"], "not 0 and 1"


def test_parquet_has_its_own_types(tmp_path):
    columns = {
        "when": pa.array(np.arange(8).astype("datetime64[s]")),
        "ok": pa.array([True, None] * 4),
        "kind": pa.array(list("uv") * 4).dictionary_encode(),
        "y": pa.array(list("pq") * 4),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    dataset, _ = packed(tmp_path / "a.parquet", target="y", held_out=0.25)
    assert dataset.spec.inputs["categories"].codes == (2, 3) and dataset.spec.inputs["numbers"].shape == (1,)


@pytest.mark.parametrize("sign", [";", "\t"])
def test_a_decimal_comma_is_one_where_commas_do_not_separate(table, sign):
    text = "size,price\n1.0,10.5\n2.25,20\n-3.5,1000.25\n".replace(",", sign).replace(".", ",")
    dataset, told = packed(table(text, text), target="price")
    assert "'train.csv' and 'test.csv': numbers are read with decimal commas" in told
    assert (dataset.spec.objective, dataset.target("train").tolist()) == ("regression", [10.5, 20.0, 1000.25])
    assert dataset.encoding().numbers[0].mean == pytest.approx((1 + 2.25 - 3.5) / 3)


@pytest.mark.parametrize("cells", ["1,2;10.5", "1,234;10", "a,b;10.5"])
def test_a_comma_in_a_cell_of_a_file_with_decimal_points_or_thousands_is_none(table, cells):
    dataset, _ = packed(table("tags;price\n" + f"{cells}\n{cells}\n{cells}\nx;3.25\n", None), target="price")
    assert dataset.spec.objective == "regression" and dataset.encoding().categories[0].name == "tags"


def test_large_whole_numbers_may_be_predicted(table):
    rows = "".join(f"{row},{2**53 if row == 7 else row}\n" for row in range(120))
    assert packed(table("a,b\n" + rows, None), target="b", objective="regression")[0].spec.objective == "regression"


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_another_encoding_than_utf_8_is_told(table, encoding):
    path = table("", None)
    path.write_bytes("city,price\nZürich,1.5\nKöln,2.5\n".encode(encoding))
    assert "UTF-8" in refused(path, target="price")


def test_classes_that_float64_does_not_tell_apart_are_refused_unless_they_are_names(table):
    path = table("a,b\n" + f"1,{2**53}\n2,{2**53 + 1}\n" * 9, None)
    assert "the column 'b' has whole numbers such as 9007199254740992" in refused(path, target="b")
    classes = packed(path, target="b", categorical=["b"])[0].spec.classes
    assert classes == (str(2**53), str(2**53 + 1))


@pytest.mark.parametrize("weight", [None, "rooms"])
def test_rows_are_held_out_if_the_test_table_lacks_the_column_to_predict(table, weight):
    test = "size,city\n1,Rome\n" if weight else "size,city,rooms\n1,Rome,2\n"
    dataset, told = packed(table(TRAIN, test), target="price", weight=weight)
    assert (dataset.train_examples, dataset.test_examples) == (7, 1)
    assert "'test.csv' is not used: it has no column 'price' to predict" in told
    assert any(line.startswith("held out 1 of 8 examples for testing") for line in told)


@pytest.mark.parametrize(
    ("labelled", "targets", "told"),
    [
        (["validation", "dev"], [0.5], ["'test' is not used: it has no column 'price' to predict",
                                        "'dev' is not used: 'validation' has the examples to test on"]),
        (["dev"], [1.5], ["'test' is not used: it has no column 'price' to predict",
                          "'validation' is not used: it has no column 'price' to predict"]),
        ([], None, ["'test' is not used: it has no column 'price' to predict",
                    "'validation' is not used: it has no column 'price' to predict",
                    "'dev.csv' is not used: it has no column 'price' to predict"]),
    ],
)  # fmt: skip
def test_the_first_table_with_the_column_to_predict_is_tested_on_and_rows_are_held_out_only_without_one(
    table, labelled, targets, told
):
    folder = table(TRAIN, "size,city,rooms\n1,Rome,2\n")
    for price, name in enumerate(("validation", "dev")):
        text = f"size,city,rooms,price\n1,Rome,2,{price}.5\n" if name in labelled else "size,city,rooms\n1,Rome,2\n"
        (folder / f"{name}.csv").write_text(text)
    dataset, lines = packed(folder, target="price")
    assert sorted(line for line in lines if "is not used" in line) == sorted(told)
    assert any("held out" in line for line in lines) == (targets is None)
    assert targets is None or (dataset.train_examples, dataset.target("test").tolist()) == (8, targets)


@pytest.mark.parametrize(
    ("train", "test", "settings", "told"),
    [
        (TRAIN, TEST, {}, "data.target is missing: set --target to one of these columns: size, city, rooms, price"),
        (TRAIN, TEST, {"target": "cost"}, "data.target: there is no column 'cost' among size, city, rooms, price"),
        (TRAIN, TEST, {"target": "price", "weight": "w"}, "data.weight: there is no column 'w'"),
        (TRAIN, TEST, {"target": "price", "leave_out": ["id"]}, "data.leave_out: there is no column 'id'"),
        (TRAIN, TEST, {"target": "price", "leave_out": ["size", "city", "rooms"]}, "no column but 'price'"),
        (TRAIN, "size,city,price\n1,Rome,3\n", {"target": "price"}, "the test table has no column 'rooms'"),
        (TRAIN, "size,city\n1,Rome\n", {"target": "price"}, "the test table has no column 'price'"),
        (
            TRAIN,
            TEST,
            {"target": "size"},
            "the column 'size' has no value in 2 of 8 rows: fill in the values, or remove",
        ),
        (TRAIN, TEST, {"target": "price", "objective": "multi-label"}, "a table has one"),
        ("a,b\n1,x\n2,y\n", None, {"target": "b", "objective": "regression"}, "a regression takes numbers"),
        ("a,b\n1,x\n2,y\n", "a,b\n1,z\n", {"target": "b"}, "the test targets have the class 'z'"),
        ("a,b\n", None, {"target": "b"}, "the train table has no rows"),
        ("a,a\n1,2\n", None, {"target": "a"}, "has two columns of the same name"),
        ("a,b\n1,2\n1,2,3\n", None, {"target": "a"}, "can't be read: CSV parse error"),
        ("a,b\n1.5,inf\n2,inf\n3,inf\n4,5\n", None, {"target": "a"}, "the column 'b' has infinite or too large values"),
        (TRAIN, TEST.replace("101", "inf"), {"target": "price"}, "the column 'size' has infinite or too large values"),
        (
            TRAIN,
            TEST.replace("101", "x"),
            {"target": "price"},
            "the column 'size' holds numbers, but has 'x' in line 2",
        ),
    ],
)
def test_a_table_that_can_not_be_learned_from_is_told(table, train, test, settings, told):
    line = refused(table(train, test), **settings)
    assert told in line and line.startswith("dataset: ")


def test_a_text_in_a_later_row_of_numbers_is_told_with_a_way_out(table, monkeypatch):
    monkeypatch.setattr(table_files, "_BLOCK_BYTES", 1000)
    text = "a,b\n" + "1,2.5\n" * 1000 + "x,3.5\n"
    line = refused(table(text, None), target="b")
    assert "the column 'a' holds numbers, but has 'x' in line 1,002 of 'train.csv': leave the cell empty" in line
    assert "name the column in data.categorical" in line
    assert "line 1,002 of 'train.csv': fix or remove these rows" in refused(table(text, None), target="a")


def test_a_column_with_too_many_names_is_told(table, monkeypatch):
    monkeypatch.setattr("ps_cluster.data.table_encoding.MOST_CATEGORIES", 50)
    text = "a,b\n" + "".join(f"n{row},{row}.5\n" for row in range(60))
    line = refused(table(text, None), target="b")
    assert "the column 'a' has more than 50 different values: name it in data.leave_out" in line


def test_a_column_of_lists_is_told(tmp_path):
    pq.write_table(pa.table({"a": [[1], [2]], "b": [1.5, 2.5]}), tmp_path / "a.parquet")
    assert "the column 'a' is list<" in refused(tmp_path / "a.parquet", target="b")


def parquets(folder, train, test):
    folder.mkdir()
    for name, columns in (("train", train), ("test", test)):
        pq.write_table(pa.table(columns), folder / f"{name}.parquet")
    return folder


def days(unit):
    return pa.array(np.arange(8).astype("datetime64[D]")).cast(pa.timestamp(unit))


def test_a_later_table_is_read_in_the_types_of_the_first(tmp_path):
    train = {"when": days("s"), "code": pa.array([7, 8] * 4), "y": np.arange(8) / 2}
    test = {"when": days("ms"), "code": pa.array([7.0, None] * 4), "y": np.arange(8, dtype=np.float32) / 2}
    path = parquets(tmp_path / "t", train, test)
    dataset, _ = packed(path, target="y", categorical=["code"])
    assert (dataset.inputs("test")["numbers"] == dataset.inputs("train")["numbers"]).all(), "not 1,000 times as late"
    assert dataset.inputs("test")["categories"][:, 0].tolist() == [1, 0] * 4, "7.0 is 7"


def test_new_rows_may_have_times_in_any_unit_but_no_numbers_in_their_place(tmp_path):
    path = tmp_path / "train.parquet"
    pq.write_table(pa.table({"when": days("s"), "y": np.arange(8) / 2}), path)
    encoding = Encoding(packed(path, target="y")[0].encoding())

    def encoded(content):
        file = tmp_path / ("new.csv" if isinstance(content, str) else "new.parquet")
        file.write_text(content) if isinstance(content, str) else pq.write_table(pa.table({"when": content}), file)
        pieces = encoding.encoded(table_files.open_tables({"": [file]}, [])[""])
        return [row for rows in pieces for row in rows["numbers"][:, 0]]

    (expected, *_) = encoded(days("s")[5:])
    for unit in ("ms", "us", "ns"):
        assert encoded(days(unit)[5:])[0] == expected
    for text in ("1970-01-06", "1970-01-06 00:00:00", "1970-01-06 00:00:00.000"):
        assert encoded(f"when,other\n{text},1\n") == [expected]
    assert encoded("when,other\n,1\n") == [0], "missing is the training's mean"
    with pytest.raises(Malformed, match="'when' is int64, but the network was trained on dates or times"):
        encoded(np.arange(3))


def test_whole_numbers_may_have_fractions_in_a_later_table(table):
    dataset, _ = packed(table("a,b\n1,10\n2,20\n3,30\n", "a,b\n1.5,12.5\n"), target="b", objective="regression")
    assert dataset.target("test").tolist() == [12.5]


@pytest.mark.parametrize("other", [["x"] * 8, days("s"), [True] * 8])
def test_a_column_that_is_something_else_in_a_later_table_is_told_by_its_name(tmp_path, other):
    train, test = {"a": np.arange(8), "y": np.arange(8) / 2}, {"a": pa.array(other), "y": np.arange(8) / 2}
    line = refused(parquets(tmp_path / "t", train, test), target="y")
    assert "the column 'a' of 'test.parquet' is " in line and "but it is int64 in an earlier table: save it" in line


def test_a_number_that_does_not_fit_the_type_of_the_first_table_is_told_by_its_column(tmp_path):
    test = {"a": pa.array([2**60] * 8, pa.uint64()), "y": np.arange(8) / 2}
    line = refused(parquets(tmp_path / "t", {"a": np.arange(8), "y": np.arange(8) / 2}, test), target="y")
    assert "the column 'a' of 'test.parquet' can't be read as int64: " in line


def test_free_text_is_refused_until_it_is_left_out_or_called_a_category(table):
    rows = [f"{row},{row}.5" for row in range(300)]
    path = table("name,size,y\n" + "".join(f"n{number},{row}\n" for number, row in enumerate(rows)), None)
    line = refused(path, target="y")
    assert "the column 'name' has 270 different texts in 270 training rows" in line
    assert "--set 'data.leave_out=[name]'" in line
    assert list(packed(path, target="y", leave_out=["name"])[0].inputs("train")) == ["numbers"]
    assert packed(path, target="y", categorical=["name"])[0].spec.inputs["categories"].codes == (271,)


def test_many_names_that_come_several_times_are_categories(table):
    path = table("name,y\n" + "".join(f"n{row % 120},{row}.5\n" for row in range(600)), None)
    assert packed(path, target="y")[0].spec.inputs["categories"].codes == (121,)


HORSES = "power,name,price\n" + "".join(f"{90 + row},{'ab'[row % 2]},{row}.5\n" for row in range(30))


@pytest.mark.parametrize("target", ["price", "power"])
@pytest.mark.parametrize("value", ["?", " n/a?"])
def test_a_text_among_numbers_is_named_with_its_line(table, target, value):
    path = table(HORSES + f"{value},b,3.5\n" + "7,a,9.5\n", None)
    told = refused(path, target=target)
    assert f"the column 'power' holds numbers, but has '{value.strip()}' in line 32 of 'train.csv': " in told
    assert ("fix or remove these rows, or name" in told) == (target == "power")
    assert ("leave the cell empty" in told) == (target == "price")


def test_a_text_among_numbers_is_found_after_cells_with_line_breaks_and_in_a_later_part(tmp_path):
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "a.csv").write_text(HORSES)
    (tmp_path / "parts" / "b.csv").write_text('name,power,price\n"x\ny",7,1.5\nb,?,2.5\n')
    assert "'?' in line 4 of 'b.csv'" in refused(tmp_path / "parts", target="price")


def test_numbers_with_a_few_texts_may_be_names(table):
    path = table(HORSES + "?,b,3.5\n", None)
    assert "power" in {one.name for one in packed(path, target="price", categorical=["power"])[0].encoding().categories}
    grades = "grade,y\n" + "".join(f"{'123X'[row % 4]},{row}.5\n" for row in range(20))
    assert packed(table(grades, None), target="y")[0].encoding().categories[0].values == ["1", "2", "3", "X"]


CODES = [[*map(str, range(20)), "X"][row % 21] for row in range(210)]


@pytest.mark.parametrize("column", ["input", "target"])
def test_codes_of_which_one_is_a_text_are_categories_and_a_mark_of_missing_values_is_none(table, column):
    def text(odd):
        rows = (f"{code.replace('X', odd)},{row % 2}.5\n" for row, code in enumerate(CODES))
        return f"{column},other\n" + "".join(rows)

    target = "target" if column == "target" else "other"
    for odd in ("?", "-", ".", " N/a"):
        assert "holds numbers" in refused(table(text(odd), None), target=target)
    dataset, _ = packed(table(text("X"), None), target=target)
    found = dataset.spec.classes if column == "target" else dataset.encoding().categories[0].values
    assert sorted(found) == sorted(set(CODES))


def test_text_of_a_parquet_file_stays_text(tmp_path):
    codes = [code.replace("X", "?") for code in CODES]
    pq.write_table(pa.table({"code": codes, "y": [row / 2 for row in range(210)]}), tmp_path / "a.parquet")
    assert "?" in packed(tmp_path / "a.parquet", target="y")[0].encoding().categories[0].values


def write(folder, name, text):
    """Write a table, in the form that the ending of its name says."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [line.split(",") for line in text.splitlines()]
    if name.endswith(".parquet"):
        pq.write_table(pa.table({column[0]: list(map(float, column[1:])) for column in zip(*rows)}), folder / name)
        return
    content = text.replace(",", "\t") if ".tsv" in name else text
    (folder / name).write_bytes(gzip.compress(content.encode()) if name.endswith(".gz") else content.encode())


def numbers(first, last):
    return "a,y\n" + "".join(f"{row},{2 * row}.5\n" for row in range(first, last))


@pytest.mark.parametrize("name", ["a.tsv", "a.csv.gz", "A.TSV.GZ", "a.csv", "a.parquet"])
def test_tables_of_each_kind_have_the_same_rows(tmp_path, name):
    write(tmp_path, name.lower(), numbers(0, 40))
    (tmp_path / name.lower()).rename(tmp_path / name)
    dataset, _ = packed(tmp_path / name, target="y", held_out=0.25)
    assert sorted([*dataset.target("train"), *dataset.target("test")]) == [2 * row + 0.5 for row in range(40)]


def test_a_tab_separates_in_tsv_even_if_names_have_more_commas(tmp_path):
    (tmp_path / "a.tsv").write_text("a, in, m\ty\n" + "".join(f"{row}\t{row}.5\n" for row in range(20)))
    assert packed(tmp_path / "a.tsv", target="y")[0].encoding().numbers[0].name == "a, in, m"


@pytest.mark.parametrize(
    ("files", "train", "test"),
    [
        ({"part-0.parquet": (0, 20), "part-1.parquet": (20, 40), "_SUCCESS": None, ".part.crc": None}, 36, 4),
        ({"train-00000-of-00002.parquet": (0, 15), "train-00001-of-00002.parquet": (15, 30),
          "test-00000-of-00001.parquet": (30, 40)}, 30, 10),
        ({"train/a.csv": (0, 15), "train/b.csv": (15, 30), "validation/c.csv": (30, 40)}, 30, 10),
        ({"Train.csv": (0, 30), "Test.csv": (30, 40)}, 30, 10),
        ({"train.csv": (0, 30), "test.csv": (30, 40), "sample_submission.csv": (0, 3)}, 30, 10),
    ],
)  # fmt: skip
def test_the_tables_of_a_folder_are_the_parts_of_one(tmp_path, files, train, test):
    for name, rows in files.items():
        file = tmp_path / "t" / name
        write(file.parent, file.name, numbers(*rows) if rows else "nothing")
    dataset, told = packed(tmp_path / "t", target="y")
    assert (dataset.train_examples, dataset.test_examples) == (train, test)
    assert sorted([*dataset.target("train"), *dataset.target("test")]) == [2 * row + 0.5 for row in range(40)]
    assert any("sample_submission.csv' is not used" in line for line in told) == ("sample_submission.csv" in files)


@pytest.mark.parametrize(
    ("files", "told"),
    [
        (["train.csv", "train.csv.gz", "train.parquet"],
         ["'train.csv.gz' is not used: 'train.csv' has the same name except for its ending",
          "'train.parquet' is not used: 'train.csv' has the same name except for its ending"]),
        (["train.csv", "train/a.csv", "train/b.csv"],
         ["'train/' is not used: 'train.csv' has the same name except for its ending"]),
        (["train/a.parquet", "train/a.csv.gz"],
         ["'train/a.parquet' is not used: 'a.csv.gz' has the same name except for its ending"]),
    ],
)  # fmt: skip
def test_of_tables_of_one_name_in_a_folder_one_is_used(tmp_path, files, told):
    for name in files:
        write((tmp_path / "t" / name).parent, Path(name).name, numbers(0, 40))
    dataset, lines = packed(tmp_path / "t", target="y")
    assert (dataset.train_examples, dataset.test_examples) == (36, 4)
    assert [line for line in lines if "has the same name" in line] == told


def test_the_parts_of_splits_and_files_that_are_no_tables_are_told(tmp_path):
    for name in ("a.csv", "b.csv", "c.csv.bz2", "d.xlsx"):
        write(tmp_path / "t" / "train", name, numbers(0, 20))
    write(tmp_path / "t", "test.csv", numbers(20, 30))
    write(tmp_path / "t", "README.md", "nothing")
    _, lines = packed(tmp_path / "t", target="y")
    assert "2 files are the parts of one table: train/a.csv to train/b.csv" in lines
    assert "not read (not tables): 1 .md, 1 .bz2, 1 .xlsx, such as 'README.md'" in lines


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"customers.csv": "id,y\n1,2\n", "orders.csv": "day,y\n1,2\n"},
         "'customers.csv' and 'orders.csv' are not parts of one table: only one of them has the column 'day'"),
        ({"test.csv": "id,y\n1,2\n", "data.csv": "id,y\n1,2\n"}, "it has 'test' but no 'train': rename the table with the"),
        ({"a.parquet": b"PAR1 and no more"}, "'a.parquet' can't be read"),
        ({"a.csv.gz": b"a,y\n1,2\n"}, "'a.csv.gz' is no gzip file, or it is damaged"),
        ({"a.csv.gz": gzip.compress(numbers(0, 40000).encode())[:-40000]},
         "'a.csv.gz' can't be read: Truncated compressed stream"),
    ],
)  # fmt: skip
def test_a_folder_of_tables_that_can_not_be_read_is_told(tmp_path, files, told):
    (tmp_path / "t").mkdir()
    for name, content in files.items():
        (tmp_path / "t" / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    assert told in refused(tmp_path / "t", target="y")


def test_a_column_with_another_value_in_each_row_is_named_with_the_way_to_leave_it_out(table):
    rows = [f"{1000 + 7 * row},{row / 3:.4f},{row % 9},name {row},{row % 2}" for row in range(40)]
    text = "id,share,day,who,label\n" + "\n".join(rows)
    _, told = packed(table(text, None), target="label", objective="classification")
    (line,) = (line for line in told if "like identifiers" in line)
    assert line == (
        "used as inputs, although they have a different value in every row, like identifiers: 'id', 'who'. "
        "To leave them out: --set 'data.leave_out=[id, who]'"
    )
    settings = {"target": "label", "objective": "classification", "leave_out": ["id"], "categorical": ["who"]}
    assert not any("like identifiers" in line for line in packed(table(text, None), **settings)[1])


@pytest.mark.parametrize(
    ("values", "is_named"),
    [
        (range(40), True),
        (range(19), False),  # too few rows to tell
        ([*range(39), 38], False),
        ([*range(39), ""], False),
        ([f"{value}.5" for value in range(40)], False),
    ],
)
def test_only_whole_numbers_that_are_all_different_look_like_identifiers(table, values, is_named):
    text = "a,b\n" + "\n".join(f"{value},{place % 7}" for place, value in enumerate(values))
    _, told = packed(table(text, None), target="b")
    one = (
        "used as inputs, although they have a different value in every row, like identifiers: 'a'. To leave them out: "
    )
    assert any(line.startswith(one) for line in told) == is_named
