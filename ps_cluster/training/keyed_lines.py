"""Tell the user when a table of keys has no room for the rows of new keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ps_cluster.models.keyed_rows import EMPTY, KeyedRows
from ps_cluster.runs.checkpoints import KEYED

AGAIN_AT = 10  # times as many ended rows as the last line has told


class KeyedLines:
    """Finds out from the arrays of a checkpoint how full the tables of keys are.

    A line comes when rows have ended because other keys needed their places, and again when they are `AGAIN_AT` times as many.
    """

    def __init__(self, forms: Sequence[KeyedRows]):
        """Create it. `forms`: of all tables of keys, in the order in which a checkpoint has them."""
        self._forms = forms
        self._next = [1] * len(forms)

    def of(self, arrays: Mapping[str, np.ndarray]) -> Iterator[str]:
        """Yield the lines about a checkpoint."""
        begin = 0
        for index, form in enumerate(self._forms):
            state = arrays[KEYED][begin : begin + form.state_size].reshape(form.buckets, -1)
            begin += form.state_size
            ended, rows = int(state[:, -1].sum()), int((state[:, : form.ways] != EMPTY).sum())
            if ended >= self._next[index]:
                self._next[index] = AGAIN_AT * ended
                yield (
                    f"the DynamicEmbedding '{form.name}' is short of room: {rows:,} of its {form.places:,} places have rows, "
                    f"and {ended:,} row{'s have' if ended > 1 else ' has'} ended because other keys needed the place: give "
                    "it a larger budget, or fewer rows by admit_after or expire_after"
                )
