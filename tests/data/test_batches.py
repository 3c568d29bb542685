from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from ps_cluster.config.objectives import ArrayField, ExampleSpec
from ps_cluster.config.samples import parse_sample
from ps_cluster.data.batches import batch_of, map_rows, packed_examples, split_fields, splitmix64
from tests.bad_files.damage import peak_of_memory


def ids_of_steps(steps, **settings) -> np.ndarray:
    batch = tf.function(lambda step: batch_of(step, **settings).ids)
    return np.stack([batch(tf.constant(step, tf.int64)) for step in steps])


def orders_of_epochs(epochs, *, examples: int, seed: int) -> np.ndarray:
    return ids_of_steps(epochs, batch_size=examples, examples=examples, seed=seed)


@pytest.mark.parametrize(("batch_size", "examples"), [(4, 10), (5, 10), (25, 10), (3, 1), (70, 1000)])
def test_an_epoch_visits_every_image_once_even_if_batches_straddle_its_end(batch_size, examples):
    steps = range(6 * examples // batch_size)
    drawn = [batch_of(tf.constant(s, tf.int64), batch_size=batch_size, examples=examples, seed=3) for s in steps]
    ids, epochs = (np.concatenate([getattr(batch, name) for batch in drawn]) for name in ("ids", "epochs"))
    assert ids.dtype == epochs.dtype == np.int64
    for epoch in range(len(ids) // examples):
        assert sorted(ids[epochs == epoch]) == list(range(examples))


@pytest.mark.parametrize(
    ("settings", "of_step_0", "of_step_200"),
    [
        ({"seed": 7}, [827, 615, 38, 939, 389, 954, 233, 982], [755, 574, 0, 520, 324, 248, 702, 48]),
        ({"seed": 2**40 + 7}, [386, 943, 942, 524, 477, 132, 651, 709], [995, 369, 674, 179, 807, 740, 679, 393]),
        ({"seed": 7, "sample": parse_sample("shard:1/3")},
         [758, 821, 353, 342, 834, 270, 532, 846], [908, 74, 498, 251, 970, 708, 96, 758]),
    ],
)  # fmt: skip
def test_a_run_that_is_resumed_by_a_later_version_goes_on_with_the_same_examples(settings, of_step_0, of_step_200):
    ids = ids_of_steps([0, 200], batch_size=8, examples=1000, **settings)
    assert ids.tolist() == [of_step_0, of_step_200]


def test_numbers_are_mixed_by_splitmix64():
    # The first numbers of the authors' generator from 0 and from 1234567, as others print them.
    assert int(splitmix64(tf.constant(0, tf.uint64))) == 0xE220A8397B1DCDAF
    assert int(splitmix64(tf.constant(1234567, tf.uint64))) == 6457827717110365317


def test_seeds_and_epochs_that_differ_in_a_single_bit_give_other_orders():
    # TensorFlow's shuffle itself uses 8 bits of each of its three numbers here.
    seeds = {tuple(*orders_of_epochs([0], examples=100, seed=seed)) for seed in (0, 1 << 8, 1 << 31, 1 << 32, 1 << 62)}
    epochs = ids_of_steps([0, *(1 << bit for bit in range(40))], batch_size=100, examples=100, seed=0)
    assert len(seeds) == 5 and len(np.unique(epochs, axis=0)) == 41


def test_the_orders_of_epochs_and_seeds_are_uncorrelated():
    examples = 20_000
    orders = [orders_of_epochs(range(8), examples=examples, seed=seed) for seed in range(3)]
    correlation = np.triu(np.corrcoef(np.concatenate([*orders, [np.arange(examples)]])), 1)
    assert np.abs(correlation).max() < 5 / np.sqrt(examples)


@pytest.fixture
def split(tmp_path, monkeypatch):
    """77 examples, so that no file is a multiple of 64 bytes long; found by relative paths."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (77, 32, 32, 3), np.uint8)
    labels = rng.integers(0, 10, 77, np.uint8)
    floats = rng.standard_normal((77, 5), np.float32)
    images.tofile(tmp_path / "images.u8")
    labels.tofile(tmp_path / "labels.u8")
    floats.tofile(tmp_path / "floats.f4")
    monkeypatch.chdir(tmp_path)
    return images, labels, floats


IMAGE, LABEL, FLOATS = ArrayField("uint8", (32, 32, 3)), ArrayField("uint8", ()), ArrayField("float32", (5,))
FILES = {"images.u8": IMAGE, "labels.u8": LABEL, "floats.f4": FLOATS}


def load_split():
    return tuple(map_rows(f"{name}", field, 77) for name, field in FILES.items())


def mapped_batch(ids):
    batch = tf.function(lambda ids: [tf.gather(rows, ids) for rows in load_split()])
    return batch(tf.constant(ids, tf.int64))


def test_a_mapped_split_gives_the_bytes_of_the_files(split):
    ids = np.random.default_rng(1).permutation(77)
    for rows, expected in zip(mapped_batch(ids), split, strict=True):
        assert rows.dtype == expected.dtype
        np.testing.assert_array_equal(rows, expected[ids])


def test_a_missing_file_is_named(split):
    Path("labels.u8").unlink()
    with pytest.raises(tf.errors.NotFoundError, match="labels.u8"):
        mapped_batch([0])


def test_a_file_that_is_too_short_is_refused(split):
    split[0][:-1].tofile("images.u8")
    with pytest.raises(tf.errors.InternalError, match="wrong length"):
        mapped_batch([0])


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads Linux's accounting of memory")
def test_a_mapped_split_is_not_copied_into_the_memory_of_the_process(tmp_path):
    examples, fields = 100_000, {"images.u8": IMAGE, "labels.u8": LABEL}
    for name, field in fields.items():
        with (tmp_path / name).open("wb") as file:
            file.truncate(examples * field.row_bytes)  # sparse: takes no room on the disk

    @tf.function
    def batch(ids):
        return [tf.gather(map_rows(str(tmp_path / name), field, examples), ids) for name, field in fields.items()]

    ids = tf.range(128, dtype=tf.int64) * 500
    with peak_of_memory() as peak:
        batch(ids)
    assert peak() < 50 * 2**20, "of 300 MB"


def test_a_batch_has_its_weights_beside_inputs_and_target(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (np.arange(12, dtype=np.float32)).tofile("train_x.float32")
    np.arange(4, dtype=np.uint8).tofile("train_target.uint8")
    np.array([0, 1, 4, 9], np.float32).tofile("train_weight.float32")
    spec = ExampleSpec({"x": ArrayField("float32", (3,))}, ArrayField("uint8", ()), weight=ArrayField("float32", ()))
    batch = batch_of(tf.constant(0, tf.int64), batch_size=4, examples=4, seed=0)
    packed = packed_examples(batch, spec, 4)
    rows = split_fields(packed, spec)
    np.testing.assert_array_equal(rows.weight, batch.ids.numpy() ** 2)
    np.testing.assert_array_equal(rows.target, batch.ids)
    plain = replace(spec, weight=None)
    assert list(rows.inputs) == ["x"] and split_fields(packed_examples(batch, plain, 4), plain).weight is None
