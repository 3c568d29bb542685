"""Clicks as Criteo publishes them, and ratings as MovieLens does."""

import gzip
import math
import resource
import zlib

import numpy as np
import pytest

from ps_cluster.config.datasets import DATASETS
from ps_cluster.data.formats.criteo import key_of
from tests.helpers.own_data import packed, refused

VALUES = [f"{value:08x}" for value in range(1, 27)]


def criteo_line(label=0, numbers=range(13), values=VALUES):
    return "\t".join(map(str, [label, *numbers, *values]))


def save_criteo(file, lines):
    data = "".join(f"{line}\n" for line in lines).encode()
    file.write_bytes(gzip.compress(data) if file.suffix == ".gz" else data)
    return file


@pytest.mark.parametrize("name", ["train.txt", "day_0", "day_1.gz", "clicks.tsv"])
def test_criteos_lines_are_recognised_and_the_last_ones_are_held_out(tmp_path, name):
    lines = [criteo_line(label=row % 2, numbers=[row] * 13) for row in range(20)]
    dataset, told = packed(save_criteo(tmp_path / name, lines), rows=50, held_out=0.2)
    assert dataset.name.startswith("criteo:") and dataset.kind == "real"
    assert (dataset.train_examples, dataset.test_examples) == (16, 4)
    assert "held out the last 4 of 20 lines for testing, because the lines are in chronological order" in told
    assert dataset.inputs("test")["numbers"][:, 0] == pytest.approx(np.log1p([16, 17, 18, 19]), rel=1e-6)
    assert dataset.target("train").tolist() == [0, 1] * 8
    categories = dataset.spec.inputs["categories"]
    assert (categories.dtype, categories.codes) == ("int32", (50,) * 26)
    assert dataset.spec.classes == ("no click", "click")


def test_empty_and_negative_columns_have_values_of_their_own(tmp_path):
    line = criteo_line(1, ["", -2, 7, *[0] * 10], ["", *VALUES[1:]])
    dataset, _ = packed(save_criteo(tmp_path / "train.txt", [line] * 3), rows=1000)
    inputs = {name: rows[0] for name, rows in dataset.inputs("train").items()}
    assert inputs["numbers"][:3] == pytest.approx([0, 0, math.log(8)])
    assert inputs["categories"][0] == 0 and (inputs["categories"][1:] > 0).all()
    assert inputs["categories"][1] == key_of(b"00000002", 1000)


def test_keys_are_the_same_on_every_machine_and_spread_evenly():
    golden = 11400714819323198485
    assert key_of(b"68fd1e64", 1000) == 1 + ((0x68FD1E64 * golden) % 2**64 // 2**32) % 999
    counts = np.bincount([key_of(b"%x" % value, 11) for value in range(10_000)], minlength=11)
    assert counts[0] == 0 and len(counts) == 11 and counts[1:].min() > 900


def test_rows_are_unpacked_in_the_cache_and_a_full_disk_is_reported_with_a_way_out(tmp_path, monkeypatch):
    cache = tmp_path / "small disk"
    monkeypatch.setenv("PS_CLUSTER_CACHE", str(cache))
    file = save_criteo(tmp_path / "train.txt", [criteo_line()] * 3)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))  # bytes of one file
    try:
        line = refused(file, rows=50)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert line.startswith(
        f"cache_dir: cannot write '{cache}' (File too large); set PS_CLUSTER_CACHE to a folder that you may write to"
    )
    cache.rmdir()
    cache.write_text("no folder")
    assert refused(file, rows=50).startswith(f"cache_dir: cannot write '{cache}' (File exists); set PS_CLUSTER_CACHE")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("0\t1\t2", "it has 3 columns, not 40"),
        (criteo_line(label=2), "its label is '2', not 0 or 1"),
        (criteo_line(numbers=[1] * 12 + ["x"]), "invalid literal for int() with base 10: b'x'"),
        (criteo_line(values=[*VALUES[1:], "zz"]), "invalid literal for int() with base 16: b'zz'"),
    ],
)
def test_a_bad_line_of_criteo_is_told_with_file_and_number(tmp_path, line, reason):
    file = save_criteo(tmp_path / "train.txt", [criteo_line(), criteo_line(), line, criteo_line()])
    assert f"line 3 of 'train.txt' can't be read: {reason}" in refused(file)


