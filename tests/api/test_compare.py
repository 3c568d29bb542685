"""`ps_cluster.compare` with a stand-in for the command."""

import json
import sys

import pytest

import ps_cluster
from ps_cluster.files.writing import write_whole
from ps_cluster.files.yaml_files import dump_yaml, read_yaml
from ps_cluster.tools.compare.comparison_plan import PLAN, planned_runs, read_comparison
from tests.helpers.bad_input import refusal

# Writes the files that the command leaves, and its arguments.
FAKE = """
import json, sys
from pathlib import Path
folder = Path(sys.argv[sys.argv.index("--output") + 1])
(folder / "arguments.json").write_text(json.dumps(sys.argv[1:]))
(folder / "report.json").write_text(json.dumps({"headline": ["it is."], "groups": [{"arm": "async"}]}))
print("compared")
"""


@pytest.fixture
def call(tmp_path):
    def call(*arms, **options):
        return ps_cluster.compare(
            *arms, **{"output": tmp_path / "out", "command": (sys.executable, "-c", FAKE)} | options
        )

    return call


def test_arms_options_and_settings_are_those_of_a_file_of_the_command(call, tmp_path, capsys):
    arms = ["async", {"mode": "bounded", "set": {"mode.max_staleness": 2}}]
    compared = call(arms, "tutorial_cnn", seeds=2, workers=3, settings={"optimizer.rule": "sgd"}, baseline="async")
    assert capsys.readouterr().out == "compared\n"
    assert compared.table == [{"arm": "async"}] and compared.headline == ["it is."]
    file = tmp_path / "out" / "code" / "settings.yaml"
    assert json.loads((tmp_path / "out" / "arguments.json").read_text()) == [
        "compare", "--config", str(file), "--output", str(tmp_path / "out"), "--baseline", "async",
    ]  # fmt: skip
    written = read_yaml(file)
    assert [arm["mode"] for arm in written["arms"]] == ["async", "bounded"] and written["seeds"] == 2
    assert written["settings"] == {
        "optimizer.rule": "sgd",
        "cluster.workers": 3,
        "model.name": "tutorial_cnn",
    }


def test_a_comparison_of_equal_time_is_one_for_the_command(call, tmp_path):
    """The file that is written has only what was given: the command refuses other lengths beside a time."""
    call(["async", "sync"], "tutorial_cnn", seconds=60)
    comparison = read_comparison(tmp_path / "out" / "code" / "settings.yaml", {}, {})
    assert {run.config.training.max_seconds for run in planned_runs(comparison)} == {60.0}


def test_a_function_is_the_network_of_all_arms(call, tmp_path):
    call(["async"], lambda: None)
    reference = read_yaml(tmp_path / "out" / "code" / "settings.yaml")["settings"]["model.name"]
    assert reference.startswith(f"{tmp_path}/out/code/build-") and reference.endswith(".pickle:build")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"seeds": 0}, "seeds: got 0"),
        ({"seed": 1}, "seed: there is no such argument"),
        ({"arms": ["asynk"]}, "did you mean 'async'"),
        ({"arms": "async"}, "arms: got 'async': give a list of them"),
        ({"settings": 7}, "settings: got 7: give a mapping"),
        ({"output": "/dev/null"}, "output: '/dev/null' can't be written"),
    ],
)
def test_bad_input_is_one_line(call, options, told):
    assert told in refusal(call, **options)


def test_a_folder_of_something_else_is_not_written_to(call, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    with pytest.raises(ps_cluster.UserError, match="holds no comparison"):
        call(["async"], lambda: None)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine.txt"]


def begun(tmp_path):
    """Write the plan that the command writes for its settings. Return the name of the network in it."""
    settings = read_yaml(tmp_path / "out" / "code" / "settings.yaml")
    write_whole(tmp_path / "out" / PLAN, dump_yaml(settings))
    return settings["settings"]["model.name"]


def test_a_comparison_goes_on_with_the_same_function_and_with_no_other(call, tmp_path):
    def returning(value):
        return lambda: value

    call(["async"], returning(1))
    name = begun(tmp_path)
    call(["async"], returning(1))
    assert begun(tmp_path) == name
    with pytest.raises(ps_cluster.UserError, match="was begun with another model .* give model='") as error:
        call(["async"], returning(2))
    assert name in str(error.value) and len(list((tmp_path / "out" / "code").glob("*.pickle"))) == 1
    call(["async"], name)
    assert begun(tmp_path) == name


@pytest.mark.parametrize(
    ("report", "told"),
    [
        (None, "comparison '.*nowhere' has no report.json: it is not a comparison, or is not complete"),
        ("[]", "report.json': got \\[\\]"),
        ('{"headline": []}', "'groups' is missing"),
    ],
)
def test_a_folder_without_a_report_is_told_in_one_line(tmp_path, report, told):
    if report is not None:
        write_whole(tmp_path / "nowhere" / "report.json", report)
    with pytest.raises(ps_cluster.UserError, match=told):
        ps_cluster.Compared(tmp_path / "nowhere")
