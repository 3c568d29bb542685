"""What a training is built from."""

from pathlib import Path

import pytest

from ps_cluster.config import build_config, user_code
from ps_cluster.errors import UserError
from ps_cluster.process_variables import TRUSTED_FILES
from ps_cluster.training.building import build
from tests.helpers.data import only_named

MODE = """
from ps_cluster.training.modes.base import DefaultMode

class Plain(DefaultMode):
    def worker_step(self, *given):
        return print
"""


def test_a_mode_whose_step_is_no_compute_is_refused_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv(TRUSTED_FILES, "")
    file = tmp_path / "mine.py"
    file.write_text(MODE)
    mode = user_code.trust_reference(f"{file}:Plain", tmp_path)
    settings = {"mode.name": mode, "data.dataset": "cifar10", "model.name": "mlp", "training.steps": 1}
    dataset = only_named("cifar10", Path("/data"), 100, 10)
    with pytest.raises(UserError, match="mine.py:Plain': its worker_step returned builtin_function_or_method: return"):
        build(build_config(None, settings), dataset, ["/device:CPU:0"], "/device:CPU:0", "leader", None)
