"""Which examples the page of a data set shows, and that they are varied as training varies them."""

from dataclasses import replace

import numpy as np
import pytest

from ps_cluster.config import build_config
from ps_cluster.config.augmentation import Augmentation
from ps_cluster.config.datasets import DATASETS, Contents
from ps_cluster.data.class_examples import groups_of, image_variation, with_samples
from ps_cluster.data.packing import write_packed
from tests.helpers.data import LETTERS, pack_images

LABELS = np.array([3, 0, 3, 9, 3, 0], np.uint8)
IMAGES = np.broadcast_to(np.arange(6, dtype=np.uint8)[:, None, None, None], (6, 32, 32, 3))  # each of one grey


@pytest.fixture
def dataset(tmp_path):
    return pack_images(tmp_path / "packed", "cifar10", LETTERS, (IMAGES, LABELS, IMAGES[:2], LABELS[:2]))


def samples_of(dataset, vary=None, **options):
    options = {"samples": 2, "variations": 0, "seed": 0} | options
    return with_samples(dataset, groups_of(dataset), vary, **options)


def test_classes_come_in_their_order_with_counts_also_where_nothing_is_of_them(dataset):
    counts = [(group.name, group.train_examples, group.test_examples) for group in groups_of(dataset)]
    expected = {"a": (2, 1), "d": (3, 1), "j": (1, 0)}
    assert counts == [(letter, *expected.get(letter, (0, 0))) for letter in LETTERS]


def test_samples_are_of_their_class_and_at_most_as_many_as_there_are(dataset):
    found = {group.name: [int(one.image[0, 0, 0]) for one in group.samples] for group in samples_of(dataset)}
    assert found.pop("a") == [1, 5] and found.pop("j") == [3] and set(found.pop("d")) < {0, 2, 4}
    assert set(map(tuple, found.values())) == {()}


def test_another_seed_draws_other_samples(dataset):
    def drawn(seed):
        return tuple(
            int(one.image[0, 0, 0]) for group in samples_of(dataset, samples=1, seed=seed) for one in group.samples
        )

    assert drawn(0) == drawn(0) and len({drawn(seed) for seed in range(8)}) > 1


def test_variations_are_those_of_consecutive_epochs_of_the_same_image(dataset):
    asked = []

    def vary(ids, epoch):
        asked.append(epoch)
        return dataset.inputs("train")["image"][ids].astype(np.float32) + 100.4 + epoch

    groups = samples_of(dataset, vary, variations=3)
    assert asked == [0, 1, 2]
    for sample in (one for group in groups for one in group.samples):
        grey = int(sample.image[0, 0, 0])
        assert [int(image[0, 0, 0]) for image in sample.varied] == [grey + 100, grey + 101, grey + 102]
        assert sample.varied[0].dtype == np.uint8


def test_ranges_of_a_regression_hold_each_example_once_and_meet_at_the_mean(tmp_path):
    values = np.random.default_rng(0).normal(5, 2, 400).astype(np.float32)
    arrays = {"numbers": np.zeros([400, 3], np.float32), "target": values}
    dataset = write_packed(tmp_path / "packed", "own", "real", Contents.of(arrays, arrays, objective="regression"))
    groups = groups_of(dataset)
    assert len(groups) == 8 and sorted(np.concatenate([one.train_ids for one in groups])) == list(range(400))
    below = np.concatenate([one.train_ids for one in groups[:4]])
    assert values[below].max() < values.mean() <= np.delete(values, below).min()
    assert groups[0].name.startswith("below ") and groups[7].name.endswith(" and above")


def test_an_example_with_two_labels_is_in_both_groups(tmp_path):
    arrays = {"numbers": np.zeros([3, 2], np.float32), "target": np.array([[1, 1], [0, 1], [0, 0]], np.uint8)}
    contents = Contents.of(arrays, arrays, objective="multi-label", classes=["red", "round"])
    dataset = write_packed(tmp_path / "packed", "own", "real", contents)
    assert [(one.name, one.train_ids.tolist()) for one in groups_of(dataset)] == [("red", [0]), ("round", [0, 1])]


def test_where_training_varies_nothing_there_is_nothing_to_draw(dataset):
    config = build_config(None, {"data.dataset": "cifar10"})
    kind = DATASETS["cifar10"]
    assert image_variation(kind, config.data, dataset, 0) is not None
    assert image_variation(kind, config.data.model_copy(update={"augmentation": Augmentation()}), dataset, 0) is None


def test_images_are_mirrored_in_every_second_epoch_as_the_setting_says(dataset):
    settings = build_config(None, {"data.dataset": "cifar10", "data.augmentation.crop_padding_pixels": 0}).data
    marked = replace(dataset, directory=dataset.directory)
    images = np.array(IMAGES)
    images[:, :, 0] = 255  # the left column is white
    images.tofile(dataset.directory / "train_image.uint8")
    vary = image_variation(DATASETS["cifar10"], settings, marked, 0)
    first, second, third = (vary(np.arange(6), epoch) for epoch in range(3))
    np.testing.assert_array_equal(second, first[:, :, ::-1])
    np.testing.assert_array_equal(third, first)
    assert 0 < (first[:, 0, 0, 0] == 255).sum() < 6, "some are mirrored in the first epoch and some are not"
