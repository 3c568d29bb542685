"""The files of a small finished run, made by hand, so that any of them can be made wrong."""

import io
import json
import pickle
import struct
import tarfile
from pathlib import Path
from zlib import crc32

import numpy as np
from pydantic import BaseModel, ConfigDict

from ps_cluster.config import build_config
from ps_cluster.files.tensor_files import write_tensors
from ps_cluster.runs.journal import Journal
from ps_cluster.runs.ledger import COLUMNS, COUNTS, ROW
from tests.helpers.data import pack_images
from tests.helpers.ledgers import csv_of

STEPS, TOTAL = 60, 64
STEP_NAME = f"checkpoints/step-{STEPS:09}-term-000001.safetensors"
JOURNAL_NAME = "metrics/journal/shard-0-term-000001.bin"
SETTINGS = {
    "data.dataset": "synthetic", "model.name": "tutorial_cnn", "model.precision": "float32", "cluster.workers": 1,
    "training.steps": TOTAL,
}  # fmt: skip
CONFIG = build_config(None, SETTINGS)
STEPS_STATE = {"below": STEPS, "beyond": [], "count": STEPS}
TALLY = {
    "examples": STEPS * 128,
    "workers": [[0, 71, STEPS, STEPS * 128]],
    "staleness": {"0": STEPS},
    "first_updates": [],
}
TIMES = {"seconds": 6.0, "first_update": 0.1, "last_update": 6.0, "resumed_update": 0.1, "stood": [[0.1, 6.0]]}
META = {
    "config": CONFIG.model_dump(mode="json"), "dataset_kind": "synthetic", "train_seconds": 6.0, "examples": STEPS * 128,
    "times": TIMES | {"interrupted": 0.0},
    "progress": {"scheduled": STEPS_STATE, "applied": STEPS_STATE, "tally": TALLY, "mixed": 0},
}  # fmt: skip
SCORE = {"step": STEPS, "test_accuracy": 0.5, "test_loss": 1.0, "train_seconds": 6.0, "examples": STEPS * 128}
WORKER = {"index": 0, "pid": 71, "updates": STEPS, "examples": STEPS * 128}
SUMMARY = {
    "schema": 2, "outcome": "completed", "mode": "async", "dataset": "synthetic", "dataset_kind": "synthetic",
    "model": "tutorial_cnn", "precision": "float32", "seed": 0, "workers": [WORKER],
    "parameter_servers": [{"index": 0, "pid": 72, "parameters": 122_570}],
    "updates": {"scheduled": STEPS, "applied": STEPS, "duplicated": 0, "lost": 0, "rolled_back": 0, "replays_refused": 0},
    "staleness": {"mean": 0.0, "p50": 0, "p95": 0, "max": 0, "histogram": {"0": STEPS}},
    "examples_per_second": 1280.0, "train_seconds": 6.0, "cpu_seconds": 9.0, "peak_memory_bytes": 10**9,
    "processes": [{"type": kind, "index": 0, "pid": 71, "cpu_seconds": 0.5} for kind in ("worker", "ps", "chief")],
    "machine": {"processor": "one", "cores": 2},
    "evaluation": {"test_accuracy": 0.5, "step": STEPS, "history": [SCORE]},
}  # fmt: skip


def counts() -> np.ndarray:
    known = {"version": STEPS, "accepted": STEPS}
    return np.array([[known.get(name, 0) for name in COUNTS]], np.int64)


def arrays() -> dict[str, np.ndarray]:
    return {
        "weights": np.zeros([122_570], np.float32),
        "statistics": np.zeros([0], np.float32),
        "accepted_steps": np.zeros([1, 1], np.int64),
        "counts": counts(),
        "waiting": np.zeros([0, 1 + len(COLUMNS)]),
    }


