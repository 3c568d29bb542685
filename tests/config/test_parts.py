import pytest

from ps_cluster.config.registry import Part, import_object


@pytest.mark.parametrize("part", Part)
def test_every_part_that_is_named_by_a_string_is_there(part):
    assert callable(import_object(part))
