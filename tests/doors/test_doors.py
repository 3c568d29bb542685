"""What others bring in one file each, which the package knows nothing of, runs on a real cluster.

A user's fault is injected in tests/tools/chaos/test_chaos_cluster.py, into the run that is disturbed there anyway. A user's
table is trained on in tests/end_to_end/test_compare.py.
"""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from ps_cluster.cli.main import main
from ps_cluster.config import build_config, load_config, user_code
from ps_cluster.config.datasets import DataSettings
from ps_cluster.config.modes import MODES
from ps_cluster.config.networks import NETWORKS
from ps_cluster.data import sources
from ps_cluster.errors import UserError
from ps_cluster.process_variables import TRUSTED_FILES
from ps_cluster.tools.compare.comparison_plan import planned_runs, read_comparison
from tests.helpers.finished_runs import last_arrays, ledger_rows
from tests.helpers.local_training import train
from tests.helpers.processes import assert_none_left
from tests.helpers.real_cluster import finish, start, start_run, summary_of

TOYS = Path(__file__).parent
STEPS = 40


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("return 7", "got int: give (x_train, y_train), "),
        ("return Contents.of(part(5), {name: [1] for name in part(5)})", "test 'x' is list, not an array"),
        ("return Contents.of(part(5) | {'target': one[:5] * 10**9}, part(2))", "a label is 1000000000, but at most"),
        ("return Contents.of(part(5), part(2), objective='regression', classes=['a'])", "targets are int64"),
        ("1 / 0", "can't be read: ZeroDivisionError"),
        ("return Contents.of(part(5), {})", "the split 'test' has no array 'x'"),
        ("return Contents.of(part(5), part(0))", "number of rows, and at least one row: there are 0 in x, 0 in target"),
        (
            "return Contents.of(part(5) | {'target': one[:3]}, part(2))",
            "at least one row: there are 5 in x, 3 in target",
        ),
        ("return Contents.of(part(5), part(2) | {'x': one})", "test 'x' is int64 [], not float32 [2]"),
        (
            "return Contents.of(part(5), part(2) | {'target': one[:2] + 6})",
            "a label is 7, but the 2 classes are numbered",
        ),
        ("return Contents.of(part(5), part(2), objective='regression')", "targets are int64 []"),
        ("return Contents.of(part(5), part(2), objective='guessing')", "objective 'guessing'"),
        ("return Contents.of({'x y': one, 'target': one}, {'x y': one, 'target': one})", "inputs.x y"),
    ],
)
def test_a_data_set_that_can_not_be_packed_is_told_in_one_line_before_anything_starts(tmp_path, body, told):
    (tmp_path / "mine.py").write_text(
        "import numpy as np\nfrom ps_cluster.config.datasets import Contents\none = np.ones(9, np.int64)\n"
        "def part(n):\n    return {'x': np.zeros((n, 2), np.float32), 'target': one[:n]}\n"
        f"def load():\n    {body}\n"
    )
    user_code.trust(tmp_path / "mine.py")
    settings = DataSettings(dataset=f"{tmp_path}/mine.py:load")
    assert told in refusal(sources.resolve, settings, tmp_path / "cache", notify=print)
    assert not list((tmp_path / "cache").glob("**/dataset.json"))


@pytest.mark.slow
def test_a_staleness_method_a_rule_and_a_schedule_of_ones_own_train_a_class_of_ones_own_with_its_loss(
    tmp_path, untrusted
):
    for toy in ("subclassed", "method", "rule", "schedule"):
        user_code.trust(TOYS / f"toy_{toy}.py")
    chosen = {
        "mode.name": "async", "model.name": f"{TOYS}/toy_subclassed.py:build", "optimizer.clip_norm": 1.0,
        "staleness.method": f"{TOYS}/toy_method.py:Toy", "staleness.step": 2.0, "optimizer.learning_rate": 0.8,
        "optimizer.rule": f"{TOYS}/toy_rule.py:Toy", "optimizer.value": 0.5,
        "schedule.kind": f"{TOYS}/toy_schedule.py:Toy", "schedule.warmup_fraction": 0.0,
    }  # fmt: skip
    trained, run_dir = train(tmp_path / "here", **chosen), tmp_path / "here" / "run"
    assert trained.problems == [] and trained.recomputed
    arrays = last_arrays(run_dir)
    assert arrays["weights"].size == 3072 * 16 + 16 + 16 * 10 + 10 and np.all(arrays["weights"] == 0.5)
    assert arrays["each_toy"].tolist() == [2.0 * 24], "the method corrects every gradient"
    assert {round(float(row["learning_rate"]), 6) for row in ledger_rows(run_dir)} == {0.1}