def checkpoint(*, header: dict | None = None, **replaced: np.ndarray | None) -> bytes:
    """A sound checkpoint with some arrays in another form, or left out, and other words in its header."""
    found = {name: array for name, array in (arrays() | replaced).items() if array is not None}
    told = {"step": STEPS, "meta": META | {"leaders": [stretch()]}, "arrays": list(found)} | (header or {})
    content = io.BytesIO()
    write_tensors(content, _AnyHeader(**told), found)
    return content.getvalue()


def stretch() -> dict:
    """What the only leader did: all rows of the journal."""
    return {"term": 1, "step": STEPS, "rows": [STEPS], "checksums": [_CHECKSUM]}


class _AnyHeader(BaseModel):
    model_config = ConfigDict(extra="allow")


def table(content: bytes, **changed) -> bytes:
    """A file of the same arrays whose table says something else. `changed`: what it says of a name."""
    (length,) = struct.unpack("<Q", content[:8])
    told = json.loads(content[8 : 8 + length]) | changed
    beginning = json.dumps(told).encode()
    return struct.pack("<Q", len(beginning)) + beginning + content[8 + length :]


def ledger() -> np.ndarray:
    """The rows of a worker whose steps take 100 ms each."""
    rows, ids = np.zeros(STEPS, ROW), np.arange(STEPS)
    columns = {"step": ids, "version": ids + 1, "pid": 71, "examples": 128, "learning_rate": 0.1, "loss": 2.0}
    offsets = {"asked": 0, "admitted": 0, "pulled": 10, "computed": 60, "pushed": 60, "entered": 80, "applied": 85}
    columns |= {f"{name}_time": 1.8e9 + 0.1 * ids + offset / 1000 for name, offset in offsets.items()}
    for name, values in (columns | {"scheduled_time": 1.8e9 + 0.1 * (ids // 4)}).items():
        rows[name] = values
    return rows


_CHECKSUM = crc32(ledger().tobytes())


def write_run(root: Path, cache: Path) -> None:
    """A run that has ended before all was trained, so that it can be resumed, with data in `cache`."""
    images, labels = np.zeros([20, 32, 32, 3], np.uint8), np.zeros([20], np.uint8)
    dataset = pack_images(
        cache / "packed-2" / "synthetic.2", "synthetic", tuple("abcdefghij"), (images, labels, images, labels)
    )
    for folder in ("metrics/journal", "checkpoints", "logs", "errors"):
        (root / folder).mkdir(parents=True)
    (root / "logs/launcher.log").touch()
    files = {
        "summary.json": SUMMARY,
        "cluster.json": {"launcher": {"pid": 1}, "tasks": [{"type": "chief", "index": 0, "pid": 9, "address": None}]},
        "dataset.json": {"name": "synthetic", "kind": "synthetic", "directory": str(dataset.directory)},
        "checkpoints/ended.json": {"last_step": STEPS, "outcome": "stopped"},
    }
    for name, content in files.items():
        (root / name).write_text(json.dumps(content))
    (root / "config.yaml").write_text(CONFIG.to_yaml())
    rows = [{"phase": "connecting", "applied": 0}, {"phase": "training", "applied": STEPS}]
    (root / "metrics/progress.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (root / "metrics/evaluation.jsonl").write_text(json.dumps(SCORE) + "\n")
    (root / "metrics/updates.csv").write_text(csv_of(ledger()))
    (root / STEP_NAME).write_bytes(checkpoint())
    journal = Journal(root / JOURNAL_NAME)
    journal.append(ledger())
    journal.flush()
    journal.close()


def tar_of(*parts: tuple[tarfile.TarInfo, bytes]) -> bytes:
    """Members as they are told, however long they say that they are."""
    return b"".join(info.tobuf(tarfile.GNU_FORMAT) + part + bytes(-len(part) % 512) for info, part in parts)


def member(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
    info.size, info.type = size, kind
    return info


def batch() -> bytes:
    """A sound batch."""
    return pickle.dumps({b"data": np.zeros([10_000, 3072], np.uint8), b"labels": [0] * 10_000}, protocol=2)
