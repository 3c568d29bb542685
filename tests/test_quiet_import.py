"""TensorFlow's first lines are dropped, and all other lines that are printed meanwhile are kept."""

import os
import subprocess
import sys

import pytest

from tests.helpers.real_cluster import PROJECT

pytestmark = pytest.mark.slow

# Stands in for TensorFlow, whose import takes seconds. A library writes to descriptor 2 directly, not through Python.
IMPORTS = """
import os, sys
from ps_cluster.quiet_import import without_first_lines
with without_first_lines():
    os.write(2, b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\\n")
    os.write(2, b"I0000 port.cc:153] oneDNN custom operations are on. You may see\\n")
    os.write(2, b"E0000 a real error\\n")
    {then}
os.write(2, b"I0000 later: oneDNN custom operations are on\\n")
"""


def told(then: str = "pass", level: str = "2") -> tuple[int, list[str]]:
    code = IMPORTS.format(then=then)
    environment = {"TF_CPP_MIN_LOG_LEVEL": level, "PATH": "/usr/bin:/bin"}
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=30
    )
    return ended.returncode, ended.stderr.splitlines()


def test_the_lines_that_nobody_can_switch_off_are_kept_back_and_errors_pass():
    assert told() == (0, ["E0000 a real error", "I0000 later: oneDNN custom operations are on"])


def test_the_last_words_of_a_library_that_crashes_while_it_is_loaded_are_seen():
    code, lines = told('os.write(2, b"F0000 this processor has no AVX\\n"); os.abort()')
    assert code == -6 and lines == ["E0000 a real error", "F0000 this processor has no AVX"]


def test_an_import_that_fails_is_told_as_ever():
    code, lines = told('raise ImportError("no such library")')
    assert code == 1 and lines[0] == "E0000 a real error" and lines[-1] == "ImportError: no such library"


def test_who_asks_for_more_lines_gets_all():
    assert len(told(level="0")[1]) == 4


def test_nothing_is_done_where_tensorflow_is_imported_already():
    assert len(told()[1]) == 2
    code = IMPORTS.format(then="pass").replace("import os, sys", "import os, sys; sys.modules['tensorflow'] = sys")
    ended = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, timeout=30)
    assert len(ended.stderr.splitlines()) == 4


def test_a_task_imports_tensorflow_without_what_keras_takes_only_where_it_is_there_and_can_use_it_later():
    code = """
import gc, sys
from ps_cluster.quiet_import import import_tensorflow
import_tensorflow()
print("tensorflow" in sys.modules, {"matplotlib", "pandas"} & set(sys.modules), gc.isenabled())
import matplotlib.pyplot, pandas, keras
print(keras.Sequential([keras.layers.Dense(2)])(pandas.DataFrame([[1.0]]).to_numpy()).shape)
"""
    ended = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, timeout=60)
    assert ended.stdout.splitlines() == ["True set() True", "(1, 2)"], ended.stderr


def test_a_file_of_a_user_that_imports_keras_prints_nothing_of_its_own_accord(tmp_path):
    (tmp_path / "my.py").write_text(
        "import keras\nimport os\nos.write(2, b'E0000 a real error\\n')\ndef build(): ...\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    code = (
        "import sys; from pathlib import Path; from ps_cluster.config.networks import NETWORKS; "
        "NETWORKS[NETWORKS.allow_code_of(sys.argv[1], Path())]"
    )
    argv = [sys.executable, "-c", code, tmp_path / "my.py:build"]
    ended = subprocess.run(argv, cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=100)
    assert (ended.returncode, ended.stderr) == (0, "E0000 a real error\n")
