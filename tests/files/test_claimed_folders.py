import pytest

from ps_cluster.errors import UserError
from ps_cluster.files import claimed_folders


def test_a_plan_that_is_no_text_is_another_plan(tmp_path):
    (tmp_path / "plan.yaml").write_bytes(b"\xff")
    with pytest.raises(UserError, match="holds another comparison"):
        claimed_folders.claim(tmp_path, "plan.yaml", "a: 1\n", "comparison")
