from pathlib import Path

import pytest

from ps_cluster.config import user_code
from ps_cluster.data.packing import write_packed
from ps_cluster.launch import network_check
from ps_cluster.launch.network_check import NetworkFacts
from ps_cluster.tools.bench import cases
from tests.doors import toy_data

TOYS = Path(toy_data.__file__).parent


@pytest.fixture(scope="session")
def regression_case(tmp_path_factory):
    """A case, and its data."""
    name = user_code.trust_reference(f"{TOYS}/toy_data.py:load", Path.cwd())
    packed = write_packed(tmp_path_factory.mktemp("regression") / "packed", name, "real", toy_data.load())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(network_check, "check_network", lambda *_: NetworkFacts())  # which builds it, in another process
        model, values = f"{TOYS}/toy_table_network.py:build", {"training.steps": 32}
        (case,) = cases.cases([model], ["float32"], packed, values)
    return case, packed
