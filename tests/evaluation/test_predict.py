"""`predict`: pictures, arrays and tables, judged by the best model of a run that was never trained."""

import contextlib
import csv
import gzip
import io
import json
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from ps_cluster.cli.main import main
from ps_cluster.config import load_config
from ps_cluster.data.packed import load_pointed
from ps_cluster.evaluation import example_files
from ps_cluster.files.values import Malformed
from tests.helpers.bad_input import PROJECT, assert_one_line
from tests.helpers.left_by_runs import CLASSES, SHAPE, leave_image_run, leave_table_run

pytestmark = pytest.mark.slow

HEIGHT, WIDTH, _ = SHAPE


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    return leave_image_run(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def table_run(tmp_path_factory):
    return leave_table_run(tmp_path_factory.mktemp("table"))


def predict(run_dir, *arguments):
    return CliRunner().invoke(main, ["predict", *map(str, arguments), "--run", str(run_dir.root)])


def told(run_dir, *arguments):
    """Return the objects of the JSON that is printed, and the notices."""
    result = predict(run_dir, *arguments, "--format", "json", "--top", "3")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout), result.stderr


def expected(run_dir, images):
    """Return probabilities by plain Keras."""
    return np.asarray(keras.ops.softmax(keras.saving.load_model(run_dir.best_model)(images.astype(np.float32))))


def shares(row):
    found = {one["class"]: one["probability"] for one in row["classes"]}
    return [found[name] for name in CLASSES]


def noise(*shape, most=256, dtype=np.uint8):
    return np.random.default_rng(len(shape)).integers(0, most, shape).astype(dtype)


def test_a_picture_of_the_right_size_has_the_probabilities_of_plain_keras(run_dir, tmp_path):
    pixels = noise(*SHAPE)
    Image.fromarray(pixels).save(tmp_path / "one.png")
    (row,), _ = told(run_dir, tmp_path / "one.png")
    assert row["example"] == str(tmp_path / "one.png")
    assert shares(row) == pytest.approx(expected(run_dir, pixels[None])[0], abs=1e-5)
    order = [one["probability"] for one in row["classes"]]
    assert order == sorted(order, reverse=True) and sum(order) == pytest.approx(1, abs=1e-5)


def odd(pixels, name, folder, **save):
    Image.fromarray(pixels).save(folder / name, **save)


def test_files_of_a_folder_that_are_no_pictures_are_told(run_dir, tmp_path):
    odd(noise(24, 20), "1.png", tmp_path)
    (tmp_path / "2.heic").touch()
    rows, notices = told(run_dir, tmp_path)
    assert len(rows) == 1 and "not read (no pictures): 1 .heic, such as '2.heic'" in notices


