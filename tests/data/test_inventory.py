"""Which data sets this machine has, whether they are sound, and how they are removed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ps_cluster.data import inventory
from ps_cluster.data.cache import packed_folder
from ps_cluster.data.packed import load_packed
from ps_cluster.errors import UserError
from ps_cluster.files import locks
from tests.helpers.data import LETTERS, pack_images, random_images

ARRAYS = (*random_images(30), *random_images(10, seed=1))


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """An empty cache, and no archives in Keras's."""
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    return tmp_path / "cache"


def pack(cache: Path, folder: str, name: str = "cifar10") -> Path:
    return pack_images(packed_folder(cache) / folder, name, LETTERS, ARRAYS, "/from/here.tar.gz").directory


def entry(cache: Path, name: str, data_dir: Path | None = None) -> inventory.Entry:
    return next(one for one in inventory.entries(cache, data_dir) if one.name == name)


def test_every_data_set_of_the_package_is_listed_where_nothing_is_packed(cache):
    listed = {one.name: one for one in inventory.entries(cache)}
    assert {"cifar10", "cifar100", "mnist", "synthetic"} <= set(listed) and "auto" not in listed
    assert all(one.copies == () and one.archives == () for one in listed.values())
    assert listed["synthetic"].generated and not listed["mnist"].generated
    assert listed["mnist"].downloads and not listed["synthetic"].downloads
    assert not cache.exists(), "looking makes no folder"


def test_copies_are_listed_newest_first_and_folders_that_are_being_written_are_not(cache):
    old, new = pack(cache, "cifar10.1"), pack(cache, "cifar10.1-ab")
    os.utime(old / "dataset.json", (1000, 1000))
    shutil.copytree(new, packed_folder(cache) / ".cifar10.1.beef.tmp")
    found = entry(cache, "cifar10").copies
    assert [copy.directory for copy in found] == [new, old]
    assert (
        found[1].packed_time == 1000 and found[1].bytes > 40 * 3072 and found[1].dataset.source == "/from/here.tar.gz"
    )


def test_a_data_set_of_a_users_own_is_listed_by_its_name_and_its_code_is_not_run(cache, tmp_path):
    (tmp_path / "mine.py").write_text("raise AssertionError('it was run')")
    directory = pack(cache, "mine-load.1-ab")
    manifest = directory / "dataset.json"
    manifest.write_text(manifest.read_text().replace('"cifar10"', f'"{tmp_path / "mine.py"}:load"'))
    (last,) = [one for one in inventory.entries(cache) if one.name.endswith("mine.py:load")]
    assert [copy.directory for copy in last.copies] == [directory] and not last.generated


def test_archives_are_found_in_the_cache_and_in_the_folder_that_is_given(cache, tmp_path):
    cache.mkdir()
    (cache / "mnist.npz").touch()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/cifar-10-python.tar.gz").touch()
    assert entry(cache, "mnist").archives == (cache / "mnist.npz",)
    assert entry(cache, "cifar10").archives == ()
    assert entry(cache, "cifar10", tmp_path / "mine").archives == (tmp_path / "mine/cifar-10-python.tar.gz",)


def test_a_copy_is_named_by_its_data_set_or_its_folder_and_comes_once(cache):
    first, second = pack(cache, "cifar10.1"), pack(cache, "cifar10.1-ab")
    other = pack(cache, "synthetic.2", "synthetic")
    found = inventory.copies(cache)
    chosen = inventory.copies_named(["cifar10.1-ab", "cifar10"], found, cache)
    assert [copy.directory for copy in chosen][:1] == [second] and len(chosen) == 2
    assert {copy.directory for copy in chosen} == {first, second} and other not in chosen
    with pytest.raises(UserError, match="'cifar': no packed copy .* there are: cifar10, synthetic"):
        inventory.copies_named(["cifar"], found, cache)


def test_a_copy_of_a_users_own_data_is_named_by_the_path_as_the_user_writes_it(cache, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    directory = pack(cache, "mine-load.1-ab")
    manifest = directory / "dataset.json"
    for name, written in (
        (f"{tmp_path}/mine.py:load", "mine.py:load"),
        (f"image_folder:{tmp_path}/pictures", "./pictures"),
    ):
        text = manifest.read_text()
        manifest.write_text(text.replace(f'"{load_packed(directory).name}"', f'"{name}"'))
        (copy,) = inventory.copies_named([written], inventory.copies(cache), cache)
        assert copy.name == name


def damage_byte(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_one_changed_bit_of_an_image_is_found_only_by_reading_the_whole_copy(cache):
    directory = pack(cache, "cifar10.1")
    (copy,) = inventory.copies(cache)
    told = []
    assert inventory.verify(copy, lambda done, total: told.append((done, total))).problem == ""
    assert told[-1] == (40 * 3073, 40 * 3073), "its progress ends at the size of all files"
    damage_byte(directory / "test_image.uint8")
    (copy,) = inventory.copies(cache)
    assert copy.problem == "", "the manifest and all sizes still fit"
    assert "the content of test_image.uint8 has changed" in inventory.verify(copy).problem


@pytest.mark.parametrize(
    ("file", "content", "problem"),
    [
        ("train_image.uint8", b"short", "train_image.uint8 has 5 bytes, not 92160"),
        ("dataset.json", b"{", "not JSON"),
        ("train_target.uint8", bytes([77] * 30), "a label is 77, but the 10 classes are numbered from 0"),
        ("test_target.uint8", None, "test_target.uint8: No such file or directory"),
    ],
)
def test_a_damaged_copy_is_listed_and_says_what_is_wrong(cache, file, content, problem):
    directory = pack(cache, "cifar10.1")
    (directory / file).write_bytes(content) if content is not None else (directory / file).unlink()
    (copy,) = inventory.copies(cache)
    assert copy.name == "cifar10"
    assert problem in inventory.verify(copy).problem


def test_a_removed_copy_is_gone_and_the_others_stay(cache):
    first, second = pack(cache, "cifar10.1"), pack(cache, "cifar10.1-ab")
    inventory.remove(inventory.open_copy(first))
    assert list(packed_folder(cache).iterdir()) == [second]


def test_a_copy_that_a_task_uses_is_not_removed(cache):
    directory = pack(cache, "cifar10.1")
    code = f"from ps_cluster.files import locks; from pathlib import Path; locks.share(Path({str(directory)!r}))"
    argv = [sys.executable, "-c", f"{code}; print('shared', flush=True); input()"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as task:
        assert task.stdout.readline() == "shared\n"
        with pytest.raises(locks.InUse, match="cifar10.1' is in use by a run"):
            inventory.remove(inventory.open_copy(directory))
        assert load_packed(directory).train_examples == 30
        task.communicate("\n")
    inventory.remove(inventory.open_copy(directory))
    assert not directory.exists()
