"""Copy the pictures of a folder of TensorFlow Datasets, still encoded, to plain files: a program of its own.

`python -m ps_cluster.data.tfds_reader FOLDER OUTPUT` writes for each split `<split>.pictures` (one after the other),
`<split>.ends.npy` (where each ends, int64 [N]) and `<split>.labels.npy` (int64 [N]), and `about.json`. It imports
TensorFlow, which the launcher never does.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np


def copy_pictures(folder: Path, output: Path) -> None:
    """Write the files. Raises SystemExit, with the reason, for a data set that is not of pictures with labels."""
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(str(folder))
    features = builder.info.features
    image, label = (_named(features, kind) for kind in (tfds.features.Image, tfds.features.ClassLabel))
    if image is None or label is None:
        raise SystemExit(f"only pictures with labels can be read, and it has {', '.join(features)}")
    for split in builder.info.splits:
        decoders = {image: tfds.decode.SkipDecoding()}
        examples = tfds.as_numpy(builder.as_dataset(split=split, decoders=decoders, shuffle_files=False))
        ends, labels, at = [], [], 0
        with (output / f"{split}.pictures").open("xb") as file:
            for example in examples:
                at += file.write(example[image])
                ends.append(at)
                labels.append(int(example[label]))
        np.save(output / f"{split}.ends.npy", np.array(ends, np.int64))
        np.save(output / f"{split}.labels.npy", np.array(labels, np.int64))
    about = {"classes": features[label].names, "splits": list(builder.info.splits)}
    (output / "about.json").write_text(json.dumps(about))


def _named(features: Any, kind: type) -> str | None:
    """Return the first feature of a kind."""
    return next((name for name, feature in features.items() if isinstance(feature, kind)), None)


if __name__ == "__main__":
    copy_pictures(Path(sys.argv[1]), Path(sys.argv[2]))
