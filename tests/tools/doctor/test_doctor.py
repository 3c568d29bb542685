"""Each check of `doctor` on a machine as the test describes it, and the command that runs all checks."""

import json
import sys
import threading
from importlib import metadata

import pytest
from click.testing import CliRunner

from ps_cluster.cli.main import main
from ps_cluster.system.limits import Allowance, FreeMemory
from ps_cluster.tools.doctor import command
from ps_cluster.tools.doctor.command import all_checks
from ps_cluster.tools.doctor.finding import Check, Status, as_json, examine, ok, warn
from ps_cluster.tools.doctor.gpu_checks import gpus
from ps_cluster.tools.doctor.installation_checks import (
    data_set,
    ignored_settings,
    locked_versions,
    python_version,
    tensorflow_import,
)
from ps_cluster.tools.doctor.machine_checks import GB, free_disk, memory, ports, processor, user_namespaces
from ps_cluster.tools.doctor.trial import trial_cluster
from tests.helpers.processes import assert_none_left

OK, WARN, FAIL = Status.OK, Status.WARN, Status.FAIL


def answer(found, status, *message):
    assert found.status is status, found
    assert bool(found.todo) == (status is not OK)
    assert all(part in f"{found.message} {found.todo}" for part in message), found
    return found


@pytest.mark.parametrize(
    ("version", "status"), [((3, 11, 0), OK), ((3, 13, 9), OK), ((3, 10, 4), FAIL), ((3, 14, 0), FAIL)]
)
def test_python_is_held_against_the_versions_that_are_supported(version, status):
    answer(python_version(version), status, ".".join(map(str, version)))


def test_wishes_of_the_environment_that_tasks_do_not_fulfil_are_told(tmp_path):
    nothing = {"KERAS_HOME": str(tmp_path)}
    answer(ignored_settings(nothing), OK, "no settings are ignored")
    answer(
        ignored_settings(nothing | {"KERAS_BACKEND": "jax"}), WARN, "KERAS_BACKEND=jax is not used: tasks compute with"
    )


MULTIPLY = (sys.executable, "-m", "ps_cluster.tools.doctor.gpu_checks")


def test_without_a_gpu_nothing_is_multiplied():
    answer(gpus((), argv=("no-such-program",)), OK, "none, so training runs on the CPU")


def test_a_matrix_is_multiplied_on_each_device():
    # The processor is the only device that each machine has.
    answer(gpus(("0",), argv=(*MULTIPLY, "CPU")), OK, "CPU:0 multiplies in ", " ms; run --gpus auto uses them")


def prints(*lines, code=0):
    return (sys.executable, "-c", f"import sys; print({chr(10).join(lines)!r}); sys.exit({code})")


GOOD = '{"name": "GPU:0", "model": "A100", "ms": 0.25, "error": 1e-6}'
WRONG = '{"name": "GPU:1", "model": "A100", "ms": 0.25, "error": 0.5}'


@pytest.mark.parametrize(
    ("devices", "argv", "status", "message"),
    [
        (("0",), prints(GOOD), OK, ["GPU:0 A100 multiplies in 0.2 ms"]),
        (("0",), prints(), WARN, ["1 GPU, and TensorFlow sees none", "pip install 'tensorflow[and-cuda]=="]),
        (("0", "1"), prints(GOOD), WARN, ["2 GPUs, of which TensorFlow sees 1"]),
        (("0", "1"), prints(GOOD, WRONG), FAIL, ["the product of GPU:1 is wrong"]),
        (("0",), prints(GOOD.replace("1e-6", "NaN")), FAIL, ["the product of GPU:0 is wrong"]),
        (("0",), (sys.executable, "-c", "raise SystemExit('no kernel image')"), FAIL, ["1 GPU: no kernel image"]),
    ],
)
def test_gpus_that_tensorflow_does_not_see_or_that_compute_something_else_are_told(devices, argv, status, message):
    answer(gpus(devices, argv), status, *message)


LOCK = """# a comment
absl-py==2.5.1 \\
    --hash=sha256:28
tensorflow-cpu==2.21.0 \\
    --hash=sha256:31
numpy==2.4.0 ; python_full_version >= '3.11' \\
    --hash=sha256:29
winonly==1.0 ; sys_platform == 'win32' \\
    --hash=sha256:30
"""


