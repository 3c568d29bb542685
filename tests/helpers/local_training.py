"""Train in this process like a cluster, with the real session, ledger, sampler and proof, but without connections."""

import math
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
import tensorflow as tf

from ps_cluster.config import build_config
from ps_cluster.config.networks import NETWORKS
from ps_cluster.evaluation.recomputation import Recomputation
from ps_cluster.files.json_files import read_json
from ps_cluster.files.json_rows import read_rows
from ps_cluster.runs.leaders import LeaderStart
from ps_cluster.runs.proof import with_recomputed
from ps_cluster.runs.result_rows import TrainingResult
from ps_cluster.runs.run_dir import IDENTITY, RunDir
from ps_cluster.runs.update_samples import RecomputedRow
from ps_cluster.system.stop_signals import Drain
from ps_cluster.training import placement, split_trainer
from ps_cluster.training.all_reduce import train_until_end
from ps_cluster.training.all_reduce_graph import AllReduceUpdates
from ps_cluster.training.building import build
from ps_cluster.training.chief import Chief, LocalDispatcher
from ps_cluster.training.devices import CPU
from ps_cluster.training.job import TrainingJob
from ps_cluster.training.round_watch import RoundWatch
from ps_cluster.training.sampling import UpdateSampler
from ps_cluster.training.session import LOCAL_DEVICE, SessionStart
from tests.helpers.data import LETTERS, pack_images, random_images

NETWORK = """
import keras

def build(examples):
    return keras.Sequential([
        keras.Input((32, 32, 3)), keras.layers.Rescaling(1 / 255), keras.layers.Conv2D(3, 8, strides=8),
        keras.layers.BatchNormalization(momentum=0.9), keras.layers.Activation("relu"), keras.layers.Dropout(0.1),
        keras.layers.Flatten(), keras.layers.Dense(10),
    ])
"""
NETWORK_WITH_TABLE = """
import keras
from keras import layers

def build(examples):
    images = keras.Input((32, 32, 3))
    parts = layers.Conv2D(3, 8, strides=8)(layers.Rescaling(1 / 255)(images))
    parts = layers.Activation("relu")(layers.BatchNormalization(momentum=0.9)(parts))
    rows = layers.Embedding(256, 4)(keras.ops.cast(images[:, ::8, ::8, 0], "int32"))
    both = [layers.Flatten()(layers.Dropout(0.1)(part)) for part in (parts, rows)]
    return keras.Model(images, layers.Dense(10)(layers.Concatenate()(both)))
"""
TABLES = {"model.rows_from": 256, "optimizer.weight_decay": 0.0, "optimizer.learning_rate_factors": []}
SETTINGS = {
    "data.dataset": "synthetic", "model.precision": "float32", "training.batch_size_per_worker": 16,
    "training.steps": 24, "data.augmentation.flip": "random", "data.augmentation.crop_padding_pixels": 2,
    "optimizer.rule": "nesterov", "optimizer.learning_rate": 0.01,
    "training.class_weights": {"a": 2.0}, "checkpoints.every_seconds": 60.0, "checkpoints.snapshot_every_seconds": 60.0,
}  # fmt: skip


@dataclass(frozen=True)
class Trained:
    """The outcome of a training: the result with its proof, and a row for each update that was computed again."""

    result: TrainingResult
    recomputed: list[RecomputedRow]

    @property
    def problems(self) -> list[str]:
        return self.result.proof.problems


def train(folder: Path, accelerator: str | None = None, **values) -> Trained:
    """Train in a folder, and compute the sampled updates again.

    Args:
      accelerator: the device of this process that computes the network; None: its processor.
      values: settings in addition to SETTINGS. The settings of TABLES give the network an embedding table.
    """
    folder.mkdir()
    network = folder / "net.py"
    network.write_text(NETWORK_WITH_TABLE if "model.rows_from" in values else NETWORK)
    rows = random_images(64)
    dataset = pack_images(folder / "data", "synthetic", LETTERS, (*rows, *random_images(10, 1)))
    name = NETWORKS.allow_code_of(f"{network}:build", folder)
    workers = {"single": {}, "layers": {"cluster.workers": 2}}.get(values["mode.name"], {"cluster.workers": 1})
    config = build_config(overrides=SETTINGS | {"model.name": name} | workers | values)
    run_dir = RunDir.create(folder / "run")
    run_dir.config.write_text(config.to_yaml())
    workspace = folder / "workspace"
    workspace.mkdir()
    for file in dataset.directory.iterdir():
        (workspace / file.name).symlink_to(file)
    before = Path.cwd()
    os.chdir(workspace)
    try:
        np.array([0, os.getpid()], np.int64).tofile(IDENTITY)
        _train_in_workspace(config, run_dir, dataset, accelerator)
        recomputation = Recomputation(run_dir, config, lambda: dataset)
        while recomputation.next():
            pass
    finally:
        os.chdir(before)
    result = read_json(run_dir.training_result, TrainingResult)
    proof = with_recomputed(result.proof, run_dir, result.updates.applied, print)
    result = result.model_copy(update={"proof": proof})
    return Trained(result, list(read_rows(run_dir.recomputed, RecomputedRow)))


def _train_in_workspace(config, run_dir, dataset, accelerator):
    mode = config.chosen_mode
    job = TrainingJob(config, run_dir, dataset, leading=LeaderStart(term=1))
    of_data = partial(build, accelerator_of=lambda config: accelerator)
    start = SessionStart(job, build=partial(split_trainer.build, mode, None) if mode.shares_steps else of_data)
    start.begin(resume=False)
    with (
        mock.patch.object(placement, "device_name", lambda task, device=CPU: LOCAL_DEVICE),
        # Here updates are computed again only after the training, so the sampler must not wait for that.
        mock.patch.object(UpdateSampler, "is_cheap", lambda sampler: True),
    ):
        session = start.build([LOCAL_DEVICE] * config.shards, LOCAL_DEVICE)
        if mode.name == "sync":
            strategy = tf.distribute.OneDeviceStrategy(LOCAL_DEVICE)
            run_updates = AllReduceUpdates(strategy, session.store, session.compute, config)
            session.start()
            watch = RoundWatch(lambda: math.inf, lambda limit_s: None, check_every_s=math.inf)
            train_until_end(config, session, run_updates, Drain(), watch)
        else:
            Chief(config, session, LocalDispatcher()).run(Drain())
    session.end(stopped=False)
