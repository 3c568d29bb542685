"""Which GPUs a machine has, and which of them a process sees. There is no GPU here: driver and programs are the test's."""

import pytest

from ps_cluster.system import environment
from ps_cluster.system.gpus import HIDDEN, count_gpus, gpu_of_worker, usable_gpus

LISTED = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-1)
  MIG 3g.20gb     Device  0: (UUID: MIG-2)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-3)
"""


def program(folder, text, code=0):
    file = folder / "list-gpus"
    file.write_text(f"#!/bin/sh\ncat <<'END'\n{text}END\nexit {code}\n")
    file.chmod(0o755)
    return (str(file),)


def test_the_driver_names_a_gpu_by_a_folder(tmp_path):
    for place in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / "gpus" / place).mkdir(parents=True)
    assert count_gpus(tmp_path / "gpus", ("no-such-program",)) == 2
    assert count_gpus(tmp_path / "absent", ("no-such-program",)) == 0


@pytest.mark.parametrize(("text", "code", "count"), [(LISTED, 0, 2), ("No devices found.\n", 0, 0), (LISTED, 9, 0)])
def test_without_its_folder_the_driver_s_program_is_asked(tmp_path, text, code, count):
    assert count_gpus(tmp_path / "absent", program(tmp_path, text, code)) == count


@pytest.mark.parametrize(
    ("visible", "usable"),
    [
        (None, ("0", "1", "2")),
        ("2", ("2",)),
        ("1, 0", ("1", "0")),
        ("GPU-1f0,MIG-2", ("GPU-1f0", "MIG-2")),
        ("", ()),
        ("-1", ()),
        ("0,-1,2", ("0",)),  # CUDA's list ends at what is no GPU
    ],
)
def test_a_process_may_use_what_its_environment_lets_it_see(visible, usable):
    given = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert usable_gpus(given, count=lambda: 3) == usable


def test_workers_get_the_gpus_in_turn():
    assert [gpu_of_worker(worker, ("2", "5")) for worker in range(5)] == ["2", "5", "2", "5", "2"]
    assert gpu_of_worker(0, ()) == HIDDEN


def test_gpus_are_hidden_from_who_does_not_ask_and_who_asks_sees_its_own_and_takes_memory_as_needed():
    assert environment.for_tensorflow({"CUDA_VISIBLE_DEVICES": "1"})["CUDA_VISIBLE_DEVICES"] == "-1"
    assert "TF_FORCE_GPU_ALLOW_GROWTH" not in environment.for_tensorflow({})
    own = environment.for_tensorflow({"CUDA_VISIBLE_DEVICES": "1", "TF_FORCE_GPU_ALLOW_GROWTH": "false"}, on_gpus=True)
    assert own["CUDA_VISIBLE_DEVICES"] == "1" and own["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"
    assert "CUDA_VISIBLE_DEVICES" not in environment.for_tensorflow({}, on_gpus=True)


def test_float32_is_not_tf32_on_a_gpu_unless_the_user_wants_it():
    assert environment.for_tensorflow({}, on_gpus=True)["NVIDIA_TF32_OVERRIDE"] == "0"
    assert environment.for_tensorflow({"NVIDIA_TF32_OVERRIDE": "1"}, on_gpus=True)["NVIDIA_TF32_OVERRIDE"] == "1"
