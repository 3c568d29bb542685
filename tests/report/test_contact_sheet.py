"""The picture of a data set: everything is on it, and nothing over anything else."""

import numpy as np
import pytest
from PIL import Image

from ps_cluster.config import build_config
from ps_cluster.config.datasets import Augmentation
from ps_cluster.data.describing import ExampleGroup, VariedImage
from ps_cluster.errors import UserError
from ps_cluster.report.pictures import CELL
from ps_cluster.report.sheets import Shape, draw_sheet, shape_for, write_sheet
from tests.helpers.data import LETTERS, pack_images, random_images

GREEN, RED = (0, 200, 0), (200, 0, 0)
BLUE, ORANGE = (0x00, 0x72, 0xB2), (0xE6, 0x9F, 0x00)


def filled(colour, height=28, width=28):
    return np.full([height, width, len(colour)], colour, np.uint8)


def group(name="cat", train=5, test=1, samples=1, variations=2, size=(28, 28)):
    one = VariedImage(filled(GREEN, *size), tuple([filled(RED, *size)] * variations))
    return ExampleGroup(name, np.arange(train), test, (one,) * samples)


def drawn(groups, shape=Shape(1, 1, 2), title="Animals"):
    return np.asarray(draw_sheet(title, ["a line"], groups, shape))


def area(sheet, colour):
    return int((sheet == colour).all(-1).sum())


@pytest.mark.parametrize("size", [(28, 28), (32, 32), (8, 8), (300, 300), (120, 200), (1, 84)])
def test_every_image_is_whole_on_the_sheet_at_most_as_large_as_a_cell(size):
    times = CELL // max(size)
    cell = np.array(size) * times if times else np.round(np.array(size) * CELL / max(size)).astype(int)
    sheet = drawn([group(size=size), group(size=size)])
    assert area(sheet, GREEN) == 2 * cell.prod() and area(sheet, RED) == 4 * cell.prod()
    assert max(cell) <= CELL


def test_grey_images_stay_grey():
    one = VariedImage(filled((77,)), ())
    assert area(drawn([ExampleGroup("cat", np.arange(1), 0, (one,))], Shape(1, 1, 0)), (77, 77, 77)) == 84 * 84


def test_bars_are_as_long_as_the_counts():
    few, many = (drawn([group(train=80, test=20), group(train=train, test=0)]) for train in (0, 100))
    assert area(many, BLUE) - area(few, BLUE) == 130 * 12, "the longest bar"
    assert area(few, ORANGE) == pytest.approx(0.2 * 130 * 12, abs=60), "and the word above"


def test_a_long_name_and_a_long_title_do_not_reach_the_images_or_the_border():
    long = "a name that has no end " * 40
    sheet = drawn([group(name=long), group()], title=long)
    assert area(sheet, GREEN) == 2 * 84 * 84
    assert (sheet[:, -20:] == 255).all() and (sheet[:, :20] == 255).all()


def test_a_class_without_training_examples_has_a_row():
    without = ExampleGroup("bird", np.arange(0), 3)
    assert drawn([group(), without]).shape[0] == drawn([group(), group()]).shape[0]


@pytest.mark.parametrize(("groups", "columns"), [(1, 1), (20, 1), (21, 2), (50, 2), (51, 3), (100, 3)])
def test_many_classes_stand_in_several_columns_each_once(groups, columns):
    shape = shape_for(groups, varied=True)
    assert shape.columns == columns
    sheet = drawn([group(samples=shape.samples, variations=shape.variations) for _ in range(groups)], shape)
    assert area(sheet, GREEN) == groups * shape.samples * 84 * 84


def test_without_variations_as_many_images_are_shown_as_they_are():
    for groups in (10, 30, 100):
        plain, varied = shape_for(groups, varied=False), shape_for(groups, varied=True)
        assert plain.variations == 0 and plain.samples == varied.samples * (1 + varied.variations)


@pytest.fixture
def dataset(tmp_path):
    return pack_images(tmp_path / "packed", "cifar10", LETTERS, (*random_images(60), *random_images(20, seed=1)))


def settings(**augmentation):
    values = {f"data.augmentation.{name}": value for name, value in augmentation.items()}
    return build_config(None, {"data.dataset": "cifar10"} | values).data


def test_the_sheet_is_a_png_with_the_name_of_the_data_set_unless_another_is_given(tmp_path, dataset, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plain = settings().model_copy(update={"augmentation": Augmentation()})
    for output in (None, tmp_path / "mine.png"):
        path = write_sheet(dataset, plain, output, seed=0)
        assert path.name == ("mine.png" if output else "cifar10.png")
        with Image.open(path) as sheet:
            assert sheet.format == "PNG" and sheet.width > 1000


def test_a_variation_that_does_not_fit_the_images_is_refused_before_a_file_is_written(tmp_path, dataset):
    with pytest.raises(UserError, match="data.augmentation.crop_padding_pixels: got 32: images of 32x32"):
        write_sheet(dataset, settings(crop_padding_pixels=32), tmp_path / "mine.png", seed=0)
    assert not (tmp_path / "mine.png").exists()