@pytest.mark.slow
def test_a_mode_of_ones_own_has_its_own_settings_and_a_shard_with_a_state_of_its_own(tmp_path, untrusted):
    user_code.trust(TOYS / "toy_mode.py")
    trained = train(tmp_path / "here", **{"mode.name": f"{TOYS}/toy_mode.py:Toy", "mode.every": 4})
    assert trained.problems == [] and trained.recomputed and not trained.result.proof.recomputed.unchecked
    assert last_arrays(tmp_path / "here" / "run")["toy_whole"].tolist() == [24 / 4]


@pytest.mark.exhaustive
@pytest.mark.cluster
def test_a_mode_on_images_of_ones_own_is_proved_and_its_slots_go_on_in_a_run_that_is_resumed_when_all_files_are_named(
    tmp_path,
):
    mode, run_dir = tmp_path / "mine.py", tmp_path / "run"
    shutil.copy(TOYS / "toy_sign_mode.py", mode)
    images, network = (("--dataset", f"{TOYS}/toy_images.py:Toy"), ("--model", f"{TOYS}/toy_recipe.py:Toy"))
    options = ("--optimizer", "sgd", "--mode", f"{mode}:Majority")
    finish(start_run(run_dir, "--steps", STEPS, "--workers", 2, *images, *network, *options, "--set", "mode.scale=0.5"))
    assert_none_left(run_dir)
    summary, arrays = summary_of(run_dir), last_arrays(run_dir)
    assert_signs_were_recomputed(summary, arrays)
    assert summary["mode"] == f"{mode}:Majority"
    assert (summary["dataset"], summary["dataset_kind"]) == (images[1], "synthetic")
    turned = arrays["each_turned"].item()
    again = ("run", "--resume", str(run_dir), "--steps", str(STEPS + 20))
    refused = CliRunner().invoke(main, again)
    assert refused.exit_code == 2 and "--code" in refused.stderr and refused.stderr.count("\n") == 1
    code = (part for file in (mode, images[1], network[1]) for part in ("--code", str(file).partition(":")[0]))
    finish(start(*again, *code))
    assert_none_left(run_dir)
    summary = summary_of(run_dir)
    assert summary["updates"]["applied"] == STEPS + 20
    resumed = last_arrays(run_dir)
    assert_signs_were_recomputed(summary, resumed)
    assert 0 < turned < resumed["each_turned"].item() < STEPS + 20


def assert_signs_were_recomputed(summary, arrays):
    proof = summary["proof"]
    assert proof["holds"] and proof["recomputed"]["updates"] > 0 and not proof["recomputed"]["unchecked"]
    assert {"weights", "slots"} <= proof["recomputed"]["largest_deviations"].keys()
    assert {-1, 1} <= set(np.unique(arrays["slot_signs"])) <= {-1, 0, 1}


@pytest.fixture
def untrusted(monkeypatch):
    monkeypatch.delenv(TRUSTED_FILES, raising=False)


def refusal(call, *arguments, **named):
    with pytest.raises(UserError) as error:
        call(*arguments, **named)
    assert "\n" not in str(error.value)
    return str(error.value)


BAD = [
    ("no_such_file.py:Toy", "there is no file"),
    ("broken.py:Toy", "can't be run: SyntaxError"),
    ("raising.py:Toy", "can't be run: ZeroDivisionError"),
    ("empty.py:Toy", "the file defines no 'Toy'"),
    ("other.py:Toy", "is no mode: it has to be a ps_cluster.config.modes.Mode"),
    ("parts.py:Settings", "its Settings has to be a subclass of ps_cluster.config.modes.ModeSettings"),
    ("parts.py:Shard", "its shard is 7, but has to be a subclass of ps_cluster.server.shard.ParameterShard"),
    ("parts.py:Steps", "its step_source is <class 'int'>, but has to be a subclass of ps_cluster.training.step_source"),
    (
        "parts.py:Waiting",
        "the mode's shard class, BoundedShard, lets pushes wait, but its method `dispatch` builds the graph",
    ),
    ("parts.py:Abstract", "Can't instantiate abstract class"),
]


@pytest.mark.parametrize(("name", "told"), BAD)
def test_what_is_no_mode_is_told_in_one_line(tmp_path, untrusted, name, told):
    (tmp_path / "broken.py").write_text("def Toy(:")
    (tmp_path / "raising.py").write_text("1 / 0")
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "other.py").write_text("Toy = 7")
    (tmp_path / "parts.py").write_text(
        "from ps_cluster.config.modes import Mode\nfrom ps_cluster.training.modes.base import DefaultMode\n"
        "Settings = type('Settings', (DefaultMode,), {'Settings': dict})\n"
        "Shard = type('Shard', (DefaultMode,), {'shard': 7})\n"
        "Steps = type('Steps', (DefaultMode,), {'step_source': int})\n"
        "from ps_cluster.training.modes.bounded import BoundedShard\n"
        "Waiting = type('Waiting', (DefaultMode,), {'shard': BoundedShard})\n"
        "class Abstract(Mode): ...\n"
    )
    assert told in refusal(build_config, None, {"mode.name": f"{tmp_path}/{name}"})


