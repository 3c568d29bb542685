"""One arm, as a process in a folder of its own."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from ps_cluster.config import build_config
from ps_cluster.errors import RunFailed
from ps_cluster.installation import IMPORT_FOLDER
from ps_cluster.tools.bench import running
from ps_cluster.tools.bench.arms import BenchArm
from tests.helpers.data import only_named
from tests.helpers.processes import assert_none_left, wait_until

pytestmark = pytest.mark.slow

PRINTS = "print('first'); print('{\"examples_per_second\": %s}')"


@pytest.fixture
def scripted(tmp_path, monkeypatch):
    """scripted(code) → an arm whose module is `code`, and whose files are in `tmp_path`."""

    def arm(code, **of_arm):
        (tmp_path / "scripted.py").write_text(code)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(IMPORT_FOLDER)]))
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        return BenchArm("scripted", "scripted", **of_arm)

    return arm


def run(arm, **options):
    return running.rate_of(arm, build_config(), only_named("synthetic"), **options)


def test_an_arm_that_succeeds_leaves_nothing_whether_it_has_a_rate_or_not(scripted, tmp_path):
    assert run(scripted(PRINTS % 3.5)) == 3.5
    assert run(scripted(PRINTS % "null")) is None
    assert not list(tmp_path.glob("ps_cluster-bench-*"))


def test_an_arm_that_fails_is_one_line_and_leaves_its_files_to_read(scripted):
    with pytest.raises(RunFailed, match="arm scripted failed with exit code 1: ValueError: why; its files: ") as failed:
        run(scripted("raise ValueError('why')"))
    folder = Path(str(failed.value).rpartition(": ")[2])
    assert "Traceback" in (folder / "stderr").read_text() and (folder / "run/config.yaml").is_file()


def test_a_python_of_its_own_finds_this_package_and_nothing_that_lies_beside_it(scripted):
    """Installed, numpy lies beside it."""
    only_this = "import os, ps_cluster.tools.bench; assert os.listdir() == ['ps_cluster'], os.listdir(); "
    assert run(scripted(only_this + PRINTS % 1.0, torch=True)) == 1.0


def test_an_arm_that_does_not_end_is_ended(scripted, tmp_path):
    with pytest.raises(RunFailed, match="arm scripted had not ended after 0.5 s"):
        run(scripted("import time; time.sleep(60)"), timeout_s=0.5)
    assert_none_left(tmp_path, within_s=0)


def test_a_killed_benchmark_leaves_no_arm_behind(tmp_path):
    """The arm is a module that shows that it has started, and sleeps."""
    (tmp_path / "sleeper.py").write_text(
        "import pathlib, sys, time\npathlib.Path(sys.argv[2]).touch()\ntime.sleep(60)\n"
    )
    code = (
        "import sys; from ps_cluster.tools.bench import running; from ps_cluster.tools.bench.arms import BenchArm\n"
        "from ps_cluster.config import build_config; from tests.helpers.data import only_named\n"
        "arm = BenchArm('sleeper', 'sleeper', arguments=(sys.argv[1],))\n"
        "running.rate_of(arm, build_config(), only_named(train=1, test=1))\n"
    )
    started = tmp_path / "there"
    path = os.pathsep.join([str(tmp_path), str(IMPORT_FOLDER)])
    bench = subprocess.Popen(
        [sys.executable, "-c", code, started], env=os.environ | {"PYTHONPATH": path, "TMPDIR": str(tmp_path)}
    )
    try:
        wait_until(started.exists)
    finally:
        bench.kill()
        bench.wait()
    assert_none_left(tmp_path)
