import pytest

from ps_cluster.config import build_config
from ps_cluster.installation import CONFIG_FOLDER


@pytest.mark.parametrize(
    ("mode", "settings", "images"),
    [
        ("async", {}, 128),
        ("single", {}, 128),
        ("sync", {}, 3 * 128),
        ("sync-ps", {"mode.backup_workers": 1}, 2 * 128),
        ("elastic", {"optimizer.rule": "sgd", "mode.local_steps": 5}, 5 * 128),
    ],
)
def test_images_behind_an_update_are_those_that_its_gradients_were_computed_from(mode, settings, images):
    fixed = {"mode.name": mode, "training.batch_size_per_worker": 128}
    config = build_config(None, fixed | settings)
    assert config.examples_per_update == images
    assert config.total_updates(10 * images) == round(10 * config.training.epochs)


@pytest.mark.parametrize(
    "file", sorted(path.name for path in CONFIG_FOLDER.glob("*.yaml") if "compare" not in path.name)
)
def test_every_configuration_that_is_shipped_is_a_sound_one(file):
    assert build_config(CONFIG_FOLDER / file).model.name == "airbench"
