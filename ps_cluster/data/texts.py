"""Make data sets of text: cut files into windows of bytes, in which each byte is predicted from the bytes before it.

`formats/text.py` reads a user's text, and `sets/python_source.py` is a data set of the package.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import Field

from ps_cluster.config.datasets import Contents, DataSettings
from ps_cluster.config.objectives import BYTES, TARGET, ArrayField, ExampleSpec
from ps_cluster.files.reading import open_regular
from ps_cluster.files.values import Malformed

INPUT = "text"
RECIPE: Mapping[str, Any] = {"model": {"name": "byte_lm"}}
"""The recipe of a data set of text, that is, its settings that differ from configs/default.yaml."""
SEPARATOR = b"\0"  # follows each file, so that a network learns where a file ends


class TextSettings(DataSettings):
    """Settings of a data set of text."""

    window: int = Field(default=128, ge=2, le=4096, description="Number of bytes in each example.")
    held_out: float = Field(default=0.05, gt=0, lt=1, description="Share of the bytes that is held out to test on.")


class TextFile(NamedTuple):
    """A file of text."""

    name: str  # its path in the folder
    content: bytes


def read_texts(folder: Path, paths: Sequence[Path]) -> list[TextFile]:
    """Read files of text, and return those that are not empty. `folder`: the folder that contains all of them."""
    texts = []
    for path in paths:
        with open_regular(path) as file:
            texts.append(TextFile(str(path.relative_to(folder)), file.read()))
    return [text for text in texts if text.content]


def contents_of_texts(texts: Sequence[TextFile], settings: TextSettings, notes: tuple[str, ...] = ()) -> Contents:
    """Cut texts into windows: inputs and targets, uint8 [N, window]. The target of each byte is the byte after it.

    Whole files are held out to test on. They are chosen by a hash of their names, so that a file stays in its split
    when others are added or removed. If no choice of files has about the wanted share of all bytes, e.g. because there
    is a single large file, the end of the whole text is held out instead. Raises Malformed if there is too little text
    for a window in each split.
    """
    test = _files_to_hold_out(texts, settings.held_out)
    if test:
        streams = {
            "train": _joined(text for text in texts if text.name not in test),
            "test": _joined(text for text in texts if text.name in test),
        }
        note = f"held out for testing: {len(test):,} of {len(texts):,} files"
    else:
        whole = _joined(texts)
        end = len(whole) - round(len(whole) * settings.held_out)
        streams = {"train": whole[:end], "test": whole[end:]}
        note = "held out for testing: the end of the text"
    for split, stream in streams.items():
        if len(stream) <= settings.window:
            raise Malformed(
                f"it has {len(stream):,} bytes of text for the {split} split, and a window takes "
                f"{settings.window + 1}: give more text, or a smaller data.window"
            )
    window = ArrayField("uint8", (settings.window,), codes=(BYTES,) * settings.window)
    spec = ExampleSpec({INPUT: window}, window, "next-byte")
    arrays = {split: _windows(stream, settings.window) for split, stream in streams.items()}
    size = f"{len(streams['train']):,} bytes to train on, {len(streams['test']):,} to test on"
    return Contents(spec, arrays, notes=(*notes, f"{note}; {size}"))


def _files_to_hold_out(texts: Sequence[TextFile], share: float) -> set[str]:
    """Return the names of files whose total size is between half and twice the wanted share of all bytes.

    `share`: the wanted share. The result is set() if no such files are found.
    """
    wanted, taken, chosen = share * sum(len(text.content) for text in texts), 0, set()
    in_order = sorted(texts, key=lambda text: hashlib.sha256(text.name.encode(errors="surrogateescape")).digest())
    for text in in_order:
        if taken >= wanted:
            break
        if taken + len(text.content) <= 2 * wanted:
            taken += len(text.content)
            chosen.add(text.name)
    return chosen if taken >= wanted / 2 else set()


def _joined(texts: Iterable[TextFile]) -> bytes:
    return b"".join(text.content + SEPARATOR for text in texts)


def _windows(stream: bytes, window: int) -> dict[str, np.ndarray]:
    """Return consecutive windows. The last target of a window is the first byte of the next one."""
    values, count = np.frombuffer(stream, np.uint8), (len(stream) - 1) // window
    return {
        INPUT: values[: count * window].reshape(count, window),
        TARGET: values[1 : count * window + 1].reshape(count, window),
    }
