import pytest

from ps_cluster.files.values import csv_cell, one_line, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain · text ü \U0001f600", "plain · text ü \U0001f600"),
        ("\x1b[31mred\x1b[0m", "?[31mred?[0m"),
        ("a\rb\x08c\x07d\0e\x7f", "a?b?c?d?e?"),
        ("left\u202etfel", "left?tfel"),
        ("a\u2028b\u2029c\x85d", "a?b?c?d"),
        ("no\udcffutf8", "no?utf8"),
        ("two\nlines", "two?lines"),
    ],
)
def test_what_moves_the_cursor_or_turns_the_writing_is_a_question_mark(text, shown):
    assert printable(text) == shown


def test_an_error_is_one_line_of_bounded_length_with_its_beginning_and_its_end():
    line = one_line("begin\n\t" + "x" * 10_000 + "\r\nend")
    assert len(line) <= 1900 and line.startswith("begin xxx") and line.endswith("xxx end")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("=HYPERLINK(1)", "'=HYPERLINK(1)"),
        ("+1", "+1"), ("-1.5", "-1.5"), ("+1+cmd", "'+1+cmd"), ("-1\n", "'-1?"),
        ("-x", "'-x"), ("@a", "'@a"), ("a\x1b[2J\n=b", "a?[2J?=b"),
        ("\t=1", "?=1"), ("a=1", "a=1"), (-0.5, -0.5), (None, None),
    ],
)  # fmt: skip
def test_a_cell_is_printable_and_no_formula(value, shown):
    assert csv_cell(value) == shown
