"""Choose which of a test's parameters are tried at every change. `--exhaustive` tries all of them, before a release."""

from collections.abc import Iterable

import pytest

EXHAUSTIVE = pytest.mark.exhaustive


def mostly(values: Iterable, *always):
    """Return `values` as parameters of a test, of which all but those in `always` are tried with `--exhaustive` only."""
    values = list(values)
    assert all(one in values for one in always), "a value that is always tried is one of them"
    return [pytest.param(value, marks=() if value in always else EXHAUSTIVE) for value in values]
