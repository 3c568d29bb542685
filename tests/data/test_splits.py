"""Which splits are trained on and tested on."""

import pytest

from ps_cluster.data.splits import check_all_labelled, choose_test_split
from ps_cluster.files.values import Malformed


@pytest.mark.parametrize(
    ("names", "labelled", "test", "passed_over"),
    [
        (["train", "test"], {"test"}, "test", []),
        (["validation", "test", "train"], {"test", "validation"}, "test", []),
        (["validation", "test", "train"], {"validation"}, "validation", ["test"]),
        (["train", "test"], set(), None, ["test"]),
        (["train", "unsupervised"], {"unsupervised"}, None, []),
    ],
)
def test_the_first_split_with_labels_is_tested_on(names, labelled, test, passed_over):
    found = choose_test_split(names, labelled.__contains__)
    assert found.test == test
    assert [line.split("'")[1] for line in found.notes] == passed_over


def test_without_a_split_to_train_on_those_that_there_are_are_told():
    with pytest.raises(Malformed, match="there is no split 'train' among test, all"):
        choose_test_split(["test", "all"], lambda name: True)


def test_examples_without_a_label_are_counted():
    check_all_labelled("train", 0, 7)
    with pytest.raises(Malformed, match=r"in the split 'train', 2 of 7 examples have no label .*: remove these"):
        check_all_labelled("train", 2, 7)
