"""Pictures in a folder for each class."""

import numpy as np
import pytest
from PIL import Image

from ps_cluster.data.picture_sets import PictureSettings
from tests.helpers.own_data import draw, packed, refused

RED, BLUE = (250, 10, 10), (10, 10, 250)


@pytest.fixture
def pets(tmp_path):
    """A folder with two classes of three pictures to train on and one to test on, of several types."""
    for split, count in (("train", 3), ("test", 1)):
        for name, colour in (("cat", RED), ("dog", BLUE)):
            for number, ending in zip(range(count), ("png", "bmp", "gif")):
                draw(tmp_path / "pets" / split / name / f"{number}.{ending}", colour=colour)
    return tmp_path / "pets"


def test_pictures_become_images_of_the_classes_that_the_folders_are_called(pets):
    dataset, _ = packed(pets)
    assert dataset.spec.classes == ("cat", "dog") and dataset.spec.image("x").shape == (8, 6, 3)
    labels = dataset.target("train")
    assert sorted(labels) == [0, 0, 0, 1, 1, 1] and dataset.target("test").tolist() == [0, 1]
    means = dataset.inputs("train")["image"].mean((1, 2))
    np.testing.assert_allclose(means, [(RED, BLUE)[label] for label in labels], atol=4)


def test_training_examples_that_are_held_out_for_choosing_are_of_all_classes(tmp_path):
    for name in ("cat", "dog"):
        for number in range(20):
            draw(tmp_path / "many" / name / f"{number}.png")
    dataset = packed(tmp_path / "many")[0].holding_out(8)
    assert set(dataset.target("validation")) == set(dataset.target("train")) == {0, 1}


def test_a_picture_more_behind_a_link_is_another_copy_and_a_link_to_nothing_is_passed_over(pets):
    (pets / "train" / "dog").rename(pets.parent / "elsewhere")
    (pets / "train" / "dog").symlink_to(pets.parent / "elsewhere")
    assert packed(pets)[0].train_examples == 6
    draw(pets.parent / "elsewhere" / "9.png")
    (pets / "train" / "cat" / ".#0.png").symlink_to("nowhere")
    (pets / "train" / "cat" / "loop").symlink_to(pets)
    assert packed(pets)[0].train_examples == 7


def test_a_second_folder_to_test_on_is_told(pets):
    draw(pets / "val" / "cat" / "1.png")
    assert "'val' is not used: 'test' has the examples to test on" in packed(pets)[1]


def test_without_a_folder_to_test_on_a_share_of_each_class_is_held_out(pets):
    dataset, told = packed(pets / "train", held_out=0.3)
    assert sorted(dataset.target("test")) == [0, 1] and dataset.train_examples == 4
    assert any(line.startswith("held out 2 of 6 examples for testing") for line in told)


def test_a_class_that_is_not_tested_is_no_mistake(pets):
    (pets / "test" / "dog" / "0.png").unlink()
    assert packed(pets)[0].target("test").tolist() == [0]


def test_pictures_are_grey_only_if_all_are(tmp_path):
    for name in ("a", "b"):
        draw(tmp_path / "grey" / name / "1.png", colour=(7,))
        draw(tmp_path / "grey" / name / "2.png", colour=(7,))
    assert packed(tmp_path / "grey")[0].spec.image("x").shape == (8, 6, 1)
    draw(tmp_path / "grey" / "a" / "3.png")
    assert packed(tmp_path / "grey")[0].spec.image("x").shape == (8, 6, 3)


