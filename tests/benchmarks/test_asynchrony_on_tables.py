import math

import pytest

from benchmarks.asynchrony_on_tables import next_rate


@pytest.mark.parametrize(
    ("merits", "rate"),
    [
        ({1.0: 0.7, 2.0: 0.8, 4.0: 0.75}, None),
        ({1.0: 0.7, 2.0: 0.8, 4.0: 0.85}, 8.0),
        ({1.0: -0.2, 2.0: -0.3, 4.0: -0.4}, 0.5),
        ({1.0: 0.6, 2.0: -math.inf, 4.0: -math.inf}, 0.5),
    ],
)
def test_a_grid_is_widened_where_its_best_rate_is_at_the_edge(merits, rate):
    assert next_rate(merits) == rate
