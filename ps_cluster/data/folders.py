"""Find the files of a data set in a folder, recognise splits by their names, and list the files that are not read."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ps_cluster.data.library_splits import TESTS, TRAIN
from ps_cluster.files.values import one_line

# Names that people give to the split to train on, and to splits to test on, best first. Capitals do not matter.
_TRAIN_NAMES = (TRAIN, "training")
_TEST_NAMES = (TESTS[0], "testing", *TESTS[1:], "dev", "eval")
_LEFT_BY_PROGRAMS = frozenset({"__MACOSX", "__pycache__"})
_MOST_ENDINGS = 5  # that a note names


def is_split(name: str) -> bool:
    """Return whether a name is that of a split."""
    return name.lower() in (*_TRAIN_NAMES, *_TEST_NAMES)


class SplitNames(NamedTuple):
    """The names of the splits of a data set."""

    train: str
    test: str | None = None  # the split to test on, if there is one
    unused: tuple[str, ...] = ()  # further splits that could be tested on
    others: tuple[str, ...] = ()  # names that are not those of a split

    @property
    def notes(self) -> tuple[str, ...]:
        """A line about each name that is not used."""
        tests = (f"'{name}' is not used: '{self.test}' has the examples to test on" for name in self.unused)
        others = (
            f"'{name}' is not used: it is neither '{self.train}' nor a name of a split to test on"
            for name in self.others
        )
        return (*tests, *others)


def splits_in(names: Iterable[str]) -> SplitNames | None:
    """Return which of the names are those of splits; None if none is the name of a split to train on."""
    there = sorted(names, key=lambda name: (name != name.lower(), name))  # train before Train
    trains, tests = (
        [name for wanted in usual for name in there if name.lower() == wanted] for usual in (_TRAIN_NAMES, _TEST_NAMES)
    )
    return SplitNames(trains[0], tests[0] if tests else None, tuple(tests[1:])) if trains else None


def folders_in(folder: Path) -> list[str]:
    """Return the sorted names of the folders in a folder, without hidden ones and names that begin with "__"."""
    return sorted(
        entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith((".", "__"))
    )


def files_in(folder: Path) -> list[str]:
    """Return the sorted names of the files in a folder, without hidden ones."""
    return sorted(entry.name for entry in os.scandir(folder) if entry.is_file() and not entry.name.startswith("."))


def files_below(folder: Path, left_out: frozenset[str] = _LEFT_BY_PROGRAMS) -> Iterator[Path]:
    """Yield the files below a folder, sorted by folder and name, without hidden files and folders.

    A link to a folder is yielded like a file and not followed, because it may lead to a folder above.
    """
    for place, folders, names in os.walk(folder):
        inner = [name for name in folders if name not in left_out and not name.startswith(".")]
        links = [name for name in inner if os.path.islink(os.path.join(place, name))]
        folders[:] = sorted(set(inner).difference(links))
        for name in sorted([*names, *links]):
            path = Path(place, name)
            if not name.startswith(".") and path.exists():
                yield path


def not_read(paths: Sequence[Path], root: Path, why: str) -> tuple[str, ...]:
    """Return one line about files below `root` that are not read for the reason `why`; none if there are no files."""
    if not paths:
        return ()
    return (f"not read ({why}): {endings_of(paths)}, such as '{one_line(str(paths[0].relative_to(root)), 200)}'",)


def endings_of(paths: Sequence[Path]) -> str:
    """Return the endings of names with their counts, the most frequent first: "3 .heic, 1 without an ending"."""
    counts = Counter(path.suffix.lower() or "without an ending" for path in paths)
    parts = [f"{count:,} {one_line(ending, 20)}" for ending, count in counts.most_common(_MOST_ENDINGS)]
    return ", ".join(parts) + ", …" * (len(counts) > _MOST_ENDINGS)