@pytest.mark.parametrize(
    ("value", "note"),
    [
        (128 * 256, None),
        (
            4095,
            "the largest value in the pictures of 16 bits is 4,095, not 65,535, so they get only 16 of 256 levels of "
            "grey: multiply their values by 16",
        ),
    ],
)
@pytest.mark.parametrize("ending", ["png", "tif"])
def test_sixteen_bits_of_grey_are_scaled_not_cut_off(tmp_path, value, note, ending):
    for name in "ab":
        for number in (1, 2):
            (tmp_path / "deep" / name).mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((4, 4), value, np.uint16)).save(tmp_path / "deep" / name / f"{number}.{ending}")
    dataset, told = packed(tmp_path / "deep")
    assert (dataset.inputs("train")["image"] == value // 256).all()
    assert [line for line in told if "16 bits" in line] == ([note] if note else [])


def test_the_shorter_side_is_resized_and_the_middle_cut_out(pets):
    wide = np.zeros((10, 40, 3), np.uint8)
    wide[:, 15:25] = RED  # the middle square
    Image.fromarray(wide).save(pets / "test" / "cat" / "0.png")
    dataset, _ = packed(pets, image_size="5")
    image = dataset.inputs("test")["image"][0]
    assert image.shape == (5, 5, 3) and abs(image.astype(int) - RED).max() <= 40
    assert packed(pets, image_size="4x7")[0].spec.image("x").shape == (4, 7, 3)
    assert PictureSettings(dataset="auto", image_size=12).sides == (12, 12)


def test_a_picture_is_shown_as_its_camera_was_held(pets):
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    halves = np.zeros((6, 8, 3), np.uint8)
    halves[:, :4] = 255
    Image.fromarray(halves).save(pets / "test" / "cat" / "0.png", exif=exif)
    image = packed(pets)[0].inputs("test")["image"][0]
    assert image.shape == (8, 6, 3), "all have one size, as shown"
    assert image[:4].min() == 255 and image[4:].max() == 0


def test_pictures_that_can_not_be_read_are_named_and_skipped_if_that_is_asked_for(pets):
    (pets / "train" / "cat" / "no.jpg").write_text("no picture")
    assert "the picture 'train/cat/no.jpg' can't be read (it is no picture of a known format)" in refused(pets)
    assert "--skip-bad" in refused(pets)
    dataset, told = packed(pets, skip_bad=True)
    assert dataset.train_examples == 6 and "skipped 1 picture that can't be read: 'train/cat/no.jpg'" in told
    for number in range(6):
        (pets / "train" / "cat" / f"no{number}.jpg").touch()
    assert any("skipped 7 pictures" in line and line.endswith("and 2 more") for line in packed(pets, skip_bad=True)[1])


def test_damage_at_the_end_of_a_picture_is_found_too(pets):
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 256, (8, 6, 3), np.uint8)).save(pets / "train" / "cat" / "cut.png")
    content = (pets / "train" / "cat" / "cut.png").read_bytes()
    (pets / "train" / "cat" / "cut.png").write_bytes(content[: len(content) // 2])
    assert "the picture 'train/cat/cut.png' can't be read" in refused(pets)


def test_a_picture_with_too_many_pixels_is_not_decoded(pets, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    draw(pets / "train" / "cat" / "large.png", size=(11, 10))
    assert "'train/cat/large.png' can't be read (it has 110 pixels, more than 100)" in refused(pets)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda pets: draw(pets / "train" / "cat" / "9.png", size=(9, 9)),
         "the pictures have 2 sizes, from 8x6 to 9x9 (height x width): choose one for all of them, e.g. --image-size 64"),
        (lambda pets: draw(pets / "test" / "cow" / "1.png"), "the class 'cow' is in 'test' and not in 'train'"),
        (lambda pets: (pets / "train" / "cow").mkdir(), "the class 'cow' has no picture to train on"),
        (lambda pets: [file.unlink() for file in pets.glob("test/*/*")], "there is no picture to test on"),
        (lambda pets: (pets / "train" / "dog").rename(pets / "train" / ".dog") and (pets / "test" / "dog").rename(
            pets / "test" / ".dog"), "there is only one class, 'cat': give at least two classes"),
    ],
)  # fmt: skip
def test_folders_that_can_not_be_learned_from_are_told(pets, change, told):
    change(pets)
    line = refused(pets)
    assert told in line and line.startswith(f"dataset: '{pets}': ")


def test_pictures_have_classes_and_no_other_targets(pets):
    assert "data.objective=regression: pictures have classes" in refused(pets, objective="regression")


@pytest.mark.parametrize("size", ["0", "x", "5x", "5x5x5", "-1", "10001", "4.5", ""])
def test_a_size_that_is_none_is_refused(size):
    with pytest.raises(ValueError, match="give height x width"):
        PictureSettings(dataset="auto", image_size=size)


def test_pictures_in_sub_folders_are_of_the_class_that_they_are_in(pets):
    draw(pets / "train" / "cat" / "more" / "2023" / "1.png", colour=RED)
    draw(pets / "train" / "cat" / ".thumbnails" / "1.png", colour=BLUE)
    dataset, told = packed(pets)
    means = dataset.inputs("train")["image"].mean((1, 2))
    np.testing.assert_allclose(means, [(RED, BLUE)[label] for label in dataset.target("train")], atol=4)
    assert dataset.train_examples == 7
    assert "pictures in sub-folders: 1; those in 'cat/more/2023', for example, belong to the class 'cat'" in told


