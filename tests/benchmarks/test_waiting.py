from benchmarks.waiting import NOT_BEFORE, WAYS
from ps_cluster.config import build_config


def test_every_way_can_be_named_in_a_list_and_is_a_configuration():
    for name, values in WAYS.items():
        assert "," not in name
        assert build_config(overrides=values).mode.name == values["mode.name"]
    assert set(NOT_BEFORE) < set(WAYS)