@pytest.mark.parametrize(
    ("installed", "status", "message"),
    [
        ({"absl-py": "2.5.1", "numpy": "2.4.0", "tensorflow-cpu": "2.21.0"}, OK, "all 3 packages"),
        ({"absl-py": "2.5.1", "numpy": "2.4.0", "tensorflow": "2.21.0"}, OK, "all 3 packages"),  # with CUDA
        ({"absl-py": "2.5.1", "numpy": "2.3.0", "tensorflow-cpu": "2.21.0"}, WARN, "1 of 3 packages differ from"),
        ({"absl-py": "2.5.1", "tensorflow": "2.20.0"}, WARN, "2.20.0 instead of 2.21.0, numpy 2.4.0 is missing"),
    ],
)
def test_versions_are_held_against_the_lock_of_this_system(tmp_path, installed, status, message):
    def version_of(name):
        if name not in installed:
            raise metadata.PackageNotFoundError(name)
        return installed[name]

    (tmp_path / "lock.txt").write_text(LOCK)
    answer(locked_versions(tmp_path / "lock.txt", version_of), status, message)
    answer(locked_versions(tmp_path / "absent.txt", version_of), OK, "no file of locked versions")


def test_tensorflow_that_can_not_be_imported_or_hangs_has_failed():
    answer(tensorflow_import((sys.executable, "-c", "print('2.21.0')")), OK, "2.21.0")
    answer(tensorflow_import((sys.executable, "-c", "raise ImportError('no AVX')")), FAIL, "ImportError: no AVX")
    answer(tensorflow_import(("sleep", "60"), timeout_s=0.1), FAIL, "not imported within 0.1 s")


@pytest.mark.parametrize(
    ("flags", "allowed", "status", "message"),
    [
        ("avx avx512_bf16", Allowance(4), OK, "precision auto is bfloat16"),
        ("avx", Allowance(4), OK, "precision auto is float32, as the processor has no instructions for bfloat16"),
        ("avx", Allowance(1), WARN, "second core"),
        ("avx", Allowance(4, 1.5), WARN, "2 cores: precision auto is float32"),
        (
            "avx",
            Allowance(4, 1.5),
            WARN,
            "raise the CPU limit of the container: it may use only a part of its 4 processors",
        ),
        ("sse2", Allowance(4), FAIL, "no AVX"),
    ],
)
def test_the_processor_is_told_with_the_precision_that_it_gives(tmp_path, flags, allowed, status, message):
    (tmp_path / "cpuinfo").write_text(f"model name : Some Processor\nflags : {flags}\n")
    answer(processor(tmp_path / "cpuinfo", allowed), status, message)


@pytest.mark.parametrize(
    ("limit", "free", "status"), [(None, 8, OK), (None, 1.2, WARN), (int(1.2 * GB), 8, WARN), (None, 0.2, FAIL)]
)
def test_memory_is_enough_for_the_default_run_or_for_a_smaller_one(limit, free, status):
    answer(memory(FreeMemory(int(free * GB), limit)), status, "the default run takes about 3.1 GB")


