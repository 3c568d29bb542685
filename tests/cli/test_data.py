"""The commands `data list | fetch | verify | show | rm`. Only the drawing of variations needs TensorFlow."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from ps_cluster.cli.main import main
from ps_cluster.config.datasets import Contents
from ps_cluster.data.cache import packed_folder
from ps_cluster.data.packing import write_packed
from tests.helpers.bad_input import PROJECT, assert_one_line
from tests.helpers.data import LETTERS, pack_images, random_images

ARRAYS = (*random_images(60), *random_images(20, seed=1))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """Return a cache with two packed copies of random images: one is named as CIFAR-10, the other as the generated set."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PS_CLUSTER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    pack_images(packed_folder(tmp_path / "cache") / "cifar10.1", "cifar10", LETTERS, ARRAYS, "/from/cifar.tar.gz")
    pack_images(packed_folder(tmp_path / "cache") / "synthetic.2", "synthetic", LETTERS, ARRAYS)
    return packed_folder(tmp_path / "cache")


def run(*arguments: str, **options):
    return CliRunner().invoke(main, ["data", *arguments], **options)


def pack_table(cache: Path) -> None:
    draw = np.random.default_rng(0)
    arrays = {"age": draw.normal(40, 9, 50).astype(np.float32), "target": draw.integers(0, 2, 50).astype(np.uint8)}
    write_packed(cache / "synthetic.2-ab", "synthetic", "synthetic", Contents.of(arrays, arrays, classes=["no", "yes"]))


def test_list_shows_copies_with_form_and_origin_and_what_could_be_had():
    told = run("list")
    assert told.exit_code == 0
    text = " ".join(told.stdout.split())
    for part in (
        "60 + 20 images 32x32x3, 10 classes", "/from/cifar.tar.gz", "generated images", "cifar10.1",
        "mnist not packed downloaded when it is first used",
    ):  # fmt: skip
        assert part in text, text


@pytest.mark.parametrize("width", ["60", "80", "200"])
def test_list_fits_the_terminal(width, cache):
    lines = run("list", env={"COLUMNS": width}).stdout.splitlines()
    assert max(len(line) for line in lines if str(cache) not in line) <= int(width)


def test_list_as_json_is_all_that_is_printed_and_the_same_in_a_file(tmp_path, cache):
    told = json.loads(run("list", "--json", "-").stdout)
    assert run("list", "--json", "list.json").exit_code == 0
    assert json.loads((tmp_path / "list.json").read_text()) == told
    (one,) = [entry for entry in told["data_sets"] if entry["name"] == "cifar10"]
    (copy,) = one["copies"]
    assert copy["directory"] == str(cache / "cifar10.1") and copy["source"] == "/from/cifar.tar.gz"
    assert copy["bytes"] > 80 * 3073 and copy["classes"] == list(LETTERS) and one["downloads"]
    assert copy["inputs"] == {"image": {"dtype": "uint8", "shape": [32, 32, 3]}}
    manifest = json.loads((cache / "cifar10.1" / "dataset.json").read_text())
    listed = "".join(f"{checksum}  {file}\n" for file, checksum in sorted(manifest["sha256"].items()))
    assert copy["checksum"] == hashlib.sha256(listed.encode()).hexdigest()
    shown = " ".join(run("list").stdout.split())
    assert f"SHA-256 {copy['checksum'][:12]}…" in shown and " 0.2 MB " in shown


def test_fetch_says_where_the_copy_is_and_does_not_need_a_source_again(cache):
    told = run("fetch", "cifar10")
    assert told.exit_code == 0
    assert told.stdout.splitlines()[-1].startswith(f"cifar10 (real), 60 + 20 examples: {cache / 'cifar10.1'}")


