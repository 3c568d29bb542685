import numpy as np
import pytest

from ps_cluster.data import holding_out
from ps_cluster.data.targets import Targets
from ps_cluster.files.values import Malformed


def hold_out(share, examples, labels=None):
    train, objective = (np.zeros(examples), "regression") if labels is None else (labels, "classification")
    return holding_out.hold_out(Targets(train, None, objective), share)


@pytest.mark.parametrize("labels", [None, np.arange(1000) % 4])
def test_each_example_is_in_one_part_and_the_same_is_held_out_every_time(labels):
    split, again = hold_out(0.1, 1000, labels), hold_out(0.1, 1000, labels)
    assert sorted([*split.train, *split.test]) == list(range(1000)) and len(split.test) == 100
    assert (split.test == again.test).all() and (np.diff(split.test) > 0).all()
    assert split.note.startswith("held out 100 of 1,000 examples for testing (data.held_out=0.1")


def test_of_each_class_the_same_share_is_held_out_and_one_example_is_left():
    labels = np.repeat([0, 1, 2, 3], [500, 100, 10, 1])
    split = hold_out(0.2, len(labels), labels)
    assert np.bincount(labels[split.test], minlength=4).tolist() == [100, 20, 2, 0]
    assert set(labels[hold_out(0.99, len(labels), labels).train]) == {0, 1, 2, 3}
    assert not (np.diff(split.test[split.test < 500]) == 5).all(), "not every fifth"


def test_one_at_least_is_held_out_and_one_is_left():
    assert [len(hold_out(share, 3).test) for share in (0.001, 0.999)] == [1, 2]
    assert len(hold_out(0.001, 4, np.array([0, 0, 1, 1])).test) == 1
    for labels in (None, np.array([0])):
        with pytest.raises(Malformed, match="only 1 example"):
            hold_out(0.1, 1, labels)
    with pytest.raises(Malformed, match="each class has only one example"):
        hold_out(0.1, 3, np.arange(3))


def test_of_many_small_classes_the_whole_share_is_held_out():
    labels = np.arange(500) % 100
    assert len(hold_out(0.1, 500, labels).test) == 50, "five of each class, of which a tenth is none"
