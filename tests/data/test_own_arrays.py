"""Arrays of users: what becomes of them, and what is wrong with them."""

import zipfile

import numpy as np
import pandas as pd
import pytest

from ps_cluster.config import build_config
from ps_cluster.config.augmentation import Augmentation
from ps_cluster.config.datasets import OwnDataSettings
from ps_cluster.data import array_files, own_arrays
from ps_cluster.files.values import Malformed
from tests.helpers.own_data import packed, refused

DRAW = np.random.default_rng(0)
LABELS = np.arange(20) % 4
PIXELS = np.zeros((20, 8, 8), np.uint8)
WITH_FIRST = np.maximum(np.eye(4, dtype=int)[LABELS], [1, 0, 0, 0])


def as_contents(found, **settings):
    return own_arrays.as_contents(found, OwnDataSettings(dataset="packed_arrays", **settings))


def arrays(x=None, y=LABELS, **more):
    return {"x_train": DRAW.normal(size=(20, 3)) if x is None else x, "y_train": y, **more}


def with_test(x=None, y=LABELS, **more):
    given = arrays(x, y)
    return {**given, "x_test": given["x_train"][:5], "y_test": given["y_train"][:5], **more}


def test_rows_of_pandas_are_taken_in_their_order_and_not_by_their_labels():
    x = pd.Series(np.arange(20.0), index=np.arange(20)[::-1])
    contents = as_contents({"x_train": x, "y_train": np.arange(20.0)}, held_out=0.25)
    for split in contents.arrays.values():
        assert split["x"][:][:, 0].tolist() == split["target"][:].tolist()


def test_images_in_arrays_are_not_mirrored_unless_it_is_asked_for(tmp_path):
    np.savez(tmp_path / "digits.npz", **with_test(np.zeros([20, 8, 8], np.uint8)))
    config = build_config(None, {"data.dataset": str(tmp_path / "digits.npz")})
    assert config.data.augmentation == Augmentation()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_npz_is_packed_as_it_is(tmp_path, save):
    given = with_test(DRAW.normal(size=(20, 3, 2)).astype(np.float32))
    save(tmp_path / "a.npz", **given)
    dataset, _ = packed(tmp_path / "a.npz")
    np.testing.assert_array_equal(dataset.inputs("train")["x"], given["x_train"])
    np.testing.assert_array_equal(dataset.inputs("test")["x"], given["x_test"])
    assert dataset.target("train").tolist() == LABELS.tolist() and dataset.spec.classes == ("0", "1", "2", "3")
    assert dataset.kind == "real" and dataset.source == str(tmp_path / "a.npz")


def test_a_folder_of_npy_files_is_mapped_in_any_byte_order_and_layout(tmp_path):
    given = with_test(np.asfortranarray(DRAW.normal(size=(20, 3)).astype(">f8")))
    (tmp_path / "a").mkdir()
    for name, array in given.items():
        np.save(tmp_path / "a" / f"{name}.npy", array)
    dataset, _ = packed(tmp_path / "a")
    np.testing.assert_array_equal(dataset.inputs("train")["x"], given["x_train"])
    assert dataset.spec.inputs["x"].dtype == "float64"


@pytest.mark.parametrize("shape", [(20, 6, 5), (20, 6, 5, 1), (20, 6, 5, 3)])
def test_bytes_of_the_shape_of_images_are_images(tmp_path, shape):
    pixels = DRAW.integers(0, 256, shape, np.uint8)
    np.savez(tmp_path / "a.npz", **arrays(pixels))
    dataset, _ = packed(tmp_path / "a.npz", held_out=0.2)
    assert dataset.spec.unit == "images" and dataset.spec.image("x").shape == (*shape[1:], 1)[:3]
    assert (dataset.train_examples, dataset.test_examples) == (16, 4)


