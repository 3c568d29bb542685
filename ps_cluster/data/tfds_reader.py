"""Copy the encoded pictures of a folder of TensorFlow Datasets to plain files. This module is a program.

`python -m ps_cluster.data.tfds_reader FOLDER OUTPUT` writes `about.json` (the names of the classes, the name of the
split to test on, and notes). For the split to train on and for the split to test on, it writes `<split>.pictures` (all
pictures, one after the other), `<split>.ends.npy` (the offsets of their ends, int64 [N]) and `<split>.labels.npy`
(int64 [N]). The program imports TensorFlow, which the launcher never does, and ends when the launcher ends.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ps_cluster.data import splits
from ps_cluster.files.values import Malformed
from ps_cluster.system.lifetime import die_with_launcher


def copy_pictures(folder: Path, output: Path) -> None:
    """Copy pictures and labels from `folder`, which TensorFlow Datasets has prepared, to plain files in `output`.

    Raises Malformed if the data set has no pictures with labels.
    """
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(str(folder))
    features = builder.info.features
    image, label = (_named(features, kind) for kind in (tfds.features.Image, tfds.features.ClassLabel))
    if image is None or label is None:
        raise Malformed(
            f"only pictures with labels can be read, but the data set has the features {', '.join(features)}"
        )

    def examples_of(split: str) -> Any:
        decoders = {image: tfds.decode.SkipDecoding()}
        return tfds.as_numpy(builder.as_dataset(split=split, decoders=decoders, shuffle_files=False))

    def is_labelled(split: str) -> bool:
        return any(int(example[label]) != splits.NO_LABEL for example in examples_of(split))  # stops at the first label

    which = splits.choose_test_split(builder.info.splits, is_labelled)
    for split in filter(None, (splits.TRAIN, which.test)):
        _copy_split(((example[image], int(example[label])) for example in examples_of(split)), split, output)
    about = {"classes": features[label].names, "test": which.test, "notes": which.notes}
    (output / "about.json").write_text(json.dumps(about))


def _copy_split(examples: Iterator[tuple[bytes, int]], split: str, output: Path) -> None:
    ends, labels, at = [], [], 0
    with (output / f"{split}.pictures").open("xb") as file:
        for picture, label in examples:
            at += file.write(picture)
            ends.append(at)
            labels.append(label)
    splits.check_all_labelled(split, labels.count(splits.NO_LABEL), len(labels))
    np.save(output / f"{split}.ends.npy", np.array(ends, np.int64))
    np.save(output / f"{split}.labels.npy", np.array(labels, np.int64))


def _named(features: Any, kind: type) -> str | None:
    """Return the name of the first feature of the type `kind`; None if there is none."""
    return next((name for name, feature in features.items() if isinstance(feature, kind)), None)


if __name__ == "__main__":
    die_with_launcher()
    try:
        copy_pictures(Path(sys.argv[1]), Path(sys.argv[2]))
    except Malformed as error:
        raise SystemExit(str(error)) from error
