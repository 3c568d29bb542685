"""Building a training from its settings: the store, and the computation of a step."""

import pytest

from ps_cluster.config import build_config, user_code
from ps_cluster.errors import UserError
from ps_cluster.process_variables import TRUSTED_FILES
from ps_cluster.training.building import build
from tests.helpers.data import LETTERS, pack_images, random_images

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
    settings = {"mode.name": mode, "data.dataset": "cifar10", "model.name": "mlp", "model.precision": "float32"}
    dataset = pack_images(tmp_path / "packed", "cifar10", LETTERS, (*random_images(20), *random_images(20)))
    with pytest.raises(UserError, match="mine.py:Plain': its worker_step returned builtin_function_or_method: return"):
        build(build_config(None, settings), dataset, ["/device:CPU:0"], "/device:CPU:0", "leader", None)