@pytest.mark.parametrize(
    ("y", "objective", "expected"),
    [
        (LABELS[:, None], "auto", ("classification", (), LABELS)),
        (LABELS % 2 == 1, "auto", ("classification", (), LABELS % 2)),
        (np.array(list("bcda") * 5), "auto", ("classification", (), (LABELS + 1) % 4)),
        (np.eye(4)[LABELS], "classification", ("classification", (), LABELS)),
        (np.eye(4, dtype=int)[LABELS], "auto", ("classification", (), LABELS)),
        (np.eye(4, dtype=int)[LABELS], "multi-label", ("multi-label", (4,), np.eye(4)[LABELS])),
        (WITH_FIRST, "auto", ("multi-label", (4,), WITH_FIRST)),
        (LABELS.astype(np.float32), "auto", ("regression", (), LABELS)),
        (np.eye(4)[LABELS], "auto", ("classification", (), LABELS)),
        (np.eye(4)[LABELS], "regression", ("regression", (4,), np.eye(4)[LABELS])),
        (LABELS, "regression", ("regression", (), LABELS)),
    ],
)
def test_the_targets_say_what_is_trained_for(y, objective, expected):
    contents = as_contents(with_test(y=y), objective=objective)
    kind, shape, values = expected
    assert (contents.spec.objective, contents.spec.target.shape) == (kind, shape)
    np.testing.assert_array_equal(contents.arrays["train"]["target"], values)


def test_names_in_bytes_are_utf_8_or_shown_as_they_are():
    names = np.array(["é".encode(), b"a", b"\xff", b"\xfe"] * 5)
    assert as_contents(with_test(y=names)).spec.classes == ("\\xfe", "\\xff", "a", "é")


def test_weights_belong_to_the_examples_that_they_were_given_with():
    weights = np.arange(20)
    contents = as_contents(arrays(np.arange(20.0), weight_train=weights))
    for split in ("train", "test"):
        rows = contents.arrays[split]
        np.testing.assert_array_equal(rows["weight"][:], rows["x"][:][:, 0])
    assert as_contents(with_test(weight_train=weights)).arrays["test"]["weight"].tolist() == [1.0] * 5


def test_weights_of_the_test_examples_alone_are_taken():
    split = as_contents(with_test(weight_test=np.arange(5)))
    assert split.arrays["test"]["weight"].tolist() == list(range(5)) and split.spec.weight is not None
    assert split.arrays["train"]["weight"].tolist() == [1.0] * 20


def test_a_column_of_texts_as_pandas_has_it_is_classes():
    contents = as_contents({"x_train": np.arange(20.0), "y_train": pd.Series(list("abcd") * 5, dtype=object)})
    assert contents.spec.classes == tuple("abcd")


class Sparse:
    """Looks like a matrix of scipy."""

    dtype, shape, toarray = np.dtype("float32"), (20, 3), None

    def __len__(self):
        raise TypeError("sparse array length is ambiguous")


def test_keras_pairs_and_a_mapping_are_the_same():
    given = with_test()
    pairs = ((given["x_train"], given["y_train"]), (given["x_test"], given["y_test"]))
    one, other = as_contents(given), as_contents(pairs)
    assert one.spec == other.spec and (one.arrays["test"]["x"] == other.arrays["test"]["x"]).all()
    assert as_contents(one) is one


def test_a_memory_map_is_packed_without_being_read_into_memory(tmp_path):
    mapped = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.uint8, (20, 4, 4))
    assert as_contents(with_test(mapped)).arrays["train"]["image"]._rows is mapped


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"x": 1}, "x_train is missing, got x: give x_train and y_train"),
        ({"x_train": LABELS}, "y_train is missing, got x_train"),
        (arrays(y=LABELS[:7]), "x_train has 20 rows, and y_train has 7"),
        (arrays(x_test=LABELS), "there is x_test, but y_test is missing"),
        (with_test(y_test=LABELS[:3]), "x_test has 5 rows, and y_test has 3"),
        (with_test(x_test=np.zeros((0, 3))), "x_test has no rows"),
        (arrays(x=np.float64(3)), "x_train is float64, which has no rows: give an array"),
        (arrays(x={"a": {"b": LABELS}}), "x_train['a'] is dict, which has no rows: give an array"),
        (arrays(x=np.ma.masked_less(np.arange(20.0), 3)), "x_train is a masked array, and masks are not used"),
        (arrays(y=np.uint64(2**63) + LABELS.astype(np.uint64)), "a training target is 9223372036854775808: number the"),
        (arrays(x=np.zeros((20, 2), np.complex64)), "x_train is complex64: give one of bool, uint8"),
        ({"x_train": np.zeros((400, 3)), "y_train": np.arange(400) % 150 * 2}, "150 different whole numbers from 0 to 298"),
        (arrays(y=LABELS * 0), "all training examples are of one class, '0': there is nothing to tell apart"),
        (arrays(y=np.array(["No", "Yes", "Yes "] * 6 + ["No"] * 2)), "'Yes' and 'Yes ' are both shown as 'Yes': write them"),
        (with_test(y=np.array(list("abcd") * 5), y_test=np.array(["a\t"] * 5)), "'a' and 'a\\t' are both shown as 'a': write"),
        (arrays(y=np.ones(20)), "all training targets are 1.0: there is nothing to learn"),
        (arrays(y=np.where(LABELS == 3, np.nan, 1.0)), "a training target is nan, which is not a finite number"),
        (with_test(y_test=np.array([0, 1, 2, 3, 9])), "the test targets have the class '9', which no training example has"),
        (with_test(y=np.array(list("abcd") * 5), y_test=np.array(list("abcde"))), "the test targets have the class 'e'"),
        (arrays(y=np.stack([LABELS, LABELS], 1)), "the targets are int64 [2]: set data.objective"),
        (arrays(weight_train=LABELS[:2]), "x_train has 20 rows, and weight_train has 2"),
        (arrays(weight_train=np.array(["a"] * 20)), "weight_train is <U1 []: give one number for each example"),
        (arrays(x=[[1], [2, 3]]), "x_train is list, which can't become an array: give rows of one shape (ValueError: "),
        (arrays(x=Sparse()), "x_train is a sparse Sparse: give an array, e.g. its toarray()"),
        (arrays(x=[None] * 20), "x_train is object: give one of bool"),
    ],
)  # fmt: skip
def test_arrays_that_do_not_fit_are_told(given, told):
    with pytest.raises(Malformed) as error:
        as_contents(given)
    assert told in str(error.value) and "\n" not in str(error.value)