def test_fetch_packs_what_a_users_own_code_returns(tmp_path, cache):
    (tmp_path / "my.py").write_text(
        "import numpy as np\nfrom ps_cluster.config.datasets import Contents\n"
        "ARRAYS = {'numbers': np.ones([8, 2], np.float32), 'target': np.arange(8, dtype=np.uint8) % 2}\n"
        "def load():\n    return Contents.of(ARRAYS, ARRAYS)\n"
    )
    assert run("fetch", "my.py:load").exit_code == 0
    names = [entry["name"] for entry in json.loads(run("list", "--json", "-").stdout)["data_sets"]]
    assert str(tmp_path / "my.py:load") in names
    assert run("verify", "my.py:load").exit_code == 0
    assert run("rm", "my.py:load", "--yes").exit_code == 0
    assert {path.name for path in cache.iterdir()} == {"cifar10.1", "synthetic.2"}


def test_verify_names_the_damaged_copy_and_the_command_that_helps(cache):
    assert run("verify").exit_code == 0 and run("verify").stdout.count("sound") == 2
    (cache / "cifar10.1/test_image.uint8").write_bytes(bytes(20 * 3072))
    told = run("verify")
    assert told.exit_code == 1 and told.stdout.count("sound") == 1
    assert "DAMAGED  cifar10" in told.stdout and "content of test_image.uint8 has changed" in told.stdout
    assert told.stderr.count("\n") == 1 and "data rm cifar10.1" in told.stderr
    assert run("verify", "synthetic").exit_code == 0
    assert run("rm", "cifar10.1", "--yes").exit_code == 0 and run("verify").exit_code == 0


def test_list_shows_a_damaged_copy(cache):
    (cache / "cifar10.1/test_image.uint8").unlink()
    text = run("list").stdout
    assert "DAMAGED" in text and "test_image.uint8: No such file" in " ".join(text.split())


def test_rm_asks_and_removes_nothing_without_a_yes(cache):
    told = run("rm", "cifar10", "synthetic", input="n\n")
    assert told.exit_code == 0 and "Remove these 2 copies?" in told.stdout and "nothing was removed" in told.stdout
    silent = run("rm", "cifar10", input="")
    assert_one_line(silent.exit_code, silent.stderr.lstrip("\n"), ["--yes", "nothing was removed"])
    assert {path.name for path in cache.iterdir()} == {"cifar10.1", "synthetic.2"}
    assert run("rm", "cifar10", input="y\n").exit_code == 0
    assert {path.name for path in cache.iterdir()} == {"synthetic.2"}


def test_show_writes_a_page_and_says_where(tmp_path):
    told = run("show", "cifar10", "--set", "data.augmentation.crop_padding_pixels=0",
               "--set", "data.augmentation.flip=none", "--output", "page.html")  # fmt: skip
    assert told.exit_code == 0 and told.stdout.endswith("written: page.html\n")
    assert "data:image/png;base64," in (tmp_path / "page.html").read_text()


def test_show_prints_columns_counts_and_rows_of_what_is_no_image(cache):
    pack_table(cache)
    (cache / "synthetic.2").rename(cache / "old")
    (cache / "synthetic.2-ab").rename(cache / "synthetic.2")
    told = run("show", "synthetic")
    assert told.exit_code == 0, told.stderr
    lines = [line.split() for line in told.stdout.splitlines()]
    (age,) = [line for line in lines if line[:3] == ["age", "float32", "1"]]
    assert float(age[4]) == pytest.approx(40, abs=5) and age[-1] == "0"
    counts = {line[0]: int(line[1]) for line in lines if line and line[0] in ("no", "yes")}
    assert sum(counts.values()) == 50
    assert len(lines) - lines.index(["age", "target"]) - 1 == 5, "the first examples are at the end"
    refused = run("show", "synthetic", "--output", "page.html")
    assert_one_line(refused.exit_code, refused.stderr, ["--output", "'page.html'", "only data sets of images"])


def test_list_fetch_and_verify_need_no_tensorflow():
    commands = [["list"], ["fetch", "cifar10"], ["verify"]]
    code = (
        "import sys; from ps_cluster.cli.main import main\n"
        f"for command in {commands!r}:\n"
        "    try: main(['data', *command])\n"
        "    except SystemExit as end: assert not end.code, end.code\n"
        "assert not {'tensorflow', 'keras', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=PROJECT, check=True, stdout=subprocess.DEVNULL)