def test_a_damaged_gzip_file_is_told(tmp_path):
    file = save_criteo(tmp_path / "day_0.gz", [criteo_line()] * 5000)
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) - 20])
    assert "'day_0.gz' is no gzip file, or it is damaged" in refused(file)


RATINGS = [(user, film, 1 + (user * film) % 5, 881250949 + user) for user in range(1, 21) for film in range(1, 31)]
DATA_FORMATS = {
    "u.data": ("\t", []),
    "ratings.dat": ("::", []),
    "ratings.csv": (",", ["userId,movieId,rating,timestamp"]),
}


def save_ratings(folder, name, ratings=RATINGS):
    separator, heading = DATA_FORMATS[name]
    lines = [*heading, *(separator.join(map(str, rating)) for rating in ratings)]
    folder.mkdir(exist_ok=True)
    (folder / "README.txt").write_text("about the ratings")
    (folder / name).write_text("".join(f"{line}\n" for line in lines))
    return folder / name, lines[len(heading) :]


@pytest.mark.parametrize("name", DATA_FORMATS)
@pytest.mark.parametrize("as_folder", [False, True])
def test_each_published_form_of_movielens_is_read(tmp_path, name, as_folder):
    file, lines = save_ratings(tmp_path / "ml", name)
    dataset, told = packed(file.parent if as_folder else file, held_out=0.2)
    assert dataset.name.startswith("movielens:") and dataset.spec.objective == "regression"
    assert dataset.spec.inputs["categories"].codes == (21, 31), "identifiers count from 1"
    tested = np.array([zlib.crc32(line.encode()) < 0.2 * 2**32 for line in lines])
    assert 0.1 < tested.mean() < 0.3
    for split, which in (("train", ~tested), ("test", tested)):
        expected = np.array(RATINGS)[which]
        assert np.array_equal(dataset.inputs(split)["categories"], expected[:, :2])
        assert np.array_equal(dataset.target(split), expected[:, 2])
    assert f"held out {tested.sum():,} of 600 ratings for testing, by a hash of their lines" in told


def test_half_stars_are_ratings(tmp_path):
    file, _ = save_ratings(tmp_path / "ml", "ratings.csv", [(1, film, 3.5 - film % 2, 9) for film in range(1, 200)])
    assert set(packed(file)[0].target("train").tolist()) == {3.5, 2.5}


@pytest.mark.parametrize("name", DATA_FORMATS)
@pytest.mark.parametrize(
    ("rating", "reason"),
    [
        ((1, 2), "it has 2 columns instead of four (user, film, rating and time)"),
        ((1, "x", 3, 4), "invalid literal for int()"),
        ((1, -2, 3, 4), "user 1, film -2 or rating 3 is out of range"),
        ((1, 2, "nan", 4), "user 1, film 2 or rating nan is out of range"),
        ((1, 99_999_999, 3, 4), "user 1, film 99999999 or rating 3 is out of range"),
    ],
)
def test_a_bad_line_of_movielens_is_told_with_file_and_number(tmp_path, name, rating, reason):
    file, _ = save_ratings(tmp_path / "ml", name, [*RATINGS[:4], rating, *RATINGS[4:]])
    number = 6 if name == "ratings.csv" else 5
    assert f"line {number} of '{name}' can't be read: {reason}" in refused(file)


def test_other_files_of_these_names_are_no_movielens(tmp_path):
    (tmp_path / "ratings.csv").write_text("user,stars\n1,2\n")
    assert DATASETS.allow_code_of(str(tmp_path / "ratings.csv"), tmp_path).startswith("table:")
    (tmp_path / "notes.txt").write_text("a text with\ttabs\n")
    assert DATASETS.allow_code_of(str(tmp_path / "notes.txt"), tmp_path).startswith("text:")
