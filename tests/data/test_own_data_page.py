"""The snippets of docs/extending.md, run as pasted. Where one trains, most are only packed, by `data fetch`: that is quick."""

import re
import shlex
import subprocess
import sys

import pytest
from click.testing import CliRunner

from ps_cluster.cli.main import main
from tests.helpers.bad_input import PROJECT
from tests.helpers.own_data import draw
from tests.helpers.processes import assert_none_left
from tests.helpers.real_cluster import finish, start, summary_of

RUN = re.compile(r"^(?:# )?python cli.py run --dataset (.*)$", re.M)


def section(title):
    """Return the code of a section, and the arguments after `--dataset` of its command."""
    page = (PROJECT / "docs" / "extending.md").read_text().partition(f"\n### {title}\n")[2].partition("\n##")[0]
    blocks = re.findall(r"^```(?:python)?\n(.*?)^```", page, re.M | re.S)
    (command,) = [found[1] for block in blocks if (found := RUN.search(block))]
    return blocks[0], shlex.split(command)


def prepared(title, folder):
    """Do what a section does before its command, in a folder; return the command's arguments."""
    code, arguments = section(title)
    if "<<'END'" in code:
        script = code.partition("<<'END'\n")[2].partition("\nEND\n")[0]
        subprocess.run([sys.executable, "-"], input=script, cwd=folder, text=True, check=True)
    elif title == "With code":
        (folder / "my.py").write_text(code)
    else:
        for number, file in enumerate(re.findall(r"\S+\.(?:jpg|png)", code)):
            draw(folder / file, (40 + number, 70))
    return arguments


@pytest.mark.parametrize(
    ("title", "told"),
    [
        ("Pictures", "2 + 2 examples"),
        ("Arrays", "1600 + 400 examples"),
        ("A table", "1800 + 200 examples"),
        ("With code", "1800 + 200 examples"),
    ],
)
def test_what_a_section_of_the_page_makes_is_packed(tmp_path, monkeypatch, title, told):
    monkeypatch.chdir(tmp_path)
    arguments = prepared(title, tmp_path)
    if "--model" in arguments:
        network = arguments.index("--model")
        del arguments[network : network + 2]
    fetched = CliRunner().invoke(main, ["data", "fetch", *arguments])
    assert fetched.exit_code == 0 and told in fetched.stdout, fetched.output


@pytest.mark.exhaustive
@pytest.mark.cluster
def test_what_a_section_of_the_page_makes_is_learned_by_its_command_as_it_is(tmp_path):
    dataset, *options = prepared("A table", tmp_path)
    few = ("--workers", 1, "--set", "evaluation.draw_results=false")
    finish(start("run", "--run-dir", tmp_path / "run", "--dataset", tmp_path / dataset, *options, *few))
    assert_none_left(tmp_path / "run")
    summary = summary_of(tmp_path / "run")
    assert summary["model"] == "mlp" and summary["learned"]
    assert summary["evaluation"]["test_error"] < summary["guess"] / 10, "the price follows from the other columns"
