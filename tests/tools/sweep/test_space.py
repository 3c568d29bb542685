import json

import pytest

from ps_cluster.errors import UserError
from ps_cluster.tools.sweep.space import Choices, Range, parse_varied, read_space


def axis(given):
    return read_space({"a.b": given}).axes["a.b"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("0.01..1:log", Range(0.01, 1, log=True)),
        ("-1..1", Range(-1, 1)),
        ("1e-3..1e-1", Range(0.001, 0.1)),
        ("0.1..0.5:3", Choices((0.1, 0.3, 0.5))),
        ("0.001..0.1:log:3", Choices((0.001, 0.01, 0.1))),
        ("16..64:4", Choices((16, 32, 48, 64))),
        ("1..3:5", Choices((1, 2, 3))),
        ("64,128", Choices((64, 128))),
        ("sgd, adam", Choices(("sgd", "adam"))),
        ("[1, 2],[3]", Choices(([1, 2], [3]))),
        ([True, None], Choices((True, None))),
    ],
)
def test_values_are_read_as_they_are_written(given, expected):
    assert axis(given) == expected


def test_a_range_between_whole_numbers_has_only_whole_numbers():
    assert axis("16..64").is_integer and not axis("16..64.0").is_integer


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("1..0.1", "the first number must be the smaller one"),
        ("0..1:log", "above 0"),
        ("0..1:101", "has to be between 2 and 100"),
        ("a..b", "not a finite number"),
        ("nan..1", "not a finite number"),
        ("5,5", "different values"),
        ("", "different values"),
        (list(range(101)), "different values"),
        ("[1, 2", "not YAML"),
        ("0.1..1:lag", "different values"),
        ("010,11", "not a plain decimal number"),
    ],
)
def test_values_that_can_not_vary_are_refused_by_name(given, says):
    with pytest.raises(UserError, match=r"--vary a\.b: got .*" + says):
        axis(given)


def test_a_setting_that_is_given_twice_is_refused():
    assert parse_varied(["a.b=1,2", "c.d = 0..1"]) == {"a.b": "1,2", "c.d": "0..1"}
    for texts in (["a.b=1,2", "a.b=1,3"], ["a=1,2"], ["a.b"]):
        with pytest.raises(UserError, match="--vary"):
            parse_varied(texts)


def test_a_grid_has_each_combination_once_and_its_range_must_say_how_many():
    space = read_space({"a.b": "1,2,3", "c.d": "0..1:2"})
    found = [tuple(space.from_optuna(stored).values()) for stored in space.grid()]
    assert found == [(b, d) for b in (1, 2, 3) for d in (0, 1)] and space.size_of_grid() == 6
    large = read_space({"a.b": "10000001..10000005:3"})
    assert large.axes["a.b"].values == (10_000_001, 10_000_003, 10_000_005), "no digit is lost"
    with pytest.raises(UserError, match=r"write 1000000\.\.2000000:5$"):
        read_space({"a.b": "1000000..2000000"}).size_of_grid()
    with pytest.raises(UserError, match=r"--vary a\.b: a grid needs the number of values: write 0\.1\.\.1:log:5"):
        read_space({"a.b": "0.1..1:log"}).size_of_grid()


def test_each_value_is_checked_before_the_first_trial():
    space = read_space({"a.b": "1,2,3", "c.d": "0.5..1"})
    checked = list(space.samples())
    assert {values["a.b"] for values in checked} == {1, 2, 3} and {values["c.d"] for values in checked} == {0.5, 1}


def test_lists_of_sections_come_back_from_the_journal_as_they_were():
    sections = [{"match": "*", "factor": 0.0}]
    space = read_space({"a.b": [sections, []], "c.d": "0..1:2"})
    found = [space.from_optuna(json.loads(json.dumps(stored))) for stored in space.grid()]
    assert found == [{"a.b": lists, "c.d": number} for lists in (sections, []) for number in (0, 1)]
