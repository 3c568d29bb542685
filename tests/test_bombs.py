"""Input that is short and would take the machine's memory or days: refused in bounded memory and time, in one line."""

import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ps_cluster.files.reading import most_memory
from ps_cluster.files.yaml_files import MOST_BYTES
from tests.helpers.bad_input import MOST_MEMORY, PROJECT, Row, assert_one_line, assert_told, make_folder
from tests.helpers.own_data import save_hugging_face

pytestmark = pytest.mark.slow


# Eleven lines that stand for ten thousand million values, because each line refers ten times to the one before it.
LAUGHS = "\n".join(["a0: &a0 [lol]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 11))])


def slow_pattern(pattern: str) -> str:
    return f"optimizer: {{learning_rate_factors: [{{match: '{pattern}', factor: 1}}]}}"


YAML = [
    (LAUGHS, ["anchors and aliases"]),
    ("[" * (MOST_BYTES - 1), ["nested deeper than 20"]),
    ("{" * (MOST_BYTES - 1), ["nested deeper than 20"]),
    ("- " * (MOST_BYTES // 2 - 1), ["nested deeper than 20"]),
    ("? " * (MOST_BYTES // 2 - 1), ["nested deeper than 20"]),
    ("\n".join(" " * n + "a:" for n in range(300)), ["nested deeper than 20"]),
    (f"training: {{epochs: {'9' * 60_000}}}", ["60,000 digits"]),
    (f"training: {{epochs: 1e{'9' * 60_000}}}", ["60,002 digits"]),
    (f"training: {{epochs: {'1:' * 30_000}1}}", ["plain decimal"]),
    (f"training: {{epochs: {'1_' * 30_000}x}}", ["training.epochs"]),
    (f"cluster: {{straggler: '{';'.join(f'{n}:2x' for n in range(6000))}'}}", ["cluster.straggler"]),
    (f"cluster: {{{', '.join(f'k{n}: 1' for n in range(6000))}}}", ["unknown key"]),
    (f"? {'k' * 60_000}\n: 1", ["unknown key"]),
    (f"data: {{data_dir: {'d/' * 30_000}}}", ["does not exist"]),
    (slow_pattern("*a" * 60), ["learning_rate_factors.0.match", "at most 100 characters"]),
    (slow_pattern("a" * 60_000), ["learning_rate_factors.0.match", "at most 100 characters"]),
    ("# " + "x" * 10_000_000, ["more than 65,536 bytes"]),
]
COMPARISONS = [
    (f"arms: [{', '.join(['{mode: async}'] * 3000)}]", ["arms", "at most 100 items"]),
    (f"stragglers: [{', '.join(['none'] * 9000)}]", ["stragglers", "at most 20 items"]),
    (f"seeds: 100\narms: [{', '.join(['{mode: async}'] * 100)}]", ["20,000 runs", "2,000"]),
]
ASSIGNMENTS = ["[" * 60_000, "{" * 60_000, LAUGHS, "9" * 60_000, "a" * 100_000]
ROWS = [
    *(Row("run --config bad.yaml", says, {"bad.yaml": text}) for text, says in YAML),
    *(Row("compare --dataset synthetic --config bad.yaml", says, {"bad.yaml": text}) for text, says in COMPARISONS),
    *(Row(["run", "--set", f"model.name={text}"], ["--set 'model.name="]) for text in ASSIGNMENTS),
    Row("run --config pipe", ["'pipe'", "a regular file"]),
    Row("run --config /dev/zero", ["'/dev/zero'", "a regular file"]),
    Row("simulate --workers " + ",".join(["10000"] * 101), ["--workers", "101 values"]),
    Row("run --straggler " + ";".join(f"{n}:2x" for n in range(9000)), ["cluster.straggler"]),
]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_bomb_is_told_in_one_line_in_bounded_memory_and_time(row, tmp_path, commands):
    assert_told(row, make_folder(tmp_path / "here"), commands)


def test_a_file_of_a_terabyte_is_not_read(tmp_path, commands):
    folder = make_folder(tmp_path / "here")
    with (folder / "large.yaml").open("wb") as file:
        file.truncate(2**40)
    assert_told(Row("run --config large.yaml", ["'large.yaml'", "more than 65,536 bytes"]), folder, commands)


# Another process starts the command, because the memory peak of a child of pytest begins at pytest's own peak.
MEASURED = """
import resource, subprocess, sys
done = subprocess.run(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(done.returncode)
"""


def one_long_text(path):
    """1,100 bytes of Parquet: 200 rows that are one text of 20 MB."""
    text = pa.DictionaryArray.from_arrays(pa.array([0] * 200, pa.int32()), ["a" * (20 * 2**20)])
    columns = pa.table({"text": text, "label": range(200)})
    pq.write_table(columns, path, compression="zstd", store_schema=False, write_statistics=False)


def many_columns(path):
    path.write_text("\n".join(",".join(f"{begin}{n}" for n in range(150_001)) for begin in ("c", "", "")))


def many_zeros(path):
    """A folder of Hugging Face with 2.4 GB of zeros in 300 kB."""
    batch = pa.record_batch({"x": np.zeros(2**22), "label": np.zeros(2**22, np.int8)})
    save_hugging_face(path, {}, *[batch] * 64, options=pa.ipc.IpcWriteOptions(compression="zstd"))


@pytest.mark.parametrize(
    ("make", "name", "told"),
    [
        (one_long_text, "a.parquet", " bytes takes more than 1.1 GB of memory, the limit for this size"),
        (many_columns, "a.csv", "'a.csv' has 150,001 columns"),
        (many_zeros, "a", "of memory, the limit for this size"),
    ],
)
def test_small_data_that_would_fill_the_memory_is_refused(tmp_path, make, name, told):
    make(tmp_path / name)
    command = ["cli.py", "data", "show", str(tmp_path / name), "--set", "data.target=label"]
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, sys.executable, *command], cwd=PROJECT, capture_output=True, text=True,
        env=os.environ | {"PS_CLUSTER_CACHE": str(tmp_path / "cache")},
    )  # fmt: skip
    assert_one_line(done.returncode, done.stderr.rpartition("once\n")[2], [told])
    assert int(done.stdout.splitlines()[-1]) * 2**10 < most_memory(0) + MOST_MEMORY


WITH_ARROW = """
import sys
import psutil, pyarrow, pyarrow.csv
from ps_cluster.files.reading import bounded_memory
pool = pyarrow.default_memory_pool().backend_name
with bounded_memory(10_000_000):
    before = psutil.Process().memory_info().data
    assert pyarrow.csv.read_csv(sys.argv[1]).num_rows == 1
    assert psutil.Process().memory_info().data - before < 2**29
assert pyarrow.default_memory_pool().backend_name == pool
"""


def test_a_small_table_can_be_read_where_arrow_was_imported_before(tmp_path):
    """Keras imports Arrow. Arrow's usual pool would then reserve all the memory that the limit allows."""
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    subprocess.run([sys.executable, "-c", WITH_ARROW, str(tmp_path / "a.csv")], check=True, timeout=60)
