"""Text as windows of bytes: how it is cut, what is held out, and where it is found."""

import sysconfig
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from ps_cluster.cli.main import main
from ps_cluster.config.datasets import DATASETS
from ps_cluster.data import sources
from ps_cluster.data.sets import python_source
from ps_cluster.data.texts import TextFile, TextSettings, contents_of_texts
from tests.helpers.own_data import draw, packed, refused


def settings(**given):
    return TextSettings(dataset="python_source", data_dir=None, **given)


def many(count=40, size=100):
    return [TextFile(f"{number}.txt", bytes([65 + number % 26]) * size) for number in range(count)]


def names_held_out(files):
    test = contents_of_texts(files, settings(window=2)).arrays["test"]["text"]
    return {bytes([letter]) for letter in np.unique(test)} - {b"\0"}


def test_a_target_is_the_byte_after_its_input_and_windows_follow_each_other():
    found = contents_of_texts([TextFile("a.txt", b"abcdefghijklm")], settings(window=3, held_out=0.3))
    assert found.arrays["train"]["text"].tolist() == [[*b"abc"], [*b"def"], [*b"ghi"]]
    assert found.arrays["train"]["target"].tolist() == [[*b"bcd"], [*b"efg"], [*b"hij"]]
    assert found.arrays["test"]["text"].tolist() == [[*b"klm"]] and found.arrays["test"]["target"][0, -1] == 0
    assert found.spec.outputs == 3 * 256 and found.spec.is_text


def test_whole_files_are_held_out_and_stay_there_when_others_come():
    files = many(26)
    held_out = names_held_out(files)
    assert 1 <= len(held_out) <= 3
    more = [*files, *(TextFile(f"new-{number}.txt", b"?" * 100) for number in range(4))]
    assert held_out <= names_held_out(more), "the share of 30 files is larger than that of 26"


def test_the_same_bytes_are_never_on_both_sides():
    found = contents_of_texts(many(26), settings(window=5)).arrays
    letters = [set(np.unique(found[split]["text"])) - {0} for split in ("train", "test")]
    assert not letters[0] & letters[1] and len(letters[0] | letters[1]) == 26


def test_a_share_that_no_file_fits_is_the_end_of_the_text():
    files = [TextFile("small.txt", b"a" * 10), TextFile("large.txt", b"b" * 990)]
    found = contents_of_texts(files, settings(window=4, held_out=0.2))
    assert "the end of the text" in found.notes[0] and len(found.arrays["test"]["text"]) == 49


@pytest.mark.parametrize("name", ["notes.txt", "notes.md", "text:notes.log"])
def test_a_file_is_packed(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / name.rpartition(":")[2]
    file.write_text("The quick brown fox. " * 100)
    (tmp_path / "cache").mkdir()
    chosen = DATASETS.allow_code_of(name, tmp_path)
    dataset = sources.resolve(DATASETS[chosen].Settings(dataset=chosen, window=20), tmp_path / "cache", notify=print)
    assert dataset.spec.is_text and dataset.train_examples == 99 and dataset.test_examples == 5
    assert bytes(dataset.inputs("train")["text"][0]) == b"The quick brown fox."


def folder_of_texts(folder: Path) -> Path:
    for name in ("one.txt", "deep/two.md", ".hidden/three.txt", "deep/four.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name[-6:] * 100)
    return folder


def test_a_folder_is_read_by_patterns_and_hidden_files_are_not(tmp_path):
    dataset, _ = packed(folder_of_texts(tmp_path / "texts"), window=8)
    train = dataset.inputs("train")["text"][:].tobytes() + dataset.inputs("test")["text"][:].tobytes()
    assert b"ne.txt" in train and b"two.md" in train and b"ee.txt" not in train and b"our.py" not in train
    python, _ = packed(tmp_path / "texts", window=8, files=["*.py"])
    assert b"our.py" in python.inputs("train")["text"][:].tobytes()


def test_files_of_a_folder_that_are_not_read_are_told(tmp_path):
    told = packed(folder_of_texts(tmp_path / "texts"), window=8)[1]
    assert "not read (not called *.txt or *.md; to read others, set data.files): 1 .py, such as 'deep/four.py'" in told


def test_pages_of_text_with_pictures_in_deeper_folders_are_text(tmp_path):
    draw(folder_of_texts(tmp_path / "pages") / "deep" / "images" / "1.png")
    assert packed(tmp_path / "pages", window=8)[0].spec.is_text


def test_a_text_beside_other_files_makes_no_text_of_them(tmp_path):
    (tmp_path / "photos").mkdir()
    for name in ("README.md", "one.jpg"):
        (tmp_path / "photos" / name).write_text("text " * 100)
    assert "has pictures outside the folders of classes" in refused(tmp_path / "photos")
    named = f"text:{tmp_path}/photos"
    chosen = DATASETS[named].Settings(dataset=named, window=8)
    assert sources.resolve(chosen, tmp_path / "cache", notify=print).spec.is_text


def test_what_is_too_short_or_not_there_is_one_line(tmp_path):
    (tmp_path / "short.txt").write_text("too short")
    assert "give more text, or a smaller data.window" in refused(tmp_path / "short.txt")
    assert "no file in it matches *.rst" in refused(folder_of_texts(tmp_path / "texts"), files=["*.rst"])


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A standard library of three modules, two tests and a package that was installed."""
    folder = tmp_path / "lib"
    for name in ["os", "json/decoder", "shelve", "test/test_os", "json/tests/test", "site-packages/a"]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.py").write_text(f"# {name}.py\n" * 60)
    real = sysconfig.get_path
    monkeypatch.setattr(
        python_source.sysconfig, "get_path", lambda name: str(folder) if name == "stdlib" else real(name)
    )
    return folder


def test_the_source_of_python_is_found_without_tests_and_what_is_installed(library, tmp_path):
    told = []
    chosen = python_source.PythonSource.Settings(dataset="python_source", window=16)
    dataset = sources.resolve(chosen, tmp_path / "cache", notify=told.append)
    train = b"".join(dataset.inputs(split)["text"][:].tobytes() for split in ("train", "test"))
    assert b"# os.py" in train and b"decoder.py" in train and b"test" not in train and b"site-packages" not in train
    assert any("3 files of Python" in line for line in told)
    (library / "os.py").write_text("changed " * 200)
    again = sources.resolve(chosen, tmp_path / "cache", notify=told.append)
    assert again.directory != dataset.directory, "another library is another data set"


def test_the_network_for_text_is_taken_without_being_named(tmp_path):
    (tmp_path / "notes.txt").write_text("The quick brown fox. " * 100)
    shown = CliRunner().invoke(main, ["run", "--dataset", f"{tmp_path}/notes.txt", "--dry-run"])
    assert shown.exit_code == 0 and "name: byte_lm" in shown.output
