"""The page of a data set of images: examples of each class are on it, as they are and varied."""

import base64
import io
import re

import numpy as np
import pytest
from PIL import Image

from ps_cluster.config import build_config
from ps_cluster.config.augmentation import Augmentation
from ps_cluster.errors import UserError
from ps_cluster.report.data_page import VARIATIONS, write_data_page
from ps_cluster.report.pictures import CELL, as_source
from tests.helpers.data import LETTERS, pack_images, random_images
from tests.helpers.html_pages import loaded_by


def pixels(source):
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(source.partition(",")[2]))))


@pytest.mark.parametrize("size", [(28, 28), (300, 300), (120, 200), (1, 84)])
def test_a_picture_is_whole_and_at_most_as_large_as_a_cell(size):
    times = CELL // max(size)
    expected = np.array(size) * times if times else np.round(np.array(size) * CELL / max(size)).astype(int)
    found = pixels(as_source(np.full([*size, 3], (0, 200, 0), np.uint8)))
    assert found.shape == (*expected, 3) and (found == (0, 200, 0)).all() and max(expected) <= CELL


def test_grey_images_stay_grey():
    assert (pixels(as_source(np.full([28, 28, 1], 77, np.uint8))) == 77).all()


@pytest.fixture
def dataset(tmp_path):
    """Images of the classes a to i, of which none is to train on for j; a name has to be escaped."""
    images, _ = random_images(180)
    arrays = (images, (np.arange(180) % 9).astype(np.uint8), *random_images(20, seed=1))
    return pack_images(tmp_path / "packed", "cifar10", ("<b>a</b>", *LETTERS[1:]), arrays)


def settings(**augmentation):
    values = {f"data.augmentation.{name}": value for name, value in augmentation.items()}
    return build_config(None, {"data.dataset": "cifar10"} | values).data


PLAIN = settings().model_copy(update={"augmentation": Augmentation()})


@pytest.mark.parametrize("varied", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_page_has_as_many_pictures_of_each_class_whether_they_are_varied_or_not(tmp_path, dataset, varied):
    page = write_data_page(dataset, settings() if varied else PLAIN, tmp_path / "page.html", seed=0).read_text()
    counts = [row.count("<img") for row in re.findall(r"<tr><th scope=\"row\">.*?</tr>", page, re.S)]
    assert counts == [2 * (1 + VARIATIONS)] * 9 + [0] and page.count("no training examples") == 1
    assert ("as training varies it" in page) is varied and ("training varies the images by: " in page) is varied
    assert all(source.startswith("data:image/png;base64,") for source in loaded_by(page))
    assert "<b>a</b>" not in page and "180 training + 20 test images" in page


def test_the_file_has_the_name_of_the_data_set_unless_another_is_given(tmp_path, dataset, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for output in (None, tmp_path / "mine.html"):
        path = write_data_page(dataset, PLAIN, output, seed=0)
        assert path.name == ("mine.html" if output else "cifar10.html") and path.is_file()


def test_a_variation_that_does_not_fit_the_images_is_refused_before_a_file_is_written(tmp_path, dataset):
    with pytest.raises(UserError, match="crop_padding_pixels: got 32: it has to be at most 31 for images of 32x32"):
        write_data_page(dataset, settings(crop_padding_pixels=32), tmp_path / "mine.html", seed=0)
    assert not (tmp_path / "mine.html").exists()
