"""The data and the network of docs/tutorial.md can be trained exactly as the page shows them."""

import json
import re

import pytest

from tests.helpers.real_cluster import PROJECT, pasted

PAGE = (PROJECT / "docs" / "tutorial.md").read_text(encoding="utf-8")


@pytest.mark.exhaustive
@pytest.mark.cluster
def test_the_network_of_the_tutorial_learns_from_its_data(tmp_path):
    make_waves, my, _ = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
    (tmp_path / "make_waves.py").write_text(make_waves)
    (tmp_path / "my.py").write_text(my)
    run = "run --dataset waves.npz --model my.py:build --workers 2 --batch-size 32 --steps 300 --run-dir run"
    pasted(f"python make_waves.py\npython cli.py {run}", tmp_path)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["evaluation"]["test_accuracy"] > 0.6
