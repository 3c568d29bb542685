"""Rows that are appended while others read them: whole ones are read once each, whatever stands between them."""

import itertools
import os

import pytest

from ps_cluster.files import json_rows
from ps_cluster.files.json_rows import RowTail, append_row, last_row, read_rows, some_rows
from ps_cluster.runs.rows import Count, Row


class Numbered(Row):
    number: Count


@pytest.fixture
def path(tmp_path):
    return tmp_path / "rows.jsonl"


def append(path, *numbers):
    for number in numbers:
        append_row(path, Numbered(number=number))


def write(path, content):
    with path.open("ab") as file:
        file.write(content)


def numbers(rows):
    return [row.number for row in rows]


def test_each_row_is_read_once_and_when_it_is_whole(path):
    tail = RowTail(path, Numbered)
    assert tail.new_rows() == []
    append(path, 1, 2)
    write(path, b'{"numb')
    assert numbers(tail.new_rows()) == [1, 2] and tail.new_rows() == []
    write(path, b'er": 3}\n')
    assert numbers(tail.new_rows()) == [3]
    assert (numbers(read_rows(path, Numbered)), last_row(path, Numbered).number) == ([1, 2, 3], 3)


def test_a_row_that_a_full_disk_cut_short_costs_no_other_and_is_told_once(path):
    append(path, 1)
    write(path, b'{"number": 2, "loss": 0.')
    append(path, 3)
    write(path, b'{"numb')
    append(path, 4)
    said = []
    assert numbers(read_rows(path, Numbered, said.append)) == [1, 3, 4]
    assert len(said) == 1 and said[0].startswith(f"a part of '{path}' is skipped: a row is not JSON")
    assert said[0].endswith("(and 1 more)")


@pytest.mark.parametrize("most", [20, 1000, 10**5])
def test_of_few_rows_all_are_taken(path, most):
    append(path, *(10**size for size in range(7)))
    assert numbers(some_rows(path, Numbered, most)) == [10**size for size in range(7)]


def test_of_many_rows_some_are_taken_evenly_and_the_last_one(path):
    write(path, b"".join(b'{"number": %d}\n' % number for number in range(1000, 6000)))
    found = numbers(some_rows(path, Numbered, 50))
    assert len(found) == 51 and (found[0], found[-1]) == (1000, 5999)
    assert {later - earlier for earlier, later in itertools.pairwise(found[:-1])} == {100}


def test_lines_that_are_no_rows_are_left_out_of_some_rows(path):
    assert some_rows(path, Numbered, 9) == []
    append(path, 1)
    write(path, b"no row\n")
    append(path, 2)
    write(path, b'{"numb')
    assert numbers(some_rows(path, Numbered, 9)) == [1, 2]
    path.unlink()
    os.mkfifo(path)
    assert some_rows(path, Numbered, 9) == []


def test_what_is_there_already_is_skipped_also_the_rest_of_a_row_that_was_half_written(path):
    append(path, 1, 2)
    write(path, b'{"number": 3')
    tail = RowTail(path, Numbered)
    tail.skip()
    write(path, b"}\n")
    append(path, 4)
    assert numbers(tail.new_rows()) == [4]


def test_many_rows_are_taken_in_with_several_looks(path, monkeypatch):
    monkeypatch.setattr(json_rows, "READ_BYTES", 40)
    append(path, *range(50))
    assert len(RowTail(path, Numbered).new_rows()) == 3
    assert numbers(read_rows(path, Numbered)) == list(range(50))
    assert last_row(path, Numbered).number == 49


def test_a_line_that_is_too_long_is_passed_over(path, monkeypatch):
    monkeypatch.setattr(json_rows, "READ_BYTES", 40)
    append(path, 1)
    write(path, b"x" * 50 + b'{"number": 2}\n')
    append(path, 3)
    said = []
    assert numbers(read_rows(path, Numbered, said.append)) == [1, 3]
    assert said == [f"a part of '{path}' is skipped: a line of more than 40 bytes (and 1 more)"]


@pytest.mark.parametrize(
    "line", [b"[]", b"null", b"", b'{"number": true}', b'{"number": 1, "number": 2}', b"\xff", b"[" * 10**5]
)
def test_a_line_that_is_no_row_is_passed_over(path, line):
    write(path, line + b"\n")
    append(path, 5)
    tail = RowTail(path, Numbered)
    assert (numbers(tail.new_rows()), tail.passed_over) == ([5], 1)


def test_a_pipe_in_place_of_the_file_is_not_waited_for(path):
    os.mkfifo(path)
    said = []
    assert list(read_rows(path, Numbered, said.append)) == []
    assert said == [f"a part of '{path}' is skipped: it is not a regular file"]
