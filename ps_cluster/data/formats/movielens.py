"""Read the data format `movielens`: ratings of films as published by GroupLens, in MovieLens 100K to 20M and later."""

from __future__ import annotations

import os
import re
import zlib
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pydantic import Field

from ps_cluster.config.datasets import Contents, DataSettings
from ps_cluster.config.objectives import ArrayField, ExampleSpec
from ps_cluster.data.formats import PathFormat
from ps_cluster.data.line_files import arrays_of_lines, lines_of
from ps_cluster.files.values import Malformed

# Larger identifiers are refused, because the table of users or films needs a row for each number up to the largest one.
_MOST_KEYS = 10_000_000


class _Published(NamedTuple):
    """A published file format of ratings."""

    separator: bytes
    first_line: re.Pattern[bytes]  # a pattern that matches the first line
    heading: bool = False  # whether the first line is a heading


_FILE_FORMATS = {
    "u.data": _Published(b"\t", re.compile(rb"\d+\t\d+\t\d+\t\d+")),
    "ratings.dat": _Published(b"::", re.compile(rb"\d+::\d+::[\d.]+::\d+")),
    "ratings.csv": _Published(b",", re.compile(rb"userId,movieId,rating,timestamp"), heading=True),
}


class MovieLensSettings(DataSettings):
    """Settings for a data set of ratings in the file format of MovieLens."""

    held_out: float = Field(
        default=0.1,
        gt=0,
        lt=1,
        description="Share of the ratings that is held out for testing, chosen by a hash of the line.",
    )


class MovieLens(PathFormat[MovieLensSettings]):
    """Ratings of films. Users and films are keys, and the rating is the number to predict.

    A key is the published identifier, so that you can ask for predictions by that identifier. The embeddings of users
    and films therefore have a row for each number up to the largest identifier. A rating is held out to test on if the
    CRC-32 of its line is small, so that it stays in its split when other ratings are added.
    """

    name = "movielens"
    looks_for = f"ratings as MovieLens publishes them ({', '.join(_FILE_FORMATS)}), or the folder of such a file"
    endings = tuple(_FILE_FORMATS)
    Settings = MovieLensSettings
    recipe = {"model": {"name": "two_tower"}, "evaluation": {"recall_at": 10}}

    def recognises(self, path: Path) -> bool:
        return _ratings_of(path) is not None

    def read(self, source: Path | None, settings: MovieLensSettings) -> Contents:
        if (file := _ratings_of(self.path)) is None:
            raise Malformed(f"it has no ratings in a published file format: give {self.looks_for}")
        file_format = _FILE_FORMATS[file.name]

        def parse(line: bytes) -> tuple[tuple[int, int], float, int]:
            columns = line.split(file_format.separator)
            if len(columns) != 4:
                raise ValueError(f"it has {len(columns)} columns instead of four (user, film, rating and time)")
            user, film, rating = int(columns[0]), int(columns[1]), float(columns[2])
            if not (0 <= user < _MOST_KEYS and 0 <= film < _MOST_KEYS and 0 <= rating <= 10):
                raise ValueError(f"user {user}, film {film} or rating {rating:g} is out of range")
            return (user, film), rating, zlib.crc32(line)

        fields = {"categories": ArrayField("int32", (2,)), "target": ArrayField("float32", ())}
        arrays = arrays_of_lines(file, fields | {"hash": ArrayField("uint32", ())}, parse, heading=file_format.heading)
        tested = arrays.pop("hash") < settings.held_out * 2**32
        if tested.all() or not tested.any():
            raise Malformed(f"its {len(tested):,} ratings are too few to hold some out to test on")
        train, test = ({name: rows[which] for name, rows in arrays.items()} for which in (~tested, tested))
        users, films = (int(most) + 1 for most in np.max(arrays["categories"], axis=0))
        note = f"held out {len(test['target']):,} of {len(tested):,} ratings for testing, by a hash of their lines"
        keys = replace(fields["categories"], codes=(users, films))
        spec = ExampleSpec({"categories": keys}, fields["target"], "regression")
        return Contents(spec, {"train": train, "test": test}, notes=(note,))


def _ratings_of(path: Path) -> Path | None:
    """Return the file of ratings, which is `path` or a file in it; None if no file has a published format."""
    files = [path / name for name in _FILE_FORMATS] if os.path.isdir(path) else [path]
    for file in files:
        file_format = _FILE_FORMATS.get(file.name)
        if file_format and os.path.isfile(file) and file_format.first_line.fullmatch(next(lines_of(file), b"")):
            return file
    return None