PARTS = "is None, but has to be a subclass of ps_cluster.server"


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("staleness.method", f"staleness method 'FILE': its correction {PARTS}.staleness.correction.Correction: docs/"),
        ("optimizer.rule", f"optimizer rule 'FILE': its update {PARTS}.update_rules.rule.UpdateRule: docs/"),
    ],
)
def test_a_method_or_rule_without_its_part_is_told_in_one_line(tmp_path, untrusted, key, told):
    module, base = ("staleness_methods", "StalenessMethod") if "method" in key else ("optimizer_rules", "OptimizerRule")
    (tmp_path / "mine.py").write_text(f"from ps_cluster.config.{module} import {base}\nclass Toy({base}): ...\n")
    name = f"{tmp_path}/mine.py:Toy"
    assert told.replace("FILE", name) in refusal(build_config, None, {key: name})


def test_a_rule_whose_class_for_rows_is_none_is_told_in_one_line(tmp_path, untrusted):
    (tmp_path / "mine.py").write_text(
        "from ps_cluster.server.update_rules.sgd import Sgd\nclass Toy(Sgd):\n    row_update = Sgd.update\n"
    )
    told = refusal(build_config, None, {"optimizer.rule": f"{tmp_path}/mine.py:Toy"})
    assert "its row_update is <class 'ps_cluster.server.update_rules.sgd.SgdUpdate'>" in told
    assert "has to be a subclass of ps_cluster.server.update_rules.row_rule.RowRule: docs/" in told


def test_a_file_that_only_a_run_directory_names_is_not_run(tmp_path, untrusted):
    code = tmp_path / "mine.py"
    code.write_text("from pathlib import Path\nPath(__file__).with_name('was-run').touch()\n")
    text = build_config().to_yaml().replace("name: async\n  simulate_workers: null", f"name: {code}:Toy")
    (tmp_path / "config.yaml").write_text(text)
    assert "--code" in refusal(load_config, tmp_path / "config.yaml")
    assert not (tmp_path / "was-run").exists()


def test_a_relative_path_is_taken_from_the_file_that_names_it(tmp_path, untrusted):
    shutil.copy(TOYS / "toy_schedule.py", tmp_path / "mine.py")
    (tmp_path / "mine.yaml").write_text("schedule: {kind: 'mine.py:Toy', factor: 0.5}")
    config = build_config(tmp_path / "mine.yaml")
    assert config.schedule.kind == f"{tmp_path}/mine.py:Toy" and config.schedule.factor == 0.5
    assert os.environ[TRUSTED_FILES].splitlines() == [f"{tmp_path}/mine.py"]


def test_a_comparison_takes_modes_of_ones_own_beside_shared_settings(tmp_path, untrusted):
    shutil.copy(TOYS / "toy_mode.py", tmp_path / "mine.py")
    file = tmp_path / "compare.yaml"
    file.write_text(
        "arms: [{mode: async}, {mode: 'mine.py:Toy', set: {mode.every: 3}}]\nsettings: {cluster.workers: 2}"
    )
    runs = planned_runs(
        read_comparison(file, {"seeds": 1}, {"model.name": "tutorial_cnn", "data.dataset": "synthetic"})
    )
    assert {run.config.mode.name for run in runs} == {"async", f"{tmp_path}/mine.py:Toy"}
    assert {run.config.cluster.workers for run in runs} == {2}


def test_an_unknown_setting_of_a_kind_is_told_with_those_that_it_has(untrusted):
    told = refusal(build_config, None, {"mode.evry": 3})
    assert "unknown key 'mode.evry'; mode async has name and simulate_workers" in told
    told = refusal(build_config, None, {"mode.name": f"{TOYS}/toy_sign_mode.py:Majority", "mode.scael": 3})
    assert "unknown key 'mode.scael'; did you mean 'mode.scale'? mode" in told


class Point:
    """An entry point as importlib.metadata has it."""

    value = "somewhere:thing"

    def __init__(self, name, thing):
        self.name, self._thing = name, thing

    def load(self):
        if isinstance(self._thing, Exception):
            raise self._thing
        return self._thing


def test_an_installed_package_adds_to_the_names_by_an_entry_point(monkeypatch):
    points = {
        "ps_cluster.networks": [Point("plugged", lambda examples, settings: None), Point("bad", ImportError("no"))]
    }
    monkeypatch.setattr(user_code, "entry_points", lambda group: points.get(group, []))
    assert {"airbench", "plugged", "bad"} <= set(NETWORKS.names) and "plugged" not in MODES.names
    assert build_config(None, {"model.name": "plugged"}).model.name == "plugged"
    assert "can't be loaded: ImportError: no" in refusal(build_config, None, {"model.name": "bad"})
