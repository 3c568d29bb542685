"""A network is cut where one tensor of floats crosses, and nowhere else."""

from itertools import combinations, pairwise

import keras
import pytest

from ps_cluster.models.flat import FlatNetwork
from ps_cluster.models.stages import Block, StagedNetwork, balanced, blocks_of
from tests.helpers.plain_keras import LAYERS, stack


def layers_of(blocks):
    return [list(block.layers) for block in blocks]


def test_a_stack_can_be_cut_after_each_layer():
    model = stack(LAYERS.Dense(4, name="one"), LAYERS.Dropout(0.5, name="two"))
    blocks = blocks_of(model)
    assert layers_of(blocks) == [["one"], ["two"], [model.layers[-1].name]]
    assert [block.weights for block in blocks] == [6 * 4 + 4, 0, 4 * 3 + 3]


def test_a_network_that_was_called_elsewhere_is_cut_in_its_own_graph():
    model = stack(LAYERS.Dense(4, name="one"))
    keras.Sequential([keras.Input([6]), model.get_layer("one"), LAYERS.Dense(2)])
    FlatNetwork(stack(LAYERS.BatchNormalization()))
    assert [block.weights for block in blocks_of(model)] == [28, 15]


def test_both_ways_of_a_residual_block_stay_together():
    row = keras.Input([6])
    first = LAYERS.Dense(6, name="before")(row)
    there = LAYERS.Add(name="sum")([first, LAYERS.Dense(6, name="around")(first)])
    model = keras.Model(row, LAYERS.Dense(3, name="after")(there))
    assert layers_of(blocks_of(model)) == [["before"], ["around", "sum"], ["after"]]


def test_a_layer_that_is_used_twice_is_on_one_side():
    row, twice = keras.Input([6]), LAYERS.Dense(6, name="twice")
    middle = LAYERS.Dense(6, name="between")(twice(row))
    model = keras.Model(row, LAYERS.Dense(3, name="after")(twice(middle)))
    assert layers_of(blocks_of(model)) == [["twice", "between"], ["after"]]


def test_whole_numbers_do_not_cross():
    words = keras.Input([3], dtype="int32")
    model = keras.Model(words, LAYERS.Dense(3)(LAYERS.Flatten()(LAYERS.Embedding(7, 2)(LAYERS.Reshape([3])(words)))))
    assert len(blocks_of(model)[0].layers) == 2, "the gradient of what crosses is needed"


def test_what_only_a_call_knows_or_a_mask_is_refused_by_name():
    class Own(keras.Model):
        def call(self, row):
            return row

    with pytest.raises(ValueError, match=r"a class of its own \(Own\)"):
        blocks_of(Own())
    with pytest.raises(ValueError, match="layer 'gap' makes a mask"):
        blocks_of(stack(LAYERS.Embedding(7, 3, mask_zero=True, name="gap"), LAYERS.LSTM(4), of="words"))


def test_stages_have_the_variables_of_the_network_in_its_order_and_no_copies():
    model = stack(LAYERS.Dense(4), LAYERS.BatchNormalization(), LAYERS.Dropout(0.5), LAYERS.Dense(4))
    stages = StagedNetwork(FlatNetwork(model), blocks_of(model), [0, 1, 3], ["/device:CPU:0"] * 3).stages
    ids = [[id(v) for v in stage.model.trainable_variables] for stage in stages]
    assert sum(ids, []) == [id(v) for v in model.trainable_variables] and all(ids)


@pytest.mark.parametrize("weights", [[896, 0, 18496, 0, 36928, 0, 65600, 650], [5, 5, 5, 5], [0, 1, 0, 9, 1, 0]])
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_no_other_way_to_cut_is_more_even(weights, parts):
    def sizes(firsts):
        return [sum(weights[a:b]) for a, b in pairwise([*firsts, len(weights)])]

    blocks = [Block((str(index),), weight, 1, None) for index, weight in enumerate(weights)]
    found = balanced(blocks, parts)
    assert len(found) == parts and found[0] == 0 and all(sizes(found)), "each part has weights"
    ways = [sizes([0, *others]) for others in combinations(range(1, len(weights)), parts - 1)]
    assert _squares(sizes(found)) == min(_squares(way) for way in ways if all(way))


def test_of_equally_even_ways_it_takes_the_one_that_sends_least():
    model = stack(LAYERS.Conv2D(4, 3), LAYERS.MaxPooling2D(), LAYERS.Activation("relu"), LAYERS.Flatten(), of="image")
    blocks = blocks_of(model)
    assert [block.sends for block in blocks] == [64, 16, 16, 16, 3]
    assert balanced(blocks, 2) == [0, 2], "after the pooling"


def _squares(sizes):
    return sum(size**2 for size in sizes)
