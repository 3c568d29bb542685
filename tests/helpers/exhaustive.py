"""Choose which of a test's parameters are tried at every change. `--exhaustive` tries all of them, before a release."""

from collections.abc import Iterable

import pytest

EXHAUSTIVE = pytest.mark.exhaustive


def mostly(values: Iterable, *always):
    """Return `values` as parameters of a test. Values that are not in `always` are tried only with `--exhaustive`."""
    values = list(values)
    assert all(one in values for one in always), "the values that are always tried have to be among all values"
    return [pytest.param(value, marks=() if value in always else EXHAUSTIVE) for value in values]
