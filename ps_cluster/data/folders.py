"""Find the files of a data set in a folder, and list the files that are not read."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from ps_cluster.files.values import one_line

_LEFT_BY_PROGRAMS = frozenset({"__MACOSX", "__pycache__"})
_MOST_ENDINGS = 5  # a note names at most this many endings


def folders_in(folder: Path) -> list[str]:
    """Return the sorted names of the folders in a folder, except hidden folders and names that begin with "__"."""
    return sorted(
        entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith((".", "__"))
    )


def files_in(folder: Path) -> list[str]:
    """Return the sorted names of the files in a folder, except hidden files."""
    return sorted(entry.name for entry in os.scandir(folder) if entry.is_file() and not entry.name.startswith("."))


def files_below(folder: Path, left_out: frozenset[str] = _LEFT_BY_PROGRAMS) -> Iterator[Path]:
    """Yield the files below a folder, sorted by folder and name, without hidden files and folders.

    A link to a folder is yielded like a file and not followed, because it may lead to a folder above. `left_out`: the
    names of folders that are skipped.
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
    """Return a tuple with a line that says that the files `paths` are not read; () if there are no paths.

    `root`: a folder above the files; the line names a file relative to it. `why`: the reason to state in the line.
    """
    if not paths:
        return ()
    return (f"not read ({why}): {endings_of(paths)}, such as '{one_line(str(paths[0].relative_to(root)), 200)}'",)


def endings_of(paths: Sequence[Path]) -> str:
    """Return the endings of names with their counts, the most frequent first: "3 .heic, 1 without an ending"."""
    counts = Counter(path.suffix.lower() or "without an ending" for path in paths)
    parts = [f"{count:,} {one_line(ending, 20)}" for ending, count in counts.most_common(_MOST_ENDINGS)]
    return ", ".join(parts) + ", …" * (len(counts) > _MOST_ENDINGS)