def test_pictures_of_any_size_and_colour_are_read_in_the_order_of_their_names(run_dir, tmp_path):
    (tmp_path / "deeper").mkdir()
    grey = noise(24, 20)
    odd(grey, "1-grey.png", tmp_path)
    odd(np.stack([grey] * 3, -1), "2-same-in-colour.png", tmp_path)
    odd(np.dstack([np.stack([grey] * 3, -1), noise(24, 20, 1)]), "3-alpha.png", tmp_path)
    odd(grey.astype(np.uint16) * 257, "4-sixteen-bits.png", tmp_path)
    Image.fromarray(np.stack([grey // 128 * 255] * 3, -1)).quantize(2).save(tmp_path / "5-palette.png")
    odd(grey // 128 * 255, "6-same-without-palette.png", tmp_path)
    odd(noise(333, 35, 3), "deeper/7.JPG", tmp_path, format="JPEG")
    rows, notices = told(run_dir, tmp_path)
    assert [row["example"] for row in rows] == [str(file) for file in sorted(tmp_path.rglob("*.*"))]
    assert "not read" not in notices
    found = [shares(row) for row in rows]
    assert found[0] == found[1] == found[2] == found[3] and found[4] == found[5] and found[0] != found[4]
    with Image.open(tmp_path / "1-grey.png") as picture:
        small = np.asarray(picture.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC))
    assert found[0] == pytest.approx(expected(run_dir, np.stack([small] * 3, -1)[None])[0], abs=1e-5)


def test_a_picture_that_cannot_be_read_is_named_and_skipped_only_if_asked(run_dir, tmp_path):
    odd(noise(*SHAPE), "good.png", tmp_path)
    odd(noise(*SHAPE), "cut.png", tmp_path)
    (tmp_path / "cut.png").write_bytes((tmp_path / "good.png").read_bytes()[:200])
    refused = predict(run_dir, tmp_path, "--format", "csv", "--output", tmp_path / "told.csv")
    assert_one_line(refused.exit_code, refused.stderr, [f"{tmp_path}/cut.png", "--skip-bad"])
    assert not list(tmp_path.glob("*told*"))
    rows, notices = told(run_dir, tmp_path, "--skip-bad")
    assert [row["example"] for row in rows] == [f"{tmp_path}/good.png"] and f"skipped '{tmp_path}/cut.png'" in notices


def test_csv_and_json_have_the_same_numbers_and_the_table_the_best_classes(run_dir, tmp_path):
    np.save(tmp_path / "some.npy", noise(70, *SHAPE))  # a batch and a rest
    rows, _ = told(run_dir, tmp_path / "some.npy")
    assert len(rows) == 70 and rows[69]["example"].endswith("some.npy[69]")
    assert predict(run_dir, tmp_path / "some.npy", "--format", "csv", "--output", tmp_path / "told.csv").exit_code == 0
    cells = list(csv.reader(io.StringIO((tmp_path / "told.csv").read_text())))
    assert cells[0] == ["example", *(f"{what}_{k}" for k in (1, 2, 3) for what in ("class", "probability"))]
    first = rows[0]["classes"][0]
    assert cells[1][1] == first["class"] and float(cells[1][2]) == first["probability"]
    Image.fromarray(noise(1, *SHAPE)[0]).save(tmp_path / "=1+1.png")
    with contextlib.chdir(tmp_path):
        assert "'=1+1.png" in predict(run_dir, "=1+1.png", "--format", "csv").stdout
    table = predict(run_dir, tmp_path / "some.npy", "--top", "1").stdout
    assert table.count("%") == 70 and f"{first['class']} {first['probability']:.1%}" in table


def test_arrays_are_taken_by_plain_name_and_refused_where_they_do_not_fit(run_dir, tmp_path):
    images = noise(3, *SHAPE)
    np.save(tmp_path / "one.npy", images[0])
    np.savez(tmp_path / "some.npz", anything=images)
    (one,), (first, *others) = (told(run_dir, tmp_path / name)[0] for name in ("one.npy", "some.npz"))
    assert shares(one) == pytest.approx(shares(first), abs=1e-6) and len(others) == 2
    np.save(tmp_path / "floats.npy", images / 255)
    refused = predict(run_dir, tmp_path / "floats.npy")
    assert_one_line(refused.exit_code, refused.stderr, ["floats.npy", "float64 [3, 12, 10, 3]", "uint8 [N, 12, 10, 3]"])


def test_a_table_is_encoded_as_that_of_the_training(table_run, tmp_path):
    (tmp_path / "new.csv").write_text("city,more,size\nRome,1,0.5\nOslo,2,3.5\nParis,3,\n")
    rows, _ = told(table_run, tmp_path / "new.csv")
    column = load_pointed(table_run.dataset).encoding().numbers[0]
    tens = [10 * (size - column.mean) / column.std for size in (0.5, 3.5, column.mean)]
    values = [row["values"] for row in rows]
    assert values == [[pytest.approx(ten + code, abs=1e-3)] for ten, code in zip(tens, (200, 100, 0), strict=True)]
    assert "value" in predict(table_run, tmp_path / "new.csv").stdout


@pytest.mark.parametrize(
    ("text", "says"), [("city\nRome\n", "no column 'size'"), ("city,size\nRome,big\n", "can't be read")]
)
def test_a_table_that_does_not_fit_is_refused_by_its_name(table_run, tmp_path, text, says):
    (tmp_path / "new.csv").write_text(text)
    refused = predict(table_run, tmp_path / "new.csv")
    assert_one_line(refused.exit_code, refused.stderr, ["new.csv", says])


def test_of_several_files_the_one_that_takes_too_much_memory_is_named(run_dir, tmp_path, monkeypatch):
    np.save(tmp_path / "a.npy", noise(1, *SHAPE))
    np.save(tmp_path / "b.npy", noise(2, *SHAPE))

    @contextlib.contextmanager
    def of_one_picture(size_bytes):
        if size_bytes > 1.5 * np.prod(SHAPE):
            raise Malformed("it takes more than that")
        yield

    monkeypatch.setattr(example_files, "bounded_memory", of_one_picture)
    refused = predict(run_dir, tmp_path / "a.npy", tmp_path / "b.npy")
    assert_one_line(refused.exit_code, refused.stderr, ["b.npy", "it takes more than that"])


def test_what_is_not_there_or_of_another_kind_is_refused_in_a_line(run_dir, table_run, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "t.csv").write_text("a\n1\n")
    odd(noise(*SHAPE), "good.png", tmp_path)
    for run, path, says in (
        (run_dir, tmp_path / "none.png", "there is no '"),
        (run_dir, tmp_path / "empty", "has no picture"),
        (run_dir, tmp_path / "t.csv", "is a table"),
        (table_run, tmp_path / "good.png", "the network takes numbers float32"),
    ):
        refused = predict(run, path)
        assert_one_line(refused.exit_code, refused.stderr, [says, path.name])


def test_the_newest_run_with_a_model_is_taken_and_named(run_dir, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    none = CliRunner().invoke(main, ["predict", "one.png"])
    assert_one_line(none.exit_code, none.stderr, ["--run", "'runs' has no run with a model"])
    (tmp_path / "runs" / "without").mkdir(parents=True)
    (tmp_path / "runs" / "mine").symlink_to(run_dir.root)
    odd(noise(*SHAPE), "one.png", tmp_path)
    found = CliRunner().invoke(main, ["predict", "one.png", "--format", "json"])
    assert found.exit_code == 0 and "run: 'runs/mine'" in found.stderr and len(json.loads(found.stdout)) == 1


def test_the_data_set_need_not_be_there_any_more(tmp_path):
    (tmp_path / "table").mkdir()
    image, table = leave_image_run(tmp_path / "image"), leave_table_run(tmp_path / "table")
    odd(noise(*SHAPE), "one.png", tmp_path)
    rows = shutil.copy(next((tmp_path / "table").rglob("*.csv")), tmp_path / "rows.csv")
    before = told(image, tmp_path / "one.png"), told(table, rows)
    (tmp_path / "rows.csv.gz").write_bytes(gzip.compress((tmp_path / "rows.csv").read_bytes()))
    compressed, _ = told(table, tmp_path / "rows.csv.gz")
    assert [row["values"] for row in compressed] == [row["values"] for row in before[1][0]]
    for run in (image, table):
        shutil.rmtree(load_pointed(run.dataset).directory)
        run.dataset.unlink()
    assert (told(image, tmp_path / "one.png"), told(table, rows)) == before
    (image.examples / "dataset.json").write_text("{")
    refused = predict(image, tmp_path / "one.png")
    assert_one_line(refused.exit_code, refused.stderr, ["dataset.json"])


def test_a_damaged_model_and_a_run_without_one_are_told_in_a_line(run_dir, tmp_path):
    odd(noise(*SHAPE), "one.png", tmp_path)
    other = leave_image_run(tmp_path / "other")
    other.best_model.write_bytes(b"PK nothing")
    refused = predict(other, tmp_path / "one.png")
    assert_one_line(refused.exit_code, refused.stderr, [str(other.best_model), "can't be used"])
    other.best_model.unlink()
    refused = predict(other, tmp_path / "one.png")
    assert_one_line(refused.exit_code, refused.stderr, ["no best/model.keras", "evaluate --once"])


def test_a_run_that_names_code_needs_the_users_word(tmp_path):
    own = leave_image_run(tmp_path)
    text = own.config.read_text().replace(f"name: {load_config(own.config).model.name}", "name: /somewhere/my.py:build")
    own.config.write_text(text)
    refused = predict(own, tmp_path / "one.png")
    assert_one_line(refused.exit_code, refused.stderr, ["/somewhere/my.py", "--code"])


def test_nothing_but_the_predictions_reaches_the_terminal(run_dir, tmp_path):
    odd(noise(*SHAPE), "one.png", tmp_path)
    command = [sys.executable, "cli.py", "predict", tmp_path / "one.png", "--run", run_dir.root, "--format", "csv"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr, len(done.stdout.splitlines())) == (0, "", 2)
