import json
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from ps_cluster.files.writing import write_json
from ps_cluster.runs.run_dir import RunDir

torch = pytest.importorskip(
    "torch", reason="no PyTorch here: it takes an environment of benchmarks/requirements-ddp.txt"
)

from ps_cluster.tools.bench import ddp  # noqa: E402
from tests.helpers.data import pack_images  # noqa: E402
from tests.helpers.processes import wait_until  # noqa: E402
from tests.helpers.real_cluster import start_in_session  # noqa: E402

PROJECT = Path(__file__).parents[3]
IMAGES = np.random.default_rng(0).integers(0, 256, [40, 32, 32, 3], np.uint8)
LABELS = np.arange(40, dtype=np.uint8) % 10
CONFIG = {
    "cluster": {"workers": 2, "intra_op_threads": 1, "pin_workers": False},
    "data": {"augmentation": {"crop_padding_pixels": 2, "flip": "alternating"}},
    "model": {"name": "tutorial_cnn", "precision": "bfloat16", "activation": "relu"},
    "optimizer": {"learning_rate": 0.001, "momentum": 0.9},
    "mode": {"name": "sync"},
    "training": {"seed": 0, "batch_size_per_worker": 4, "steps": 3, "label_smoothing": 0.1},
}


@pytest.fixture
def dataset(tmp_path):
    return pack_images(tmp_path / "data", "synthetic", tuple("abcdefghij"), (IMAGES, LABELS, IMAGES, LABELS))


@pytest.fixture
def run_dir(tmp_path, dataset):
    run_dir = RunDir.create(tmp_path / "run")
    write_json(run_dir.config, CONFIG)
    write_json(run_dir.dataset, {"directory": str(dataset.directory)})
    return run_dir


@pytest.mark.parametrize(
    ("name", "parameters"), [("tutorial_cnn", 122_570), ("cifar_tf_cnn", 2_210_122), ("airbench", 1_971_640)]
)
def test_every_network_has_as_many_parameters_as_in_keras_and_gives_a_score_a_class(name, parameters):
    """The parameters in Keras are those of tests/models/test_networks.py."""
    network = ddp.build(name, "gelu")
    assert ddp.trainable(network) == parameters
    assert network(ddp.normalised(IMAGES)).shape == (40, 10)


def test_images_are_normalised_and_lie_as_the_kernels_want_them():
    images = ddp.normalised(IMAGES)
    mean, std = np.array([0.4914, 0.4822, 0.4465]) * 255, np.array([0.2470, 0.2435, 0.2616]) * 255
    assert images.permute(0, 2, 3, 1).numpy() == pytest.approx((IMAGES - mean) / std, abs=1e-4)
    assert images.is_contiguous(memory_format=torch.channels_last)


def test_pixels_come_from_the_image_shifted_with_reflected_borders_and_then_mirrored():
    ids, shifts = np.array([7, 3]), np.array([[-2, 1], [2, 0]])
    taken = IMAGES.reshape(-1, 3)[ddp.sources(ids, shifts, np.array([False, True]))]
    padded = np.pad(IMAGES, [(0, 0), (2, 2), (2, 2), (0, 0)], "reflect")
    assert (taken[0] == padded[7, 0:32, 4:36]).all()
    assert (taken[1] == padded[3, 3:35, 2:34][:, ::-1]).all()


def test_the_processes_share_every_epoch(dataset):
    labels = np.zeros(10, int)
    for rank in range(2):
        stream = ddp.batches(dataset, ddp.ImageConfig.model_validate(CONFIG), rank, processes=2)
        for _ in range(5):  # an epoch of 40 images
            labels += np.bincount(next(stream)[1], minlength=10)
    assert (labels == 4).all()


def test_it_ends_with_its_rate_and_leaves_no_process(run_dir):
    process = started(run_dir)
    out, _ = process.communicate(timeout=120)
    wait_until(lambda: not group_members(process.pid))
    assert process.returncode == 0 and "122,570 trainable parameters" in out
    assert json.loads(out.splitlines()[-1])["examples_per_second"] > 0


def test_its_processes_end_with_it_when_it_is_killed(run_dir):
    config = json.loads(run_dir.config.read_text())
    write_json(run_dir.config, config | {"training": config["training"] | {"steps": 1_000_000}})
    process = started(run_dir)
    # the program, multiprocessing's tracker of resources, and a process for each worker
    wait_until(lambda: len(group_members(process.pid)) == 4)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=120)
    wait_until(lambda: not group_members(process.pid))


def started(run_dir):
    return start_in_session([sys.executable, "-m", "ps_cluster.tools.bench.ddp", run_dir.root], cwd=PROJECT)


def group_members(group):
    """The processes of a session that have not ended."""
    stats = (path.read_text().rpartition(")")[2].split() for path in Path("/proc").glob("[0-9]*/stat"))
    return [fields for fields in stats if int(fields[2]) == group and fields[0] != "Z"]
