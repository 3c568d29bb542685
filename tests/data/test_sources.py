import os
import pwd
import shutil
from pathlib import Path

import numpy as np
import pytest

from ps_cluster.config.datasets import DATASETS
from ps_cluster.data import sources
from ps_cluster.data.cache import default_cache_dir, fingerprint
from ps_cluster.data.download import DownloadError, Patience, download
from ps_cluster.data.sets import synthetic
from ps_cluster.errors import UserError
from tests.helpers.data import CIFAR_ROWS, pack_images
from tests.helpers.users import SOMEBODY, SOMEBODY_ELSE, as_user, common  # noqa: F401

pytestmark = pytest.mark.usefixtures("small_cifar")
UNREACHABLE = "http://127.0.0.1:9/"


@pytest.fixture(autouse=True)
def empty_machine(tmp_path, monkeypatch):
    """No CIFAR-10 of this machine or of the network is in reach, and generating takes no time."""
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(sources, "download", lambda url, *more: download(UNREACHABLE, *more))
    generate = synthetic.generate
    monkeypatch.setattr(synthetic, "generate", lambda: generate(200, 50))


@pytest.fixture
def resolve(tmp_path):
    """resolve(dataset, data_dir) with an empty cache, no network, and the lines for the user in `resolve.told`."""

    def call(dataset, data_dir=None, **options):
        call.told = []
        arguments = {"cache_dir": call.cache, "notify": call.told.append} | options
        return sources.resolve(DATASETS[dataset].Settings(dataset=dataset, data_dir=data_dir), **arguments)

    call.cache = tmp_path / "cache"
    yield call
    shutil.rmtree(call.cache, ignore_errors=True)


