"""The data set on which sweeps are planned and run."""

import pytest

from tests.helpers.data import LETTERS, pack_images, random_images


@pytest.fixture(scope="session")
def dataset(tmp_path_factory):
    """1,000 training images, of which a tenth judges the trials."""
    arrays = (*random_images(1000), *random_images(20))
    return pack_images(tmp_path_factory.mktemp("data") / "set", "synthetic", LETTERS, arrays)
