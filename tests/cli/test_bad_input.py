"""Mistakes of users on the command line (see also test_bad_yaml, test_bad_surroundings, test_bombs)."""

import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner

from ps_cluster.cli.command_line import SingleValueOption
from ps_cluster.cli.main import main
from ps_cluster.cli.value_types import Integer, Number, OutputPath
from ps_cluster.config import build_config
from ps_cluster.files.writing import write_json
from ps_cluster.runs import checkpoints
from ps_cluster.runs.checkpoints import CheckpointMeta
from ps_cluster.runs.run_dir import RunDir
from tests.cli.test_help import all_commands
from tests.helpers.bad_input import PROJECT, Row, assert_one_line, assert_told
from tests.helpers.data import pack_images


def _checkpoint_of_another_model(run_root: Path) -> None:
    """Write a run of tutorial_cnn whose checkpoint has far too few weights."""
    run_dir = RunDir.create(run_root)
    images, labels = np.zeros([20, 32, 32, 3], np.uint8), np.zeros([20], np.uint8)
    dataset = pack_images(run_root / "data", "synthetic", tuple("abcdefghij"), (images, labels, images, labels))
    config = build_config(
        None, {"model.name": "tutorial_cnn", "model.precision": "float32", "data.dataset": "synthetic"}
    )
    run_dir.config.write_text(config.to_yaml())
    write_json(run_dir.dataset, {"name": "synthetic", "kind": "synthetic", "directory": str(dataset.directory)})
    arrays = {"weights": np.zeros([7], np.float32), "statistics": np.zeros([0], np.float32)}
    checkpoints.save(
        run_dir.checkpoints,
        checkpoints.Checkpoint(1, arrays, CheckpointMeta(config=config.model_dump(mode="json"))),
        keep=1,
    )