def test_the_disk_with_the_least_room_is_told_and_a_folder_that_can_not_be_written_fails(tmp_path):
    free = {tmp_path / "a": 5 * GB, tmp_path / "b": GB // 2}
    for folder in free:
        folder.mkdir()
    answer(free_disk(list(free), free.__getitem__), WARN, "0.5 GB", "/b")
    answer(free_disk([tmp_path / "a"], free.__getitem__), OK, "5.0 GB")
    answer(free_disk([tmp_path / "a"], lambda path: 1000), FAIL, "0.0 GB")
    (tmp_path / "file").touch()
    answer(free_disk([tmp_path / "file" / "runs"], lambda path: GB), FAIL, "a file is in the way")


def test_ports_that_can_not_be_opened_have_failed():
    answer(ports(), OK, "13 ports of 127.0.0.1")
    answer(ports(host="192.0.2.1"), FAIL, "no connection to 192.0.2.1")  # TEST-NET-1 of RFC 5737: nobody's


def test_a_system_without_user_namespaces_is_a_warning_that_says_who_gets_in():
    refuses = (sys.executable, "-c", "raise SystemExit('private network: not allowed')")
    answer(user_namespaces(refuses), WARN, "not isolated", "private network: not allowed", "max_user_namespaces")


def test_data_that_is_not_here_is_a_warning_and_an_archive_is_enough(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    answer(data_set(tmp_path / "cache", None), WARN, "data fetch cifar10")
    (tmp_path / "given").mkdir()
    (tmp_path / "given/cifar-10-python.tar.gz").touch()
    answer(data_set(tmp_path / "cache", tmp_path / "given"), OK, "cifar-10-python.tar.gz")
    damaged = tmp_path / "cache/packed-2/cifar10.1-aaaa"
    damaged.mkdir(parents=True)
    answer(data_set(tmp_path / "cache", None), WARN, "cifar10.1-aaaa is damaged", "data rm cifar10.1-aaaa")


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Return the folder in which temporary folders are created."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_a_cluster_that_fails_is_told_with_its_last_line_and_its_logs_stay(temporary):
    program = (sys.executable, "-c", "raise SystemExit('Error: worker 1 died')")
    found = answer(trial_cluster(program), FAIL, "exit code 1: Error: worker 1 died")
    (folder,) = temporary.iterdir()
    assert str(folder) in found.todo and (folder / "output.txt").read_text() == "Error: worker 1 died\n"


def test_a_cluster_that_hangs_is_ended(temporary):
    program = (sys.executable, "-c", "import time; time.sleep(600)")
    answer(trial_cluster(program, timeout_s=0.2), FAIL, "the training did not end within 0.2 s")
    assert_none_left(temporary)


# Checks the words of a run as the command does, and writes the files that the run would leave.
TRIES_NOTHING = """
import json, pathlib, sys
from click.testing import CliRunner
from ps_cluster.cli.main import main
ended = CliRunner().invoke(main, [*sys.argv[1:], "--dry-run"])
assert ended.exit_code == 0, ended.output
summary = {"outcome": "completed", "updates": {"scheduled": 40, "applied": 40}, "wall_seconds": 9.0}
summary["workers"] = [{"index": index, "pid": 1, "updates": 20} for index in range(2)]
folder = pathlib.Path(sys.argv[sys.argv.index("--run-dir") + 1])
folder.mkdir()
(folder / "summary.json").write_text(json.dumps(summary))
"""


def test_the_trial_is_a_run_that_the_command_takes_and_leaves_nothing_if_it_succeeds(temporary):
    """That a cluster like this one trains, also behind a proxy, is shown in tests/end_to_end."""
    answer(trial_cluster((sys.executable, "-c", TRIES_NOTHING)), OK, "40 of 40 updates by 2 workers", " 9 s")
    assert list(temporary.iterdir()) == []


def raises():
    raise OSError("the disk is gone")


def test_a_check_that_raises_or_hangs_has_failed_and_the_others_have_their_turn():
    never = threading.Event()
    checks = [Check("raises", raises), Check("hangs", never.wait, 0.05), Check("fine", lambda: ok("all well"))]
    found = list(examine(checks))
    never.set()
    assert [one.status for one in found] == [Status.FAIL, Status.FAIL, Status.OK]
    assert "the disk is gone" in found[0].message and "no answer within 0.05 s" in found[1].message
    assert all(one.todo for one in found[:2])


def test_the_worst_answer_decides_and_a_warning_is_no_failure():
    fine, doubtful = Check("fine", lambda: ok("well")), Check("doubtful", lambda: warn("slow", "wait"))
    assert as_json([])["status"] == "ok" and as_json(list(examine([doubtful, fine])))["status"] == "warn"
    assert as_json(list(examine([Check("raises", raises), fine])))["status"] == "fail"


def test_the_command_prints_each_check_and_what_to_do_or_json(tmp_path, monkeypatch):
    monkeypatch.setenv("PS_CLUSTER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    quick = all_checks(tmp_path, tmp_path, None, cluster=False)[:-1]  # without the import of TensorFlow
    monkeypatch.setattr(command, "all_checks", lambda *places, cluster: quick)
    told = CliRunner().invoke(main, ["doctor", "--no-cluster"])
    lines = told.stdout.splitlines()
    assert told.exit_code == 0 and lines[0].startswith("ok    python      3.")
    data = next(number for number, line in enumerate(lines) if line.startswith("warn  data"))
    assert "data fetch cifar10" in lines[data + 1]
    found, same = (json.loads(CliRunner().invoke(main, ["doctor", "--json", *to]).stdout) for to in ([], ["-"]))
    assert [one["name"] for one in same["checks"]] == [one["name"] for one in found["checks"]]
    assert found["status"] == "warn" and [one["name"] for one in found["checks"]] == [one.name for one in quick]


def test_a_check_that_has_failed_is_the_exit_code(monkeypatch):
    monkeypatch.setattr(command, "all_checks", lambda *places, cluster: [Check("raises", raises)])
    told = CliRunner().invoke(main, ["doctor"])
    assert told.exit_code == 1 and "to do: " in told.stdout