def test_classes_whose_pictures_are_all_in_sub_folders_are_recognised(tmp_path):
    for name in ("cat", "dog"):
        for number in range(2):
            draw(tmp_path / "deep" / name / "2023" / f"{number}.png")
    assert packed(tmp_path / "deep")[0].spec.classes == ("cat", "dog")


def test_files_that_are_no_pictures_and_pictures_of_no_class_are_told(pets):
    for name in ("cat/1.heic", "dog/sub/2.heic", "cat/notes.txt", "dog/3", "../test/cat/boxes.xml"):
        (pets / "train" / name).parent.mkdir(exist_ok=True)
        (pets / "train" / name).touch()
    draw(pets / "train" / "stray.png")
    (pets / "train" / "cat" / ".DS_Store").touch()
    (pets / "extra").mkdir()
    told = packed(pets)[1]
    assert (
        "not read (not pictures of a known format): 2 .heic, 1 .txt, 1 without an ending, such as 'train/cat/1.heic'"
        in told
    )
    assert "not read (not pictures of a known format): 1 .xml, such as 'test/cat/boxes.xml'" in told
    assert "not read (outside the folders of classes): 1 .png, such as 'train/stray.png'" in told
    assert "'extra' is not used: it is neither 'train' nor the name of a test split" in told


SPLITS = [("Train", "Test"), ("TRAINING", "Testing"), ("training", "Val"), ("train", "valid"), ("train", "validation")]


@pytest.mark.parametrize(("train", "test"), SPLITS)
def test_folders_of_splits_are_known_in_capitals_and_by_other_names(pets, train, test):
    (pets / "train").rename(pets / train)
    (pets / "test").rename(pets / test)
    dataset, _ = packed(pets)
    assert (dataset.spec.classes, dataset.train_examples, dataset.test_examples) == (("cat", "dog"), 6, 2)


def test_a_class_may_be_called_train(tmp_path):
    for name in ("Bus", "Train", "train"):
        for number in range(2):
            draw(tmp_path / "vehicles" / name / f"{number}.png")
    assert packed(tmp_path / "vehicles")[0].spec.classes == ("Bus", "Train", "train")


@pytest.mark.parametrize("ending", ["tif", "TIFF"])
def test_pictures_in_tiff_are_read(pets, ending):
    draw(pets / "train" / "cat" / f"9.{ending}", colour=RED)
    assert packed(pets)[0].train_examples == 7


def only_in_one_folder(pets):
    for name in ("train", "test"):
        (pets / name).rename(pets.parent / name)
    (pets / "images").mkdir()
    for name in ("cat", "dog"):
        (pets.parent / "train" / name).rename(pets / "images" / name)


def without_train(pets):
    (pets / "train").rename(pets / "dev")


def without_classes(pets):
    for file in [*pets.rglob("*.*")]:
        file.rename(file.parent.parent / f"{file.parent.name}-{file.name}")
    for split in ("train", "test"):
        for name in ("cat", "dog"):
            (pets / split / name).rmdir()


def of_another_kind(pets):
    for file in (pets / "train" / "cat").iterdir():
        file.rename(file.with_suffix(".heic"))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (only_in_one_folder,
         "there is only one class, 'images'; if the folders in it are the classes (cat, dog), give '{}/images'"),
        (without_train, "its folders are dev, test, and none is called train: rename the folder"),
        (without_classes, "its folders test, train contain pictures, but no folders of classes: put"),
        (of_another_kind, "the class 'cat' has no picture that can be read, only 3 .heic: convert its pictures to"),
    ],
)  # fmt: skip
def test_folders_that_only_need_one_change_are_told_which(pets, change, told):
    change(pets)
    assert told.format(pets) in refused(pets)


def test_a_picture_of_fractions_is_refused_not_painted_black(pets):
    Image.fromarray(np.full((8, 6), 0.5, np.float32)).save(pets / "train" / "cat" / "9.tif")
    assert "'train/cat/9.tif' can't be read (its pixels are fractions: " in refused(pets)


def test_a_picture_of_32_bits_is_refused_not_painted_black(pets):
    Image.fromarray(np.full((8, 6), 200, np.int32)).save(pets / "train" / "cat" / "9.tif")
    assert "'train/cat/9.tif' can't be read (its pixels are numbers of 32 bits: save it with" in refused(pets)