K8S = "k8s render --image me/x:1 --run-volume runs --dataset synthetic --precision float32"
SLURM = "slurm render --run-dir /shared/x --dataset synthetic --precision float32"
CASES = [
    ("run --workers 0", ["--workers", "0"]),
    ("run --workers", ["--workers", "requires an argument"]),
    ("run --ps 5", ["cluster.parameter_servers", "5", "at most 4"]),
    ("run --isolation interface=wg0", ["--isolation", "'interface=wg0'", "auto, require, off"]),
    ("run --set cluster.isolation=interface=wg0", ["cluster.isolation", "'interface=wg0'", "auto, require, off"]),
    ("run --split rows", ["--split", "rows"]),
    (
        "run --split layers --mode sync",
        ["--split", "'layers'", "mode sync splits the data", "leave out --split or the mode"],
    ),
    ("run --split data --mode layers", ["--split", "'data'", "mode layers splits the layers"]),
    ("run --split layers --ps 2", ["cluster.parameter_servers", "2", "mode layers does not use it"]),
    ("run --split layers --straggler 1:5x", ["cluster.straggler", "1:5x", "mode layers does not use it"]),
    ("run --split layers --set optimizer.global_clip_norm=1", ["optimizer.global_clip_norm", "mode layers"]),
    ("run --dataset ../own", ["dataset", "there is no '", "/own'"]),
    ("run --dataset pipe", ["dataset", "/pipe' has no known format"]),
    ("run --dataset used --image-size 4x", ["data.image_size", "data set text:", "does not use it"]),
    ("run --dataset mnist --image-size 64", ["data.image_size", "mnist", "image_folder", "leave it out"]),
    ("run --dataset mnist --target price", ["data.target", "price", "table", "leave it out"]),
    ("run --dataset table:used --set data.held_out=1.0", ["data.held_out", "1.0"]),
    ("run --dataset table:none.csv --target price", ["dataset", "there is no '", "/none.csv'"]),
    ("run --dataset arrays:file", ["dataset", "/file'", "y_train is missing"]),
    ("data fetch table:file", ["dataset", "the name 'file' ends in none of .csv, .tsv"]),
    ("run --model alexnet", ["--model", "alexnet"]),
    ("run --epochs 0", ["--epochs", "0"]),
    ("run --epochs nan", ["epochs", "nan"]),
    ("run --set training.epochs=2024-13-45", ["training.epochs", "'2024-13-45'"]),
    ("run --set data.augmentation=none --set data.augmentation.flip=none", ["data.augmentation.flip", "'none'"]),
    ("run --epochs 1 --steps 5", ["--epochs", "--steps"]),
    ("run --worker-count 3", ["--worker-count"]),
    ("run surplus", ["surplus"]),
    ("walk", ["walk"]),
    ("run --straggler 3:5x", ["cluster.straggler", "workers 0 to 2"]),
    ("run --mode single --straggler 2:5x", ["cluster.straggler", "single"]),
    ("run --simulate-workers 2", ["mode.simulate_workers", "2", "cluster.workers"]),
    ("run --mode elastic", ["optimizer.rule", "muon", "sgd"]),
    ("run --straggler 5x", ["cluster.straggler", "5x", "write 2:5x"]),
    ("run --mode sync-ps --ps 2", ["cluster.parameter_servers", "2", "sync-ps"]),
    ("compare --dataset synthetic --workers 9", ["cluster.workers", "9", "at most 8"]),
    ("compare --modes async,asink", ["arms.1.mode", "asink"]),
    ("compare --modes single --straggler 2:5x", ["--straggler", "2:5x"]),
    ("compare --config target.yaml", ["target.yaml", "target"]),
    ("compare --config settings.yaml", ["settings.yaml", "settings"]),
    ("compare --config training.yaml", ["training", "None"]),
    ("simulate --save-costs -", ["--save-costs", "'-'"]),
    ("compare --target-score 0", ["--target-score", "0"]),
    ("compare --dataset synthetic --output used", ["--output", "used"]),
    ("compare --config unknown.yaml", ["unknown.yaml", "cluster"]),
    ("compare --config list.yaml", ["list.yaml", "list"]),
    ("compare used", ["used"]),
    ("compare used --seeds 2", ["--output", "--force"]),
    ("run --set workers", ["--set", "workers"]),
    ("run --set training.seed=1 --set training.seed=2", ["--set training.seed", "1 and 2"]),
    (
        "run --set data.augmentation.flip=random --set data.augmentation=none",
        ["--set data.augmentation:", "random", "none"],
    ),
    ("run --workers 2 --workers 3", ["--workers", "'2' and '3'"]),
    ("run --evaluator --no-evaluator", ["--evaluator/--no-evaluator", "both"]),
    ("task --run-dir new --run-dir other", ["--run-dir", "'new' and 'other'"]),
    ("chaos --kinds absent.py:Fault", ["--kinds", "no file", "absent.py"]),
    ("run --set cluster.workers=many", ["cluster.workers", "many"]),
    ("run --set optimizer.momentum=1.5", ["optimizer.momentum", "1.5"]),
    ("run --set optimizer.momentum=[", ["--set", "not YAML"]),
    ("run --config absent.yaml", ["absent.yaml", "No such file"]),
    ("run --config empty", ["'empty'", "directory"]),
    ("run --config not.yaml", ["not.yaml", "not YAML"]),
    ("run --config binary.yaml", ["binary.yaml", "not YAML"]),
    ("run --config type.yaml", ["type.yaml", "cluster.workers", "many"]),
    ("run --config section.yaml", ["section.yaml", "cluster", "3"]),
    ("run --config fine.yaml --set cluster.workers=0", ["options: cluster.workers", "0"]),
    ("run --dataset cifar10 --data-dir absent", ["'absent'", "does not exist"]),
    ("run --dataset cifar10 --data-dir empty", ["'empty'", "holds no CIFAR-10"]),
    ("run --dataset cifar10 --data-dir text", ["text/cifar-10-python.tar.gz", "not CIFAR-10"]),
    ("run --dataset cifar10 --data-dir file", ["'file'", "not CIFAR-10"]),
    ("run --dataset cifar10 --data-dir absent --run-dir new/deep", ["'absent'"]),
    ("run --dataset synthetic --data-dir empty", ["'empty'", "synthetic"]),
    ("run --run-dir used", ["'used'", "not empty"]),
    ("run --dataset cifar10 --data-dir absent --run-dir used", ["'used'"]),  # found before data is looked for
    ("run --set optimizer.learning_rate=.nan", ["optimizer.learning_rate", "finite"]),
    ("run --run-dir gs://bucket/run", ["'gs://bucket/run' is the address of a remote store", "mount it"]),
    ("run --resume s3://bucket/run", ["'s3://bucket/run' is the address of a remote store"]),
    ("run --dataset gs://bucket/pets", ["dataset: 'gs://bucket/pets' is the address of a remote store"]),
    ("task --run-dir gs://bucket/run", ["'gs://bucket/run' is the address of a remote store"]),
    ("run --run-dir file", ["'file'", "a file is in the way"]),
    ("run --run-dir file/below", ["'file/below'", "a file is in the way"]),
    ("run --run-dir /proc/run", ["'/proc/run'", "can't be"]),
    ("run --resume absent", ["'absent'", "is not there"]),
    ("run --resume used", ["'used'", "config.yaml"]),
    ("run --resume used --workers 2", ["--resume", "--workers"]),
    ("run --resume used --run-dir new", ["--resume", "--run-dir"]),
    ("data --dataset cifar10", ["--dataset"]),
    ("data get cifar10", ["get"]),
    ("data list surplus", ["surplus"]),
    ("data list --data-dir absent", ["--data-dir", "'absent'", "no such folder"]),
    ("data list --json used", ["--json", "'used'", "directory"]),
    ("data list --json file/below.json", ["--json", "'file/below.json'", "a file is in the way"]),
    ("data fetch", ["NAME"]),
    ("data fetch imagenet", ["NAME", "'imagenet'", "cifar10"]),
    ("data fetch cifar10 --set data.wrong=1", ["data.wrong"]),
    ("data rm", ["NAME"]),
    ("data rm ../../used --yes", ["NAME", "'../../used'", "no packed copy"]),
    ("data show imagenet", ["NAME", "'imagenet'"]),
    ("data show cifar10 --output used", ["--output", "'used'", "directory"]),
    ("data show cifar10 --set data.augmentation.flip=sideways", ["data.augmentation.flip", "sideways"]),
    ("k8s render --image me/x:1 --dataset synthetic", ["--run-volume"]),
    ("k8s render --image me/x:1 --run-volume runs --precision float32", ["data.dataset: got 'auto'"]),
    (f"{K8S} --gpus auto", ["cluster.gpus: got 'auto'", "the image has no CUDA"]),
    ("run --dataset absent/*.csv", ["no file matches", "absent/*.csv"]),
    ("run --set training.sample=rows:5,3,9", ["training.sample", "rows:5,3,9", "ascend"]),
    (f"{K8S} --kind jobsets", ["--kind", "did you mean 'jobset'"]),
    (f"{K8S} --name My_Job", ["--name", "'My_Job'", "lowercase letters"]),
    (f"{K8S} --name {'a' * 41}", ["--name", "up to 40"]),
    (f"{K8S} --cpu two", ["--cpu", "'two'", "4, 0.5 or 500m"]),
    (f"{K8S} --memory driver=1Gi", ["--memory", "'driver'"]),
    (f"{K8S} --output used", ["--output", "used", "is a directory"]),
    (f"{K8S} --workers 3 --min-workers 4", ["--min-workers: got 4", "has 3 of type worker"]),
    (f"{K8S} --isolation require", ["cluster.isolation: got 'require'", "leave it out"]),
    (f"{K8S} --set cluster.isolation=interface=eth0", ["cluster.isolation: got 'interface=eth0'", "leave it out"]),
    (K8S.replace("synthetic", "cifar10"), ["data.dataset: got 'cifar10'", "no pod can download", "--data-volume"]),
    (f"{K8S.replace('synthetic', 'cifar10')} --data-dir here", ["data.data_dir: got 'here'", "the absolute path"]),
    (
        f"{K8S.replace('synthetic', 'cifar10')} --data-volume c --data-dir /x",
        ["data.data_dir: got '/x'", "mounted at /data"],
    ),
    (f"{K8S.replace('synthetic', 'text:/x/y')} --data-volume c", ["data.dataset: got '/x/y'", "e.g. text:/data/y"]),
    (f"{K8S} --scratch 4GB", ["--scratch", "'4GB'"]),
    (f"{K8S} --data-volume cifar", ["--data-volume: got 'cifar'", "'synthetic' is generated"]),
    ("slurm render --run-dir x", ["--run-dir", "an absolute path"]),
    ("slurm render --run-dir /shared/50%new", ["--run-dir", "without %"]),
    (f"{SLURM} --isolation require", ["cluster.isolation: got 'require'", "interface=NAME"]),
    (f"{SLURM.replace('synthetic', 'cifar10')} --data-dir here", ["data.data_dir: got 'here'", "the absolute path"]),
    (f"{SLURM} --time soon", ["--time", "'soon'"]),
    (f"{SLURM} --sbatch partition=long", ["--sbatch", "--partition=long"]),
    (f"{SLURM} --port 65535", ["--port: got 65535", "over 65535"]),
    (f"{SLURM} --mode sync --workers 3 --min-workers 1", ["--min-workers: got 1", "sync keeps its number of workers"]),
    ("task --run-dir new", ["TF_CONFIG is not set", "--cluster, --type and --index"]),
    ("task --run-dir new --resume sometimes", ["--resume", "'sometimes'", "auto"]),
    ("bench --arms single,ddp", ["--arms", "ddp", "--ddp-python", "torch, numpy, pydantic and PyYAML"]),
    ("bench --arms ddp --ddp-python absent/python", ["--ddp-python", "absent/python", "torch"]),
    ("bench --arms torch_single --ddp-python file", ["--ddp-python", "file", "torch"]),
    (
        "bench --arms empty --straggler 2:5x",
        ["--arms empty chooses the sizes of its clusters itself", "leave --straggler out"],
    ),
    (
        "bench --arms empty --set cluster.workers=8",
        ["--set cluster.workers", "the arm empty chooses this setting itself"],
    ),
    ("bench --straggler 1:+0.2s", ["--straggler", "1:+0.2s", "2:5x"]),
    ("bench --arms single --straggler 2:5x", ["--straggler", "2:5x", "cluster or sync"]),
    (
        "bench --dataset synthetic --set training.sample=shard:worker",
        ["training.sample", "shard:worker", "leave it out"],
    ),
    ("bench --dataset synthetic --set training.steps=null", ["training.steps", "null"]),
    ("evaluate", ["--checkpoint-dir"]),
    ("evaluate --checkpoint-dir empty --once", ["empty", "no checkpoint"]),
    ("evaluate --checkpoint-dir absent --once", ["absent", "does not exist"]),
    ("evaluate --checkpoint-dir file --once", ["file"]),
    ("evaluate --checkpoint-dir used", ["used", "notes.txt"]),
    # Texts that are no numbers, or that other programs read as other numbers.
    ("run --workers 010", ["--workers", "'010'", "plain digits"]),
    ("run --workers 1_0", ["--workers", "'1_0'", "plain digits"]),
    ("run --workers \uff13", ["--workers", "'\uff13'", "plain digits"]),
    (f"run --seed {'9' * 5000}", ["--seed", "5,000 digits"]),
    (f"run --epochs {'9' * 5000}", ["--epochs", "5,000 digits"]),
    ("run --epochs inf", ["--epochs", "'inf'"]),
    ("run --epochs 1e400", ["--epochs", "too large a number"]),
    ("run --epochs \u0663", ["--epochs", "'\u0663'", "plain digits"]),
    (f"run --straggler 2:{'9' * 400}x", ["cluster.straggler", "at most 200 characters"]),
    ("compare --target-score 1e-400x", ["--target-score", "'1e-400x'"]),
    (f"compare --modes {'async,' * 200}async", ["--modes", "201 values", "100"]),
    ("compare --modes async,sync,async,sync --seeds 100 --straggler " + ",".join(["none"] * 20), ["16,000 runs"]),
    ("bench --rounds 101", ["--rounds", "101"]),
    ("chaos --faults 5 --minutes 1", ["--faults", "--minutes"]),
    ("chaos --hosts 1", ["--hosts", "1"]),
    ("sweep --dataset synthetic", ["--vary", "nothing varies"]),
    ("sweep --vary optimizer.learning_rate", ["--vary", "section.key=values"]),
    ("sweep --vary training.seed=0,1 --method best", ["--method", "best"]),
    ("sweep --vary training.seed=0,1 --output used", ["--output", "used", "no sweep"]),
    ("sweep --vary training.seed=0,1 --output file", ["--output", "file"]),
    ("sweep --vary training.seed=0,1 --config settings.yaml", ["settings.yaml", "settings"]),
    ("ensemble --models mlp,alexnet --dataset synthetic", ["alexnet"]),
    ("ensemble --models mlp,mlp", ["--models", "twice"]),
    ("ensemble --split halves", ["--split", "halves"]),
    ("ensemble --dataset synthetic --output used", ["--output", "used", "no ensemble"]),
    ("run --set training.sample=shard:4/4", ["training.sample", "shard:4/4"]),
    ("simulate --workers 10,", ["--workers", "''"]),
    ("simulate --costs gone.yaml", ["gone.yaml", "can't be read"]),
    ("predict", ["EXAMPLES"]),
    ("export --to keras,kears", ["--to", "kears", "did you mean 'keras'"]),
    ("export --run used", ["used", "no config.yaml"]),
    ("predict file", ["--run", "'runs' has no run with a model"]),
    ("predict file --run used", ["used", "no config.yaml"]),
    ("predict file --format xml", ["--format", "xml"]),
    ("predict file --output used", ["--output", "used", "is a directory"]),
]


