"""Statistics of the fields of a data set, against numpy."""

import numpy as np
import pytest

from ps_cluster.config.datasets import Contents
from ps_cluster.data.describing import describe
from ps_cluster.data.packing import write_packed


@pytest.fixture
def arrays():
    draw = np.random.default_rng(0)
    return {
        "numbers": (1e6 + draw.normal(0, 3, (500, 2))).astype(np.float64),
        "kind": draw.integers(-4, 5, 500).astype(np.int32),
        "signal": draw.normal(0, 1, (500, 40, 3)).astype(np.float32),
        "target": draw.normal(7, 1, 500).astype(np.float32),
    }


def pack(path, arrays):
    return write_packed(path / "packed", "own", "real", Contents.of(arrays, arrays, objective="regression"))


def test_each_number_of_a_short_row_is_described_apart_and_a_long_one_as_a_whole(tmp_path, arrays):
    told = {one.name: one for one in describe(pack(tmp_path, arrays))}
    assert list(told) == ["numbers[0]", "numbers[1]", "kind", "signal", "target"]
    whole = {"numbers[0]": arrays["numbers"][:, 0], "numbers[1]": arrays["numbers"][:, 1]} | arrays
    for name, one in told.items():
        values = whole[name].astype(np.float64)
        expected = values.min(), values.mean(), values.std(), values.max()
        assert (one.low, one.mean, one.std, one.high) == pytest.approx(expected, rel=1e-9), name
        assert (one.missing, one.rows) == (0, 500)
    assert told["signal"].shape == (40, 3) and told["kind"].dtype == "int32"


def test_missing_values_are_counted_and_the_others_described(tmp_path, arrays):
    dataset = pack(tmp_path, arrays)
    holed = arrays["numbers"].copy()
    holed[:, 1] = np.nan
    holed[[0, 7], 0] = np.nan, np.inf
    holed.tofile(dataset.directory / "train_numbers.float64")
    first, second, *_ = describe(dataset)
    rest = np.delete(arrays["numbers"][:, 0], [0, 7])
    assert (first.missing, second.missing) == (2, 500)
    assert (first.low, first.mean, first.high) == pytest.approx((rest.min(), rest.mean(), rest.max()))
    assert (second.low, second.mean, second.std, second.high) == (None, None, None, None)


def test_of_a_field_that_is_too_large_parts_from_beginning_to_end_are_read(tmp_path):
    rows = np.repeat(np.arange(64, dtype=np.float32), 2**14)[:, None] * np.ones([1, 8], np.float32)  # 32 MiB
    arrays = {"numbers": rows, "target": rows[:, 0]}
    dataset = pack(tmp_path, arrays)
    first = describe(dataset, most_bytes=2**24)[0]
    assert first.rows == len(rows) / 2
    assert first.high > 50 and first.mean == pytest.approx(31.5, abs=5)