def failure(resolve, *args, **options) -> str:
    with pytest.raises(UserError) as error:
        resolve(*args, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def small_copy(resolve, folder: str, source: str = ""):
    """A packed copy of CIFAR-10 in the cache, of few images."""
    images, labels = np.zeros([3, 32, 32, 3], np.uint8), np.zeros([3], np.uint8)
    return pack_images(resolve.cache / "packed-2" / folder, "cifar10", ("a",), (images, labels, images, labels), source)


def in_cache(resolve) -> set[str]:
    return {path.name for path in resolve.cache.glob("**/packed-2/*")}


def test_auto_without_cifar10_and_network_says_loudly_that_it_uses_the_generated_set(resolve):
    dataset = resolve("auto")
    assert (dataset.name, dataset.kind, dataset.spec.classes) == ("synthetic", "synthetic", synthetic.SYNTHETIC_CLASSES)
    (notice,) = [line for line in resolve.told if line.startswith("NOT using CIFAR-10")]
    assert "Connection refused" in notice and "\n" not in notice
    resolve("auto")
    assert [line for line in resolve.told if line.startswith("NOT using CIFAR-10")], "said again in every run"


def test_cifar10_never_falls_back(resolve, monkeypatch):
    def refused(*_, **__):
        raise DownloadError("no network")

    monkeypatch.setattr(sources, "download", refused)
    message = failure(resolve, "cifar10")
    assert message.startswith("dataset: 'cifar10' is not on this machine") and "data_dir" in message
    assert in_cache(resolve) == set()


def test_synthetic_is_generated_once_and_without_a_warning(resolve, monkeypatch):
    first = resolve("synthetic")
    assert first.directory == resolve.cache / "packed-2" / "synthetic.2"
    monkeypatch.setattr(synthetic, "generate", None)
    assert resolve("synthetic") == first
    assert resolve.told == []


def test_damaged_copy_in_the_cache_is_made_again(resolve):
    dataset = resolve("synthetic")
    (dataset.directory / "train_target.uint8").write_bytes(b"")
    assert resolve("synthetic").target("train").shape == (200,)
    assert resolve.told[0].startswith("packing again")


def test_archive_in_data_dir_is_packed_once_and_not_downloaded(resolve, archive, monkeypatch):
    monkeypatch.setattr(sources, "download", None)
    dataset = resolve("auto", archive.parent)
    assert (dataset.name, dataset.kind) == ("cifar10", "real")
    assert (dataset.train_examples, dataset.test_examples) == (5 * CIFAR_ROWS, CIFAR_ROWS)
    assert len(resolve.told) == 1
    assert resolve("cifar10", archive) == dataset
    assert resolve.told == []


def test_two_data_dirs_are_never_confused(resolve, folder, archive):
    first, second = resolve("auto", folder), resolve("auto", archive)
    assert first.directory != second.directory
    assert resolve("auto", folder.parent) == first
    assert in_cache(resolve) == {first.directory.name, second.directory.name}


def test_copy_packed_from_a_data_dir_is_found_without_it(resolve, archive, monkeypatch):
    monkeypatch.setattr(sources, "download", None)
    packed = resolve("auto", archive)
    for dataset in ("auto", "cifar10"):
        assert resolve(dataset) == packed
        assert resolve.told == [
            f"CIFAR-10: using the copy '{packed.directory}', packed from '{archive}'; for another one give --data-dir"
        ]


def test_of_several_packed_copies_the_sound_one_packed_last_is_used(resolve, monkeypatch):
    monkeypatch.setattr(sources, "download", None)
    older, newer = (small_copy(resolve, f"cifar10.1-{number}", source="/a") for number in (2, 1))
    os.utime(older.directory / "dataset.json", (1, 1))
    assert resolve("auto") == newer
    assert "packed from '/a', the newest of 2 in the cache" in resolve.told[0]
    (newer.directory / "train_target.uint8").write_bytes(b"")
    assert resolve("auto") == older
    assert [line.partition(":")[0] for line in resolve.told] == ["passed over", "CIFAR-10"]
    assert str(newer.directory) in resolve.told[0] and str(older.directory) in resolve.told[1]


def test_copy_of_a_download_goes_before_those_of_data_dirs(resolve):
    downloaded, _ = small_copy(resolve, "cifar10.1"), small_copy(resolve, "cifar10.1-1")
    assert resolve("auto") == downloaded
    assert resolve.told == []


def test_folder_of_another_data_set_in_the_cache_is_not_taken_for_cifar10(resolve):
    directory = resolve("synthetic").directory
    directory.rename(directory.with_name("cifar10.1-00000000"))
    assert resolve("auto").name == "synthetic"


def test_packed_folder_as_data_dir_is_used_where_it_is(resolve, folder, tmp_path):
    packed = resolve("auto", folder)
    other = tmp_path / "other cache"
    assert resolve("cifar10", packed.directory, cache_dir=other) == packed
    assert not other.exists()


def test_packed_synthetic_folder_is_not_taken_for_cifar10(resolve):
    directory = resolve("synthetic").directory
    assert "holds the data set 'synthetic', not CIFAR-10" in failure(resolve, "auto", directory)


def test_keras_cache_is_used_and_its_broken_parts_are_passed_over(resolve, archive, tmp_path):
    broken = tmp_path / "keras" / "datasets" / "cifar-10-batches-py-target" / "cifar-10-batches-py"
    broken.mkdir(parents=True)
    (broken / "data_batch_1").touch()
    os.link(archive, tmp_path / "keras" / "datasets" / "cifar-10-batches-py-target_archive")
    dataset = resolve("auto")
    assert dataset.directory == resolve.cache / "packed-2" / "cifar10.1" and dataset.kind == "real"
    assert any(line.startswith("passed over: ") and str(broken) in line for line in resolve.told)
    assert resolve("cifar10") == dataset


def test_downloaded_archive_is_packed_and_then_removed(resolve, archive, monkeypatch):
    def fake_download(url, destination, sha256, progress, patience):
        assert (url, patience) == (DATASETS["cifar10"].downloads[0].url, Patience(connect_timeout_s=5.0, attempts=1))
        assert sha256 == DATASETS["cifar10"].downloads[0].sha256
        destination.parent.mkdir(parents=True)
        os.link(archive, destination)

    monkeypatch.setattr(sources, "download", fake_download)
    assert resolve("auto").kind == "real"
    assert in_cache(resolve) == {"cifar10.1"}


@pytest.mark.parametrize("dataset", ["auto", "cifar10"])
def test_data_dir_that_is_missing_or_holds_nothing_is_an_error(resolve, tmp_path, dataset):
    missing = tmp_path / "missing"
    assert f"data_dir: '{missing}' does not exist (looked for" in failure(resolve, dataset, missing)
    assert f"data_dir: '{tmp_path}' holds no CIFAR-10 (looked for" in failure(resolve, dataset, tmp_path)


@pytest.mark.parametrize("dataset", ["auto", "cifar10"])
def test_broken_data_dir_is_an_error(resolve, tmp_path, dataset):
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(b"<html>")
    message = failure(resolve, dataset, tmp_path)
    assert message.startswith(f"data_dir: '{tmp_path}/cifar-10-python.tar.gz' is not CIFAR-10")
    (tmp_path / "dataset.json").write_text("{}")
    assert "is not a usable packed data set" in failure(resolve, dataset, tmp_path)


def test_data_dir_beside_synthetic_is_a_contradiction(resolve, tmp_path):
    assert failure(resolve, "synthetic", tmp_path).startswith(f"data_dir: '{tmp_path}' can't be used")


@pytest.mark.parametrize("dataset", ["auto", "cifar10", "synthetic"])
def test_cache_that_cannot_be_written_is_an_error(resolve, tmp_path, dataset):
    (tmp_path / "file").touch()
    message = failure(resolve, dataset, cache_dir=tmp_path / "file" / "cache")
    assert message.startswith("cache_dir: cannot write") and "PS_CLUSTER_CACHE" in message


def test_cache_is_where_the_environment_says(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("PS_CLUSTER_CACHE", raising=False)
    assert default_cache_dir() == Path("/home/ada/.cache/ps_cluster")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache")
    assert default_cache_dir() == Path("/var/cache/ps_cluster")
    monkeypatch.setenv("PS_CLUSTER_CACHE", "~/here")
    assert default_cache_dir() == Path("/home/ada/here")


def test_without_a_home_the_cache_has_to_be_named(monkeypatch):
    for name in ("HOME", "XDG_CACHE_HOME", "PS_CLUSTER_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", lambda user: {}[user])
    with pytest.raises(UserError, match="PS_CLUSTER_CACHE: it is not set, and there is no home directory"):
        default_cache_dir()
    monkeypatch.setenv("PS_CLUSTER_CACHE", "/var/data")
    assert default_cache_dir() == Path("/var/data")


def test_fingerprint_changes_with_the_file_and_with_its_place(tmp_path):
    (tmp_path / "a").write_bytes(b"one")
    (tmp_path / "b").write_bytes(b"one")
    before = fingerprint(tmp_path / "a")
    assert before == fingerprint(tmp_path / "a") != fingerprint(tmp_path / "b")
    (tmp_path / "a").write_bytes(b"other")
    assert fingerprint(tmp_path / "a") != before


def test_a_cache_of_another_user_is_refused_and_not_read(resolve, common):  # noqa: F811
    resolve.cache = common / "cache"
    with as_user(SOMEBODY):
        resolve.cache.mkdir()
    with as_user(SOMEBODY_ELSE):
        refusal = failure(resolve, "synthetic")
    assert refusal.startswith(f"cache (PS_CLUSTER_CACHE) '{resolve.cache}' belongs to another user (uid {SOMEBODY})")


def test_what_another_user_put_into_a_common_cache_is_not_trained_on(resolve, common, archive, monkeypatch):  # noqa: F811
    def no_network(*_):
        raise DownloadError("no network")

    monkeypatch.setattr(sources._Search, "download_and_pack", no_network)
    resolve.cache = common
    with as_user(SOMEBODY):
        (common / archive.name).touch()
    shutil.copyfile(archive, common / archive.name)
    with as_user(SOMEBODY_ELSE):
        assert resolve("auto").name == "synthetic"
        (common / "packed-2" / "synthetic.2").rename(common / "packed-2" / "cifar10.1")
    passed_over = [line for line in resolve.told if line.startswith("passed over")]
    assert len(passed_over) == 1 and f"belongs to another user (uid {SOMEBODY})" in passed_over[0]
    with as_user(SOMEBODY):
        assert f"cifar10.1' belongs to another user (uid {SOMEBODY_ELSE})" in failure(resolve, "cifar10")