@pytest.mark.parametrize("row", [Row(*case) for case in CASES], ids=str)
def test_bad_option_is_told_in_one_line_and_leaves_nothing_behind(row, bad_folder, commands):
    assert_told(row, bad_folder, commands)


PARAMETERS = [(name, parameter) for name, command in all_commands() for parameter in command.params]


def test_every_option_that_is_a_number_or_is_written_has_the_strict_type():
    options = {(name, option.opts[0]): getattr(option.type, "one", option.type) for name, option in PARAMETERS}
    assert [key for key, kind in options.items() if isinstance(kind, click.types.FuncParamType)] == []
    lax = (click.types.IntParamType, click.types.FloatParamType)
    assert [
        key for key, kind in options.items() if isinstance(kind, lax) and not isinstance(kind, (Integer, Number))
    ] == []
    assert {key for key, kind in options.items() if isinstance(kind, OutputPath)} == {
        ("bench", "--output"), ("chaos", "--run-dir"), ("cluster show", "--json"), ("cluster show", "--svg"),
        ("compare", "--output"), ("data list", "--json"), ("data show", "--output"), ("doctor", "--json"),
        ("ensemble", "--output"), ("k8s render", "--output"), ("predict", "--output"),
        ("runs list", "--json"), ("runs page", "--output"), ("simulate", "--json"), ("simulate", "--save-costs"),
        ("slurm render", "--output"), ("sweep", "--output"), ("task", "--run-dir"),
    }, "that of run is made at once, and that of export is a folder or a file"  # fmt: skip


