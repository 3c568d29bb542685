"""Leave out the lines that converters print and nobody can act on, and the temporary files that they leave."""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from ps_cluster.quiet_import import NO_NEWS, without_lines

_NO_NEWS = (*NO_NEWS, "fully_quantize: ", "Created TensorFlow Lite XNNPACK delegate")


@contextmanager
def without_known_lines() -> Iterator[None]:
    """Drop them from standard error inside the block, and warnings: .h5 is legacy, tf.lite goes to another package."""
    absl = logging.getLogger("absl")
    level = absl.level
    absl.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with without_lines(_NO_NEWS):
                yield
    finally:
        absl.setLevel(level)


@contextmanager
def own_temporary_folder() -> Iterator[None]:
    """Give this process a temporary folder of its own inside the block, and remove it at the end.

    Keras and the converters have AutoGraph write modules there, whose compiled form nobody removes.
    """
    before = tempfile.tempdir
    with tempfile.TemporaryDirectory(prefix="ps-cluster-export-") as tempfile.tempdir:
        try:
            yield
        finally:
            tempfile.tempdir = before
