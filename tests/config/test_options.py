"""Options that set values of the configuration, and the short form of augmentation."""

import pytest

from ps_cluster.cli.options import settings_of
from ps_cluster.config import build_config
from ps_cluster.config.augmentation import VARIATIONS, Augmentation, read_variations
from ps_cluster.errors import UserError, did_you_mean


def augmentation(text) -> Augmentation:
    return build_config(None, settings_of({"data.augmentation": text})).data.augmentation


def test_names_alone_vary_as_the_defaults_do_and_what_is_not_named_is_switched_off():
    assert augmentation("flip,crop") == build_config().data.augmentation
    only = augmentation("hue=0.1")
    assert only.hue_delta == 0.1 and only == Augmentation(hue_delta=0.1)
    assert augmentation("none") == Augmentation()


def test_every_setting_of_augmentation_has_a_short_form():
    assert {one.setting for one in VARIATIONS.values()} == set(Augmentation.model_fields)
    text = "flip=random, crop=4, hue=0.2, brightness=0.1, contrast=0.8-1.2, saturation=0.5-1.5, cutout=8"
    assert augmentation(text).model_dump(mode="json") == {
        "crop_padding_pixels": 4,
        "flip": "random",
        "hue_delta": 0.2,
        "brightness_delta": 0.1,
        "contrast_range": [0.8, 1.2],
        "saturation_range": [0.5, 1.5],
        "cutout_pixels": 8,
    }


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("flop", "did you mean 'flip'? write flip or flip=random"),
        ("", "write flip"),
        ("none,flip", "write flip"),
        ("flip,flip=random", "flip is given twice"),
        ("hue", "hue needs a value: write hue=0.1"),
        ("crop=x", "'x' is not a whole number in plain digits: write crop or crop=4"),
        ("contrast=1", "'1' is not a finite number in plain digits: write contrast=0.8-1.2"),
    ],
)
def test_a_short_form_that_can_not_be_read_is_told_with_what_there_is(text, told):
    with pytest.raises(ValueError, match="^(?!$)") as error:
        read_variations(text)
    assert told in str(error.value)
    with pytest.raises(UserError, match="^--augment: got "):
        settings_of({"data.augmentation": text})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("flip=sometimes", "data.augmentation.flip: got 'sometimes'"),
        ("contrast=2-1", "the lowest factor, 2.0, is above"),
    ],
)
def test_a_value_out_of_range_is_told_as_in_a_file(text, told):
    with pytest.raises(UserError) as error:
        augmentation(text)
    assert told in str(error.value)


def test_data_without_images_refuses_variations_as_in_a_file():
    values = settings_of({"data.augmentation": "flip", "data.dataset": "table:x.csv"})
    with pytest.raises(UserError, match="data.augmentation: got .* does not use it .*cifar10"):
        build_config(None, values)


@pytest.mark.parametrize(
    ("name", "known", "near"),
    [
        ("asink", ("async", "sync-ps", "single"), "async"),
        ("cluster.wrokers", ("cluster.workers", "training.epochs"), "cluster.workers"),
        ("training.learning_rate", ("training.label_smoothing", "optimizer.learning_rate"), "optimizer.learning_rate"),
        ("workers", ("cluster", "cluster.workers"), "cluster.workers"),
        ("zebra", ("async", "sync"), None),
        ("x" * 10**5, ("x",), None),
        ("mode.evry", ("mode.name",), None),
    ],
)
def test_the_nearest_name_is_the_one_that_was_meant_and_nothing_is_near_to_another_word(name, known, near):
    assert did_you_mean(name, known) == (f"did you mean '{near}'? " if near else "")