def test_every_option_takes_one_value_or_all_that_are_given():
    options = [
        (name, parameter.opts[0], type(parameter))
        for name, parameter in PARAMETERS
        if isinstance(parameter, click.Option) and not parameter.is_eager  # --help and the like take no value
    ]
    assert [where for *where, kind in options if kind is not SingleValueOption] == []


def test_an_option_that_is_given_twice_with_one_value_is_no_mistake(bad_folder, monkeypatch):
    monkeypatch.chdir(bad_folder)
    result = CliRunner().invoke(main, ["run", "--workers", "2", "--workers", "2", "--epochs", "0"])
    assert_one_line(result.exit_code, result.stderr, ["--epochs"])


def test_checkpoint_of_another_model_is_told_in_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _checkpoint_of_another_model(tmp_path / "run")
    before = set(tmp_path.rglob("*"))
    result = CliRunner().invoke(main, ["evaluate", "--once", "--checkpoint-dir", "run/checkpoints"])
    assert_one_line(result.exit_code, result.stderr, ["checkpoint"])
    assert set(tmp_path.rglob("*")) - before <= {tmp_path / "run/metrics/evaluation.lock"}


def test_it_is_the_same_in_a_process_of_its_own(bad_folder):
    before = set(bad_folder.rglob("*"))
    argv = [sys.executable, PROJECT / "cli.py", *["run", "--dataset", "cifar10", "--data-dir", "text"]]
    ended = subprocess.run(argv, capture_output=True, text=True, cwd=bad_folder)
    assert_one_line(ended.returncode, ended.stderr, [])
    assert set(bad_folder.rglob("*")) == before


@pytest.mark.parametrize(("words", "closed", "code"), [("runs", ">&-", 0), ("run --wrong", "2>&-", 2)])
def test_a_closed_standard_file_changes_no_exit_code(words, closed, code, tmp_path):
    command = f"{sys.executable} {PROJECT / 'cli.py'} {words} {closed}"
    ended = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True)
    assert ended.returncode == code and b"Traceback" not in ended.stderr