def test_an_objective_that_the_targets_do_not_fit_is_told():
    with pytest.raises(Malformed, match="a training target is 0.5, which is no class: set data.objective=regression"):
        as_contents(with_test(y=LABELS / 2), objective="classification")
    with pytest.raises(Malformed, match="rows with a 0 or 1"):
        as_contents(with_test(), objective="multi-label")


def npz_with(content, compression=zipfile.ZIP_STORED):
    def make(path):
        with zipfile.ZipFile(path, "w", compression) as archive:
            archive.writestr("x_train.npy", content)

    return make


def header(shape, dtype="<f8"):
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda path: path.write_bytes(b"no zip"), "is not an .npz file, or is damaged"),
        (npz_with(b"nothing"), "x_train.npy is not an array that numpy.save has written"),
        (npz_with(header((2, 2)) + b"short"), "ends after 5 of 32 bytes"),
        (npz_with(header((2**40,)) + b"x", zipfile.ZIP_DEFLATED), "x_train.npy ends after 1 of 8,796,093,022,208 bytes"),
        (npz_with(header((1,), "|O") + b"x" * 8), "x_train.npy holds Python objects, which could run code"),
        (lambda path: np.savez(path, a=LABELS, b=LABELS), "x_train is missing, got a, b"),
        (lambda path: np.savez(path, **arrays(np.full((20, 2), np.nan))), "train 'x' has values that are not finite, e.g. nan"),
    ],
)  # fmt: skip
def test_a_file_that_is_damaged_or_dangerous_is_refused_in_one_line(tmp_path, make, told):
    make(tmp_path / "a.npz")
    line = refused(tmp_path / "a.npz")
    assert told in line and "a.npz'" in line and line.startswith("dataset: ")


def test_one_array_alone_is_told_what_it_lacks(tmp_path):
    np.save(tmp_path / "a.npy", LABELS)
    assert "it is a single array, and y_train is missing: put x_train.npy and y_" in refused(tmp_path / "a.npy")


def test_compressed_arrays_that_would_fill_the_memory_are_refused_before_they_are_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(array_files, "most_memory", lambda size_bytes: 100)
    (tmp_path / "b").mkdir()
    np.savez(tmp_path / "b" / "b.npz", **arrays())
    assert packed(tmp_path / "b" / "b.npz")[0].train_examples == 18, "others are mapped"
    np.savez_compressed(tmp_path / "a.npz", **arrays())
    assert "its compressed arrays take 0.0 GB of memory, more than" in refused(tmp_path / "a.npz")
    monkeypatch.undo()
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x_train.npy", b"")
        archive.getinfo("x_train.npy").file_size = 2 * 10**9
    assert "its compressed arrays take 2.0 GB of memory, more than the 1.1 GB allowed" in refused(tmp_path / "a.npz")


