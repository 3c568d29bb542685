"""What users get wrong: one line on stderr that names it, exit code 2, and nothing left behind."""

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from cli import cli
from ps_cluster.config import build_config
from ps_cluster.data.packed import write_packed
from ps_cluster.rows.checkpoint import Meta
from ps_cluster.run_dir import RunDir, write_json
from ps_cluster.training import checkpoints

PROJECT = Path(__file__).parents[1]


def _archive_of_wrong_shape(path: Path) -> None:
    import pickle

    batch = pickle.dumps({b"data": np.zeros([10, 10], np.uint8), b"labels": [0] * 10}, protocol=2)
    with tarfile.open(path, "w:gz") as archive:
        member = tarfile.TarInfo("cifar-10-batches-py/data_batch_1")
        member.size = len(batch)
        archive.addfile(member, io.BytesIO(batch))


def _checkpoint_of_another_model(run_root: Path) -> None:
    """A run of tutorial_cnn whose checkpoint has far too few weights."""
    run_dir = RunDir.create(run_root)
    images, labels = np.zeros([20, 32, 32, 3], np.uint8), np.zeros([20], np.uint8)
    dataset = write_packed(run_root / "data", "synthetic", tuple("abcdefghij"), (images, labels, images, labels))
    config = build_config(
        None, {"model.name": "tutorial_cnn", "model.precision": "float32", "data.dataset": "synthetic"}
    )
    run_dir.config.write_text(config.to_yaml())
    write_json(run_dir.dataset, {"name": "synthetic", "kind": "synthetic", "directory": str(dataset.directory)})
    arrays = {"weights": np.zeros([7], np.float32), "statistics": np.zeros([0], np.float32)}
    checkpoints.save(
        run_dir.checkpoints, checkpoints.Checkpoint(1, arrays, Meta(config=config.model_dump(mode="json"))), keep=1
    )


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with everything that can be wrong in it; caches and home are elsewhere."""
    monkeypatch.setenv("PS_CLUSTER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    monkeypatch.delenv("TF_CONFIG", raising=False)
    folder = tmp_path / "here"
    (folder / "empty").mkdir(parents=True)
    (folder / "used").mkdir()
    (folder / "used/notes.txt").write_text("mine")
    (folder / "file").write_text("a file")
    (folder / "not.yaml").write_text("cluster: [1, 2\n  workers: {")
    (folder / "list.yaml").write_text("- 1\n- 2\n")
    (folder / "unknown.yaml").write_text("cluster: {wrokers: 2}\n")
    (folder / "type.yaml").write_text("cluster: {workers: many}\n")
    (folder / "section.yaml").write_text("cluster: 3\n")
    (folder / "target.yaml").write_text("target_accuracy: .nan\n")
    (folder / "settings.yaml").write_text("settings: [1, 2]\n")
    (folder / "training.yaml").write_text("settings: {training: }\n")
    (folder / "fine.yaml").write_text("cluster: {workers: 2}\n")
    (folder / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    for name, content in (("text", b"no archive"), ("none", b"")):
        (folder / name).mkdir()
        (folder / name / "cifar-10-python.tar.gz").write_bytes(content)
    (folder / "shapes").mkdir()
    _archive_of_wrong_shape(folder / "shapes/cifar-10-python.tar.gz")
    (folder / "short").mkdir()
    whole = (folder / "shapes/cifar-10-python.tar.gz").read_bytes()
    (folder / "short/cifar-10-python.tar.gz").write_bytes(whole[: len(whole) // 2])
    monkeypatch.chdir(folder)
    return folder


def contents(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


CASES = [
    ("run --workers 0", ["--workers", "0"]),
    ("run --workers -1", ["--workers", "-1"]),
    ("run --workers 9", ["cluster.workers", "9", "at most 8"]),
    ("run --workers two", ["--workers", "two"]),
    ("run --workers 1.5", ["--workers", "1.5"]),
    ("run --workers", ["--workers", "requires an argument"]),
    ("run --ps 0", ["--ps", "0"]),
    ("run --ps -1", ["--ps", "-1"]),
    ("run --ps 5", ["cluster.parameter_servers", "5", "at most 4"]),
    ("run --mode asink", ["--mode", "asink"]),
    ("run --dataset mnist", ["--dataset", "mnist"]),
    ("run --model alexnet", ["--model", "alexnet"]),
    ("run --precision float16", ["--precision", "float16"]),
    ("run --steps 0", ["--steps", "0"]),
    ("run --epochs 0", ["--epochs", "0"]),
    ("run --epochs nan", ["epochs", "nan"]),
    ("run --set training.epochs=2024-13-45", ["training.epochs=2024-13-45", "not YAML"]),
    ("run --set data.augmentation=none --set data.augmentation.flip=none", ["data.augmentation.flip", "'none'"]),
    ("run --epochs 1 --steps 5", ["--epochs", "--steps"]),
    ("run --batch-size 0", ["--batch-size", "0"]),
    ("run --seed -1", ["--seed", "-1"]),
    ("run --worker-count 3", ["--worker-count"]),
    ("run surplus", ["surplus"]),
    ("walk", ["walk"]),
    ("run --straggler 5x", ["cluster.straggler", "5x", "write 2:5x"]),
    ("run --straggler 3:5x", ["cluster.straggler", "workers 0 to 2"]),
    ("run --mode single --straggler 2:5x", ["cluster.straggler", "single"]),
    ("run --max-staleness -1", ["--max-staleness", "-1"]),
    ("run --max-clock-lag -1", ["--max-clock-lag", "-1"]),
    ("run --mode bounded --set training.max_clock_lag=few", ["training.max_clock_lag", "'few'"]),
    ("run --mode bounded --ps 2", ["cluster.parameter_servers", "2", "bounded"]),
    ("run --mode sync-ps --ps 2", ["cluster.parameter_servers", "2", "sync-ps"]),
    ("run --backup-workers 1", ["training.backup_workers", "1", "sync-ps"]),
    ("run --mode sync-ps --backup-workers 3", ["training.backup_workers", "3"]),
    ("run --simulate-workers 2", ["training.simulate_workers", "2", "cluster.workers"]),
    ("run --mode sync --simulate-workers 9", ["training.simulate_workers", "9"]),
    ("run --staleness-method magic", ["--staleness-method", "magic"]),
    ("run --mode sync --staleness-method inverse", ["training.staleness_method", "inverse", "async"]),
    ("run --mode elastic", ["optimizer.rule", "nesterov", "sgd"]),
    ("compare --dataset synthetic --workers 9", ["cluster.workers", "9", "at most 8"]),
    ("compare --modes async,asink", ["arms.1.mode", "asink"]),
    ("compare --seeds 0", ["--seeds", "0"]),
    ("compare --batches same", ["batches", "same"]),
    ("compare --steps 10", ["training.steps", "training.epochs"]),
    ("compare --straggler none,slow", ["--straggler", "slow", "write 2:5x"]),
    ("compare --modes single --straggler 2:5x", ["--straggler", "2:5x"]),
    ("compare --target-accuracy nan", ["--target-accuracy", "nan"]),
    ("compare --config target.yaml", ["target.yaml", "target_accuracy"]),
    ("compare --config settings.yaml", ["settings.yaml", "settings"]),
    ("compare --config training.yaml", ["training", "None"]),
    ("chaos --minutes nan", ["--minutes", "nan"]),
    ("chaos --minutes inf", ["--minutes", "inf"]),
    ("simulate --link-gbps nan", ["--link-gbps", "nan"]),
    ("simulate --latency-us inf", ["--latency-us", "inf"]),
    ("compare --target-accuracy 2", ["--target-accuracy", "2"]),
    ("compare --dataset synthetic --output used", ["--output", "used"]),
    ("compare --config unknown.yaml", ["unknown.yaml", "cluster"]),
    ("compare --config list.yaml", ["list.yaml", "list"]),
    ("compare --set cluster.wrokers=3", ["cluster.wrokers"]),
    ("compare --dataset cifar10 --data-dir absent", ["'absent'", "does not exist"]),
    ("compare used", ["used"]),
    ("compare used --seeds 2", ["--output", "--force"]),
    ("run --set workers", ["--set", "workers"]),
    ("run --set cluster.wrokers=3", ["cluster.wrokers"]),
    ("run --set cluster.workers=many", ["cluster.workers", "many"]),
    ("run --set optimizer.momentum=1.5", ["optimizer.momentum", "1.5"]),
    ("run --set optimizer.momentum=[", ["--set", "not YAML"]),
    ("run --config absent.yaml", ["absent.yaml", "No such file"]),
    ("run --config empty", ["'empty'", "directory"]),
    ("run --config not.yaml", ["not.yaml", "not YAML"]),
    ("run --config binary.yaml", ["binary.yaml", "not YAML"]),
    ("run --config list.yaml", ["list.yaml", "list"]),
    ("run --config unknown.yaml", ["unknown.yaml", "cluster.wrokers"]),
    ("run --config type.yaml", ["type.yaml", "cluster.workers", "many"]),
    ("run --config section.yaml", ["section.yaml", "cluster", "3"]),
    ("run --config fine.yaml --set cluster.workers=0", ["options: cluster.workers", "0"]),
    ("run --dataset cifar10 --data-dir absent", ["'absent'", "does not exist"]),
    ("run --data-dir absent", ["'absent'", "does not exist"]),
    ("run --dataset cifar10 --data-dir empty", ["'empty'", "holds no CIFAR-10"]),
    ("run --dataset cifar10 --data-dir none", ["none/cifar-10-python.tar.gz", "not CIFAR-10"]),
    ("run --dataset cifar10 --data-dir short", ["short/cifar-10-python.tar.gz", "not CIFAR-10"]),
    ("run --dataset cifar10 --data-dir text", ["text/cifar-10-python.tar.gz", "not CIFAR-10"]),
    ("run --dataset cifar10 --data-dir file", ["'file'", "not CIFAR-10"]),
    ("run --dataset cifar10 --data-dir shapes", ["data_batch_1", "[10, 10]"]),
    ("run --dataset cifar10 --data-dir absent --run-dir new/deep", ["'absent'"]),
    ("run --dataset cifar10 --data-dir absent --run-dir empty", ["'absent'"]),
    ("run --dataset synthetic --data-dir empty", ["'empty'", "synthetic"]),
    ("run --run-dir used", ["'used'", "not empty"]),
    ("run --run-dir file", ["'file'", "a file is in the way"]),
    ("run --run-dir file/below", ["'file/below'", "a file is in the way"]),
    ("run --run-dir /proc/run", ["'/proc/run'", "can't be"]),
    ("run --resume absent", ["'absent'", "config.yaml"]),
    ("run --resume used", ["'used'", "config.yaml"]),
    ("run --resume used --workers 2", ["--resume", "--workers"]),
    ("run --resume used --run-dir new", ["--resume", "--run-dir"]),
    ("data --dataset mnist", ["--dataset", "mnist"]),
    ("data --dataset cifar10 --data-dir empty", ["'empty'", "holds no CIFAR-10"]),
    ("task --run-dir new", ["TF_CONFIG is not set"]),
    ("bench --arms single,horovod", ["--arms", "horovod", "single, cluster"]),
    ("bench --arms single,ddp", ["--arms", "ddp", "--ddp-python", "requirements-ddp.txt"]),
    ("bench --arms ddp --ddp-python absent/python", ["--ddp-python", "absent/python", "torch"]),
    ("bench --arms torch_single --ddp-python file", ["--ddp-python", "file", "torch"]),
    ("bench --straggler slow", ["--straggler", "slow", "write 2:5x"]),
    ("bench --straggler 1:+0.2s", ["--straggler", "1:+0.2s", "2:5x"]),
    ("bench --arms single --straggler 2:5x", ["--straggler", "2:5x", "cluster or sync"]),
    ("bench --dataset synthetic --straggler 3:5x", ["cluster.straggler", "3:5x", "workers 0 to 2"]),
    ("bench --dataset synthetic --models alexnet", ["model.name", "alexnet"]),
    ("bench --dataset synthetic --set training.steps=null", ["training.steps", "null"]),
    ("bench --dataset synthetic --set cluster.workers=9", ["cluster.workers", "9", "at most 8"]),
    ("bench --set cluster.wrokers=3", ["cluster.wrokers"]),
    ("evaluate", ["--checkpoint-dir"]),
    ("evaluate --checkpoint-dir empty --once", ["empty", "no checkpoint"]),
    ("evaluate --checkpoint-dir absent --once", ["absent", "does not exist"]),
    ("evaluate --checkpoint-dir file --once", ["file"]),
    ("evaluate --checkpoint-dir used", ["used", "notes.txt"]),
]


@pytest.mark.parametrize(("command", "says"), CASES, ids=[command for command, _ in CASES])
def test_bad_input_is_told_in_one_line_and_leaves_nothing_behind(folder, command, says):
    before = contents(folder)
    result = CliRunner().invoke(cli, command.split())
    assert_one_line(result.exit_code, result.stderr, says)
    assert contents(folder) == before


def test_checkpoint_of_another_model_is_told_in_one_line(folder):
    _checkpoint_of_another_model(folder / "run")
    before = contents(folder)
    result = CliRunner().invoke(cli, ["evaluate", "--once", "--checkpoint-dir", "run/checkpoints"])
    assert_one_line(result.exit_code, result.stderr, ["checkpoint"])
    assert contents(folder) - before <= {folder / "run/metrics/evaluation.lock"}


@pytest.mark.parametrize(
    "command",
    ["run --workers 0", "run --config type.yaml", "run --dataset cifar10 --data-dir text", "run --run-dir used"],
)
def test_it_is_the_same_in_a_process_of_its_own(folder, command):
    before = contents(folder)
    ended = subprocess.run(
        [sys.executable, PROJECT / "cli.py", *command.split()], capture_output=True, text=True, env=dict(os.environ)
    )
    assert_one_line(ended.returncode, ended.stderr, [])
    assert contents(folder) == before


def test_run_directory_that_could_not_be_used_is_found_before_data_is_looked_for(folder):
    result = CliRunner().invoke(cli, ["run", "--dataset", "cifar10", "--data-dir", "absent", "--run-dir", "used"])
    assert "'used'" in result.stderr


def assert_one_line(exit_code: int, stderr: str, says: list[str]) -> None:
    assert exit_code == 2, stderr
    assert stderr.startswith("Error: ") and stderr.endswith("\n") and stderr.count("\n") == 1, stderr
    assert "Traceback" not in stderr
    for part in says:
        assert part in stderr, stderr
