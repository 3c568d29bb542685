from pathlib import Path

import pytest

from ps_cluster.errors import UserError
from ps_cluster.tools.sweep.ensemble_plan import members_of, read_ensemble

SETTINGS = {"data.dataset": "synthetic", "model.precision": "float32"}


def plan(settings=(), models=None, seeds=None, split="all"):
    return read_ensemble(None, SETTINGS | dict(settings), models=models, seeds=seeds, split=split)


def members(*arguments, **more):
    return members_of(plan(*arguments, **more), Path("ensemble"))


def test_members_differ_by_seed_by_network_or_by_both():
    found = [(one.config.model.name, one.config.training.seed) for one in members({"model.name": "mlp"}, seeds=3)]
    assert found == [("mlp", 0), ("mlp", 1), ("mlp", 2)]
    found = [one.root.name for one in members(models=("tutorial_cnn", "mlp"))]
    assert found == ["0-tutorial_cnn-seed0", "1-mlp-seed1"]
    assert len(members(models=("tutorial_cnn", "mlp"), seeds=2)) == 4
    assert len(members()) == 4 and all(one.config.mode.name == "single" for one in members())


def test_each_member_has_its_own_part_of_the_data():
    assert {one.config.training.sample for one in members(split="all")} == {"all"}
    shards = [one.config.training.sample for one in members(split="shards", seeds=3)]
    assert shards == ["shard:0/3", "shard:1/3", "shard:2/3"]
    assert len({one.config.training.sample for one in members(split="bootstrap")}) == 4


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"seeds": 1}, "from 2 to 32"),
        ({"models": ("mlp", "airbench"), "seeds": 20}, "--members: there would be 40 members"),
        ({"models": ("mlp", "airbench"), "settings": {"model.name": "mlp"}}, "model.name is also set to 'mlp'"),
        ({"settings": {"training.seed": 3}}, "training.seed: got 3"),
        ({"settings": {"training.sample": "shard:0/2"}}, "training.sample: got 'shard:0/2'"),
    ],
)
def test_members_that_do_not_fit_are_refused_in_one_line(changes, says):
    with pytest.raises(UserError) as error:
        members(**changes)
    assert says in str(error.value) and "\n" not in str(error.value)