@pytest.mark.parametrize("labels", [LABELS + 1, LABELS - 1, LABELS * 10**6, LABELS * 2])
def test_labels_that_do_not_go_from_0_without_gaps_name_their_classes_as_in_a_table(tmp_path, labels):
    contents = as_contents(with_test(y=labels))
    names = tuple(str(label) for label in np.unique(labels))
    assert contents.spec.classes == names and contents.arrays["train"]["target"].tolist() == LABELS.tolist()
    assert f"the 4 classes {', '.join(names[:3])}, … are numbered 0, 1, … in this order" in contents.notes[0]
    table = tmp_path / "a.csv"
    table.write_text("a,y\n" + "".join(f"{place},{label}\n" for place, label in enumerate(labels)))
    assert packed(table, target="y")[0].spec.classes == names


def test_many_labels_without_gaps_may_begin_anywhere():
    labels = 1000 + np.arange(400) % 150
    spec = as_contents({"x_train": np.zeros((400, 3)), "y_train": labels}).spec
    assert (spec.classes[0], spec.classes[-1], len(spec.classes)) == ("1000", "1149", 150)


@pytest.mark.parametrize("dtype", ["int64", "float32", "uint16"])
def test_pixels_in_another_dtype_are_told_how_to_become_images(dtype):
    pixels = DRAW.integers(0, 256, (20, 9, 8)).astype(dtype)
    told = f"x_train is {dtype}, and looks like pixels from 0 to 255: to use it as images, give x_train.astype('uint8')"
    assert told in as_contents(with_test(pixels)).notes
    for others in (pixels / 255, pixels.astype("int64") - 1):
        assert not as_contents(with_test(others)).notes


def test_inputs_of_a_network_with_several_are_a_mapping():
    x = {"numbers": DRAW.normal(size=(20, 3)), "codes": np.arange(20), "picture": np.zeros((20, 8, 8), np.uint8)}
    contents = as_contents({"x_train": x, "y_train": LABELS}, held_out=0.25)
    shapes = {name: (field.dtype, field.shape) for name, field in contents.spec.inputs.items()}
    assert shapes == {"numbers": ("float64", (3,)), "codes": ("int64", (1,)), "picture": ("uint8", (8, 8))}
    for split in contents.arrays.values():
        np.testing.assert_array_equal(split["numbers"][:], x["numbers"][split["codes"][:][:, 0]])
    pairs = as_contents(((x, LABELS), ({name: rows[:5] for name, rows in x.items()}, LABELS[:5])))
    assert list(pairs.arrays["test"]) == ["numbers", "codes", "picture", "target"]


@pytest.mark.parametrize(
    ("x", "x_test", "told"),
    [
        ({}, None, "x_train has no input"),
        ({"target": LABELS}, None, "x_train has an input called 'target': give it another name, such as 'x1'"),
        ({"a b": LABELS}, None, "x_train has an input called 'a b'"),
        ({"a": LABELS, "b": LABELS[:3]}, None,
         "the inputs of x_train have different numbers of rows: 'a' has 20, 'b' has 3"),
        ({"a": LABELS, "c": LABELS}, {"b": LABELS[:5], "c": LABELS[:5]},
         "x_train has the inputs a, c, but x_test has no 'a'"),
        ({"a": LABELS}, {"a": LABELS[:5], "b": LABELS[:5]}, "x_train has the inputs a, but x_test also has 'b'"),
        ({"a": LABELS}, LABELS[:5], "x_train has the inputs a, but x_test is one array without names: give both as"),
        (PIXELS, PIXELS[:5] / 255, "x_train is read as images because it is uint8, and x_test is float64: give both with "
         "the same dtype, e.g. x_test.astype('uint8')"),
        (PIXELS / 255, PIXELS[:5], "x_test is read as images because it is uint8, and x_train is float64: give both with"),
        (PIXELS, PIXELS[:5, :, 0], "x_train is read as images because it is uint8, and x_test has rows of shape [8]: give"),
        ({"a": np.array(["x"] * 20)}, {"a": LABELS[:5]}, "the input 'a' is text in x_train or x_test, but not in both: give"),
    ],
)  # fmt: skip
def test_inputs_that_do_not_fit_each_other_are_told(x, x_test, told):
    given = {"x_train": x, "y_train": LABELS} | ({} if x_test is None else {"x_test": x_test, "y_test": LABELS[:5]})
    with pytest.raises(Malformed) as error:
        as_contents(given)
    assert told in str(error.value)
