"""Carry out the commands of the pages and of the help. NOT_RUN has the others, each with the reason.

Commands of docs/from-examples.md are carried out by test_from_examples.py.
"""

import importlib
import itertools
import os
import re
import shlex
import shutil
from pathlib import Path
from unittest import mock

import click
import pytest
from click.testing import CliRunner
from PIL import Image

from ps_cluster.cli.main import main
from ps_cluster.data.cache import packed_folder
from tests.cli.test_help import EXAMPLES
from tests.helpers.command_lines import assert_sound
from tests.helpers.data import LETTERS, pack_images, random_images
from tests.helpers.digits import digits, write_as_keras
from tests.helpers.left_by_runs import leave_table_run
from tests.helpers.processes import assert_none_left
from tests.helpers.real_cluster import PROJECT, finish, small, start

# Pattern → why commands that begin with it are not carried out. The first match counts. These need a reader's own files.
OF_THE_READER = {
    r".*(…|\$|CORES)": "is no whole command: the page leaves a part to its reader",
    r"(run|compare|export|predict) .*\b(my\w*\.py|first\.keras)\b": "needs code "
    "or a model that the page shows: tests/doors, tests/models/test_own_network_page.py, tests/evaluation/test_export.py",
    r"run --dataset (pets|houses|numbers|notes|FOLDER)": "needs data: tests/data/test_own_data_page.py makes them",
    r"run --dataset (train\.txt|ml-1m)": "needs data: tests/data/test_click_logs.py writes such",
    r"run --dataset '?clinics": "needs data: tests/data/test_tables_of_many_files.py makes such",
    r"run --(resume|config (mine|sweep))": "needs what an earlier run left: tests/end_to_end/test_draining.py",
    r"(data show|predict) (waves|new)\.npz": "needs data of the tutorial: tests/test_tutorial.py makes them",
}
# The commands below are only parsed, and checked with --dry-run if they have this option.
NOT_RUN = OF_THE_READER | {
    r"run\b(?!.*--dry-run)": "trains for minutes: tests/end_to_end trains in each mode, .ci/run as README.md begins",
    r"compare\b(?!.*--dry-run)": "trains for hours, or reads such runs: tests/end_to_end/test_compare.py trains one",
    r"sweep\b": "trains many runs: tests/tools/sweep/test_sweep_cluster.py trains few",
    r"ensemble\b": "trains several runs: tests/test_from_examples.py joins two",
    r"chaos\b": "takes minutes: tests/tools/chaos has tests that inject faults",
    r"bench\b": "measures for minutes: tests/end_to_end/test_compare.py does for seconds",
    r"task\b": "waits for other machines: tests/end_to_end/test_several_machines.py has them",
    r"(scale|health)\b": "asks a run that trains: tests/end_to_end/test_dead_workers.py, tests/report/test_health.py",
    r"simulate .*--(network|check|workers|ps|mode)": "computes for long: tests/tools/simulate predicts, and one is carried out",
    r"doctor( --json)?$": "trains a cluster for 20 s, as tests/end_to_end does; the other checks are carried out",
    r"predict --prompt": "needs a network for text: tests/end_to_end/test_text.py trains one",
    r"export .*(onnx|h5)": "writes what tests/evaluation/test_export.py writes, onnx in `make test-extras`",
    r"export .*--changed-since": "needs a run with tables: tests/evaluation/test_changed_rows.py leaves one",
    r"python -m benchmarks": "measures for minutes, with hardware to itself: tests/benchmarks has those that are quick",
}
# Smaller sizes for commands that would compute for a minute.
SMALLER = {r"simulate (?!.*--check)": "--workers 4"}
# Placeholder in a page → the path in these tests.
MEANT = {"runs/<name>": "runs/mine", "OTHER_RUN": "runs/other", "RUN_DIR": "runs/mine"}

PAGES = [*PROJECT.glob("*.md"), *{*(PROJECT / "docs").glob("*.md")} - {PROJECT / "docs" / "from-examples.md"}]
BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.M | re.S)
PROGRAM = re.compile(r"(?:python |/)cli\.py +|\bps-cluster +|(?=python -m benchmarks\.)")
RUN = re.compile(r"\b(?:(?<!/)runs|elsewhere)/[\w-]+|\bDIR\b|\bONE\b|\bTHREE\b")


def documented():
    """Yield the commands of the help, then those in code blocks of the pages that name no language."""
    yield from (shlex.join(words) for _, words in EXAMPLES)
    for page in sorted(PAGES):
        code = "\n".join(block for language, block in BLOCK.findall(page.read_text()) if not language)
        for line in re.sub(r"\s+#.*", "", re.sub(r" *\\\n *", " ", code)).splitlines():
            for placeholder, path in MEANT.items():
                line = line.replace(placeholder, path)
            if call := PROGRAM.search(line):
                yield shlex.join(first_command(line[call.end() :]))


