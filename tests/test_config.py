import pytest

from ps_cluster.config import build_config


@pytest.mark.parametrize(
    ("mode", "settings", "images"),
    [
        ("async", {}, 128),
        ("single", {}, 128),
        ("sync", {}, 3 * 128),
        ("sync-ps", {"training.backup_workers": 1}, 2 * 128),
        ("elastic", {"optimizer.rule": "sgd", "elastic.local_steps": 5}, 5 * 128),
    ],
)
def test_images_behind_an_update_are_those_that_its_gradients_were_computed_from(mode, settings, images):
    fixed = {"training.mode": mode, "cluster.workers": 3, "training.batch_size_per_worker": 128}
    config = build_config(None, fixed | settings)
    assert config.examples_per_update == images
    assert config.total_updates(10 * images) == round(10 * config.training.epochs)
