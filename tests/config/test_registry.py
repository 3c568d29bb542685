"""A registry finds the objects of a module by their names."""

from types import ModuleType

import pytest

from ps_cluster.config.registry import Named, Registry
from ps_cluster.errors import UserError


class First(Named):
    name = "toy"


class Second(Named):
    name = "toy"


def registry_of(**things):
    home = ModuleType("toys")
    vars(home).update(things)
    return Registry("kind of toy", Named, lambda: home, "ps_cluster.toys")


def test_two_objects_of_one_name_are_refused_with_the_classes_of_both():
    with pytest.raises(UserError) as refused:
        tuple(registry_of(first=First(), second=Second()))
    assert str(refused.value) == (
        f"kind of toy 'toy' is defined twice, by {__name__}.First and by {__name__}.Second: "
        "give one of them another name"
    )


def test_an_object_that_several_modules_or_variables_name_is_found_once():
    only = First()
    assert registry_of(here=only, there=only).own == {"toy": only}