def first_command(line):
    """Return the words up to an operator of the shell. If a quotation began before the line, the line ends at its end."""
    whole = line.rpartition('"')[0] if line.count('"') % 2 else line
    words = shlex.shlex(whole, posix=True, punctuation_chars="();<>|&")
    words.whitespace_split = True
    return itertools.takewhile(lambda word: word[0] not in words.punctuation_chars, words)


def begins(command, patterns):
    return any(re.match(pattern, command) for pattern in patterns)


def form(command):
    """Return the command and the names of its options. Of commands that differ only in values, one is carried out."""
    words = shlex.split(command)
    is_group = isinstance(main.get_command(None, words[0]), click.Group)
    return (*words[: 1 + is_group], *sorted(word for word in words if word.startswith("--")))


COMMANDS = list(dict.fromkeys(documented()))
READ = [command for command in COMMANDS if begins(command, NOT_RUN)]
CARRIED_OUT = list({form(command): command for command in COMMANDS if command not in READ}.values())
TAKEN = [one for one in COMMANDS if one not in CARRIED_OUT and not begins(one, OF_THE_READER)]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Return a folder with the files that commands read: run/, table/run/, and Keras's downloads in keras/."""
    folder = tmp_path_factory.mktemp("prepared")
    options = small("--workers", 1, "--ps", 1, "--steps", 30, draws=True)
    finish(start("run", "--run-dir", folder / "run", *options))
    assert_none_left(folder)
    (folder / "table").mkdir()
    leave_table_run(folder / "table")
    (folder / "keras" / "datasets").mkdir(parents=True)
    write_as_keras(folder / "keras" / "datasets", digits())
    return folder


def in_a_shell(command, home):
    """Yield the words of a command as a shell passes them to a program."""
    for word in shlex.split(command):
        found = sorted(map(str, Path().glob(word))) if "*" in word else []
        yield from found or [re.sub("^~", str(home), word)]


@pytest.fixture
def carried_out(prepared, tmp_path, monkeypatch):
    """Return a function that carries out a command in a folder with the files that it names, and returns the result."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERAS_HOME", str(prepared / "keras"))
    monkeypatch.setenv("PS_CLUSTER_CACHE", str(tmp_path / "cache"))
    images = (*random_images(60), *random_images(20, seed=1))
    for copy, name in (("cifar10.1-5740d428", "cifar10"), ("synthetic.2", "synthetic")):
        pack_images(packed_folder(tmp_path / "cache") / copy, name, LETTERS, images)
    for name in ("photos", "FOLDER", "other-folder"):
        Path(name).mkdir()
    for name in ("cat.png", "photo.jpg", "photos/one.png"):
        Image.new("RGB", (40, 30), "red").save(name)
    for name in ("rows.csv", "new.csv"):
        shutil.copy(prepared / "table" / "prices.csv", name)
    Path("Downloads").symlink_to(prepared / "keras" / "datasets")
    Path("my.yaml").write_text("cluster: {workers: 2}\n")
    Path("my.py").write_text(
        (PROJECT / "docs" / "extending.md").read_text().partition("```python\n")[2].partition("```")[0]
    )
    shutil.copytree(PROJECT / "configs", "configs")

    def carry_out(command):
        model = "table/run" if re.search(r"\b(rows|new)\.csv", command) else "run"
        for path in {"runs/mine", *RUN.findall(command)}:
            shutil.copytree(prepared / model, path)
        if re.match(r"data (verify|rm) .*mnist", command):
            assert invoke(["data", "fetch", "mnist"]).exit_code == 0
        smaller = " ".join(added for pattern, added in SMALLER.items() if re.match(pattern, command))
        return invoke([*in_a_shell(command, tmp_path), *smaller.split()])

    return carry_out


def invoke(words):
    with mock.patch.dict(os.environ):
        return CliRunner().invoke(main, words, input="y\n" * 3)


@pytest.mark.exhaustive
@pytest.mark.cluster
@pytest.mark.parametrize("command", CARRIED_OUT)
def test_a_documented_command_is_carried_out(command, carried_out):
    result = carried_out(command)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("command", TAKEN)
def test_a_command_that_is_not_carried_out_is_one_that_the_program_takes(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").symlink_to(PROJECT / "configs")
    words = list(in_a_shell(command, tmp_path))
    if words[0] != "python":
        assert_sound(words)
        return
    program = importlib.import_module(words[2]).main
    if isinstance(program, click.Command):
        for folder in ("CHECKOUT", "OLD", "PACKED", "DATA"):
            (tmp_path / folder).mkdir()
        program.make_context(words[2], words[3:])


def test_every_reason_is_that_of_a_command_and_names_tests_that_are_there():
    for pattern, reason in NOT_RUN.items():
        assert any(re.match(pattern, command) for command in READ), pattern
        for path in re.findall(r"tests/[\w/.]+\w", reason):
            assert (PROJECT / path).exists(), path
