"""What a wrong update costs, on the smallest network and a few images: that it is made, and that it shows."""

import numpy as np

from benchmarks.wrong_updates import accuracy
from ps_cluster.config import build_config
from tests.helpers.data import pack_images


def test_one_wrong_update_in_a_hundred_is_made_and_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # it changes the working directory, which comes back at the end
    labels = (np.arange(400) % 2).astype(np.uint8)
    images = np.ascontiguousarray(np.broadcast_to(labels[:, None, None, None] * np.uint8(250), (400, 32, 32, 3)))
    dataset = pack_images(tmp_path / "set", "synthetic", tuple("abcdefghij"), (images, labels, images, labels))
    settings = {
        "model.name": "tutorial_cnn", "model.precision": "float32", "data.dataset": "synthetic", "training.steps": 60,
        "training.batch_size_per_worker": 20, "optimizer.rule": "momentum", "optimizer.learning_rate": 0.002,
        "training.label_smoothing": 0.2,  # else the gradient is soon 0, and so is any multiple of it
    }  # fmt: skip
    sound, wrong = (accuracy(build_config(None, settings), dataset, factor) for factor in (1.0, -1e12))
    assert sound > 0.95 and wrong < 0.6
