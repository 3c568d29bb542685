"""Compare the versions, settings, files and data of tasks that have to agree.

All tasks of a run on several machines have to agree, and a resumed run has to agree with its checkpoint. Tasks are
compared before the first step, and a resumed run is compared with its checkpoint before it starts or writes anything.
This module does not import TensorFlow. It reads TensorFlow's version from the installed package.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, ValidationError

from ps_cluster import __version__
from ps_cluster.config import RunConfig, user_code
from ps_cluster.files.json_files import parse_json
from ps_cluster.files.values import Malformed, first_error
from ps_cluster.installation import tensorflow_version
from ps_cluster.runs.rows import Row

if TYPE_CHECKING:
    from ps_cluster.data.packed import PackedDataset

MOST_BYTES = 2**19
_PACKAGE = Path(__file__).resolve().parent.parent
_SHOWN_CHARACTERS = 120
_DIGEST_CHARACTERS = 16
# These settings may differ from machine to machine, because they do not change the training.
_MAY_DIFFER = frozenset({"data.data_dir", "cluster.intra_op_threads", "cluster.pin_workers", "cluster.isolation"})

_Line = Annotated[str, Field(max_length=400, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]
Facts = Annotated[dict[_Line, _Line], Field(max_length=500)]


class CompatibilityFingerprint(Row):
    """The versions, settings, files and data that a task works with, to be compared with those of other tasks.

    Each attribute is a dict, name → value. The attributes are compared in the order of this list.

    Attributes:
      versions: the versions of Python, TensorFlow and this package, and a digest of the package's sources.
      settings: all settings, named "section.name", except those that may differ from machine to machine.
      files: a digest of each file that a setting names, e.g. the user's code. Files that this code imports are not
        included.
      data: the name of the packed data set, its numbers of examples, and its checksum.
    """

    versions: Facts
    settings: Facts
    files: Facts
    data: Facts

    @classmethod
    def of(cls, config: RunConfig, dataset: PackedDataset) -> CompatibilityFingerprint:
        """Return the fingerprint of a task with this configuration and data set."""
        settings = _settings(config)
        return cls(
            versions={
                "Python": ".".join(platform.python_version_tuple()[:2]),
                "TensorFlow": tensorflow_version() or "none",
                "ps_cluster": __version__,
                "source code of ps_cluster (SHA-256)": digest_of_this_package(),
            },
            settings={key: _short(text_of(value)) for key, value in settings.items()},
            files=_files(settings),
            data=facts_of_data(dataset),
        )

    @classmethod
    def from_json(cls, text: bytes | str) -> CompatibilityFingerprint:
        """Return the fingerprint in `text`, which another task has made with `to_json`.

        Raises:
          Malformed: the text is longer than `MOST_BYTES`, or it is not a fingerprint.
        """
        if len(text) > MOST_BYTES:
            raise Malformed(f"holds {len(text):,} bytes, which is too much")
        try:
            return cls.model_validate(parse_json(text))
        except ValidationError as error:
            raise Malformed(first_error(error, "agreement")) from error

    def to_json(self) -> str:
        """Return the fingerprint as a JSON text, which `from_json` reads."""
        return self.model_dump_json()

    def difference(self, other: CompatibilityFingerprint, at: str, here: str = "here") -> str | None:
        """Return a line that names the first difference and shows both values; None if the fingerprints are equal.

        Args:
          at: the task of the other fingerprint, e.g. "worker-1".
          here: the words that stand for the task of this fingerprint in the line. If another task will show the line,
            "here" would be wrong, so pass e.g. "at worker-0".
        """
        for mine, theirs in zip(self._parts(), other._parts(), strict=True):
            for name in dict.fromkeys([*mine, *theirs]):
                if mine.get(name) != theirs.get(name):
                    return f"{name}: {mine.get(name, 'nothing')} {here}, {theirs.get(name, 'nothing')} at {at}"
        return None

    def _parts(self) -> tuple[Mapping[str, str], ...]:
        return self.versions, self.settings, self.files, self.data


@cache
def digest_of_this_package() -> str:
    """Return a digest of the names and contents of all Python files of this package, as they were at the first call."""
    files = {file.relative_to(_PACKAGE).as_posix(): file for file in _PACKAGE.rglob("*.py")}
    return _digest(part for name in sorted(files) for part in (name.encode(), files[name].read_bytes()))


def _settings(config: RunConfig) -> dict[str, Any]:
    sections = config.model_dump(mode="json").items()
    settings = {f"{section}.{name}": value for section, values in sections for name, value in values.items()}
    return {key: value for key, value in settings.items() if key not in _MAY_DIFFER}


def _files(settings: Mapping[str, Any]) -> dict[str, str]:
    named = {key: _named_file(key, value) for key, value in settings.items() if isinstance(value, str)}
    return {
        f"{key}: content of {_short(file.name)} (SHA-256)": _digest([file.read_bytes()])
        for key, file in named.items()
        if file is not None and file.is_file()
    }


def _named_file(key: str, value: str) -> Path | None:
    if reference := user_code.parse(value):
        return reference.file
    # The sources of a data set may be large. The checksum of the packed copy is more informative.
    return Path(value) if os.path.isabs(value) and not key.startswith("data.") else None


def facts_of_data(dataset: PackedDataset) -> dict[str, str]:
    """Return what distinguishes a packed data set from others: its name, sizes and checksum, as name → text."""
    return {
        "name of the data set": _short(_without_folder(dataset.name)),
        "training examples": f"{dataset.train_examples + dataset.validation_examples:,}",
        "test examples": f"{dataset.test_examples:,}",
        "content of the packed data (SHA-256)": dataset.checksum[:_DIGEST_CHARACTERS],
    }


def text_of(value: Any) -> str:
    """Return the value of a setting as text. If the value is a path, return it without its folder."""
    if isinstance(value, str):
        return _without_folder(value)
    return json.dumps(value)


def _without_folder(text: str) -> str:
    """Return a path without its folder, because folders may differ between machines. Return any other text unchanged.

    In the setting for a user's data, the data format comes before the path: "image_folder:/home/ada/pets".
    """
    data_format, separator, path = text.partition(":")
    if not data_format.isidentifier() or path.startswith("//"):  # no data format, as in /home/ada/mine.py:load
        data_format, separator, path = "", "", text
    return f"{data_format}{separator}{os.path.basename(path.rstrip('/'))}" if os.path.isabs(path) else text


def _short(text: str) -> str:
    """Return a text unchanged if it is short and printable; otherwise return its beginning and a digest."""
    if len(text) <= _SHOWN_CHARACTERS and text.isprintable():
        return text
    shown = "".join(character if character.isprintable() else "?" for character in text[:_SHOWN_CHARACTERS])
    return f"{shown}… (SHA-256 {_digest([text.encode(errors='surrogateescape')])})"


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()[:_DIGEST_CHARACTERS]
