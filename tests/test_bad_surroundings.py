"""What comes from around a command: TF_CONFIG, paths that can't be written, and characters that move the cursor."""

import json
import os
import subprocess
import sys

import pytest

from tests.helpers.bad_input import PROJECT, Row, assert_told, make_folder

CLUSTER = {"chief": ["a:1"], "ps": ["b:2"], "worker": ["c:3", "d:4"]}
TASK = "task --run-dir new --dataset synthetic --precision float32"
CURSOR_UP, BELL, BACK_TO_FRONT = "\x1b[1A\x1b[2K", "\x07", "\u202e"


def tf_config(cluster=CLUSTER, kind="worker", index=1, **more):
    return json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}, **more})


TF_CONFIGS = [  # tests/launch/test_topology.py has more, without the command
    ("", ["TF_CONFIG is not set"]),
    ('{"cluster": {"chief": ["a:1"], "chief": ["b:1"]}}', ["'chief'", "twice"]),
    ('{"task": {"index": NaN}}', ["NaN"]),
    ('{"task": {"index": 1e400}}', ["too large a number"]),
    (f'{{"task": {{"index": {"9" * 5000}}}}}', ["5,000 digits"]),
    ("[" * 100_000, ["nested too deep"]),
    (json.dumps({"task": {"type": "chief", "index": 0}}), ["'cluster' is missing"]),
    (tf_config(CLUSTER | {CURSOR_UP: ["x:1"]}), ["cluster: got chief, ps, worker, ?[1A?[2K"]),
    *(
        (tf_config(CLUSTER | {"ps": [address]}), ["cluster.ps.0", "host:port"])
        for address in ["b:0", "b:010", "b:２", "ｂ:2", "b:2x", ":2", "[::1:2", "[1.2.3.4]:5"]
    ),
    (tf_config(CLUSTER | {"ps": [f"{CURSOR_UP}b:2"]}), ["cluster.ps.0", "host:port"]),
    (tf_config({"worker": [f"h{n}:1" for n in range(500)]}, index=0), ["mode.name"]),
    (tf_config({"worker": [f"h{n}:1" for n in range(5000)]}, index=0), ["TF_CONFIG: cluster.workers: got 5000"]),
]
OF_TWO_WORKERS = [
    ("--set cluster.straggler=2:5x", ["cluster.straggler", "workers 0 to 1"]),
    ("--mode sync-ps --set mode.backup_workers=2", ["mode.backup_workers: got 2"]),
    ("--min-workers 3", ["--min-workers: got 3", "has 2 of type worker"]),
    ("--mode sync-ps --min-workers 1", ["--min-workers: got 1", "sync-ps keeps its number of workers"]),
    ("--type worker --index 0", ["--type: got worker, but no --cluster"]),
    ("--index 0", ["--index: got 0, but no --cluster"]),
]
BY_FILE = f"{TASK} --cluster cluster.yaml"
CLUSTER_FILES = [
    (f"{BY_FILE} --type worker", "worker: [c:3]", ["--cluster", "--type and --index too"]),
    (f"{BY_FILE} --index 0", "worker: [c:3]", ["--cluster", "--type and --index too"]),
    (f"{TASK} --cluster absent.yaml --type worker --index 0", "worker: [c:3]", ["absent.yaml", "can't be read"]),
    (f"{BY_FILE} --type worker --index 1", "worker: [c:3]", ["--index: got 1", "has 1 of type worker"]),
    (f"{BY_FILE} --type ps --index 0", "worker: [c:3]", ["--type: got 'ps'", "worker, evaluator"]),
    (f"{BY_FILE} --type wroker --index 0", "worker: [c:3]", ["--type", "'wroker'", "did you mean 'worker'"]),
    (f"{BY_FILE} --type worker --index -1", "worker: [c:3]", ["--index", "-1"]),
    (f"{BY_FILE} --type worker --index 0", "worker: [c:3", ["cluster.yaml", "is not YAML"]),
    (f"{BY_FILE} --type worker --index 0", "worker: &a [c:3]", ["cluster.yaml", "anchors"]),
    (f"{BY_FILE} --type worker --index 0", 'worker: ["\\e[1A\\e[2K:3"]', ["worker.0", "host:port"]),
    (f"{BY_FILE} --type worker --index 0", "worker: [c:3]", ["mode.name: got 'async'", "'cluster.yaml' has worker"]),
    (
        f"{BY_FILE} --type chief --index 0 --mode single --resume",
        "chief: [a:1]",
        ["--resume: got 'always'", "no check"],
    ),
]
SIMULATE = "simulate --workers 2 --ps 1"
IN_THE_WAY = [("file/below", "a file is in the way"), ("a" * 220, "too long a name")]
OTHER_FILES = [
    ("empty", "is a directory"), ("/proc/figures", "can't be written"), ("pipe", "a regular file"),
    ("deep/" * 700, "too long a name"),
]  # fmt: skip
OUTPUTS = [  # one command is tried with all bad places, the others with some of them
    *((f"{SIMULATE} --json {path}", ["--json", says]) for path, says in (*IN_THE_WAY, *OTHER_FILES)),
    *(
        (f"{command} {path}", [command.split()[-1], says])
        for command in ("bench --dataset synthetic --output", f"{SIMULATE} --save-costs")
        for path, says in (*IN_THE_WAY, OTHER_FILES[0])
    ),
    *(
        (f"{command} {path}", [command.split()[-1], says])
        for command in ("compare --dataset synthetic --output", "compare empty --output", "chaos --run-dir", TASK[:14])
        for path, says in (("file", "a file is in the way"), *IN_THE_WAY, ("/proc/x/y", "can't be written"))
    ),
]
LONG = "a" * 300
PATHS = [
    *((f"run --resume {path}", [path[:100]]) for path in ("loop", "loop/below", "~nobody-of-this-name/x", LONG)),
    *(
        (f"{command} {path}", [path[:100]])
        for command in (
            "evaluate --wait-seconds 0 --checkpoint-dir", "compare", "runs", "predict x --run", "export --run",
            "run --data-dir",
        )
        for path in ("loop/below", "~nobody-of-this-name/x", LONG)
    ),
    ("data list --data-dir ~nobody-of-this-name", ["~nobody-of-this-name"]),
    (f"run --model {LONG}.keras", [LONG]),
    ("run --dataset table:pipe.csv --target x", ["a regular file"]),
    ("run --dataset table:pipe.parquet --target x", ["a regular file"]),
]  # fmt: skip
NASTY = [
    (["run", "--data-dir", f"gone{CURSOR_UP}"], ["gone?[1A?[2K"]),
    (["run", "--data-dir", "gone[bold red]x[/bold red]:smile:"], ["gone[bold red]x[/bold red]:smile:"]),
    (["run", "--run-dir", f"file/x{BELL}"], ["'file/x?'", "a file is in the way"]),
    (["run", "--resume", f"gone{BACK_TO_FRONT}"], ["gone?"]),
    (["run", "--resume", "a\nError: b"], ["a Error: b"]),
    (["run", "--config", f"gone{CURSOR_UP}.yaml"], ["gone?[1A?[2K.yaml"]),
    (["run", f"--no{CURSOR_UP}"], ["--no"]),
    ([f"run{CURSOR_UP}"], ["run"]),
    (["run", "--set", f"cluster.x{CURSOR_UP}=3"], ["section.key=value"]),
    (["run", "--set", 'model.name="\\e[1A"'], ["model.name"]),
    (["run", "--straggler", f"2:5x{BACK_TO_FRONT}"], ["cluster.straggler"]),
    (["compare", f"gone{CURSOR_UP}"], ["gone?[1A?[2K"]),
    (["evaluate", "--checkpoint-dir", f"gone{CURSOR_UP}", "--once"], ["gone?[1A?[2K"]),
    (["simulate", "--json", f"file/x{CURSOR_UP}"], ["file/x?[1A?[2K"]),
    (["chaos", "--run-dir", f"file/{CURSOR_UP}"], ["file/?[1A?[2K"]),
    (["run", "--data-dir", "a" * 100_000], ["aaa"]),
    (["a" * 100_000], ["aaa"]),
]
ROWS = [
    *(Row(TASK, says, environment={"TF_CONFIG": text}) for text, says in TF_CONFIGS),
    *(Row(f"{TASK} {options}", says, environment={"TF_CONFIG": tf_config()}) for options, says in OF_TWO_WORKERS),
    *(Row(command, says, {"cluster.yaml": text}) for command, text, says in CLUSTER_FILES),
    *(Row(*case) for case in OUTPUTS + PATHS + NASTY),
    Row("run --config bad.yaml", ["cluster.?[1A"], {"bad.yaml": 'cluster: {"\\e[1A": 3}'}),
    Row("run --config bad.yaml", ["model.name", "1A"], {"bad.yaml": 'model: {name: "\\e[1A"}'}),
    Row("compare --config bad.yaml", ["?[1A"], {"bad.yaml": '"\\e[1A": 3'}),
]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_bad_surroundings_are_told_in_one_line_and_leave_nothing_behind(row, bad_folder, commands):
    assert_told(row, bad_folder, commands)


def test_an_output_that_can_be_written_is_not_made_before_there_is_something_to_write(bad_folder, commands):
    row = Row("bench --dataset synthetic --models alexnet --output new/folder/figures.json", ["--models", "alexnet"])
    assert_told(row, bad_folder, commands)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_told_at_once(tmp_path, commands):
    folder = make_folder(tmp_path / "here")
    (folder / "empty").chmod(0o555)
    assert_told(Row("simulate --json empty/figures.json", ["--json", "Permission denied"]), folder, commands)


def test_a_name_that_is_no_utf8_is_told_as_any_other(tmp_path):
    argv = [sys.executable, PROJECT / "cli.py", "run", "--data-dir", b"gone\xff"]
    ended = subprocess.run(argv, capture_output=True, cwd=tmp_path)
    assert ended.returncode == 2 and b"'gone?' does not exist" in ended.stderr and not list(tmp_path.iterdir())
