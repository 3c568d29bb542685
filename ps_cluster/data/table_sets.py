"""Make data sets from tables: a column to predict, and the columns to predict it from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Annotated

import numpy as np
from pydantic import Field

from ps_cluster.config.datasets import Contents, OwnDataSettings
from ps_cluster.config.objectives import WEIGHT
from ps_cluster.data.arrow import Column, DataType, compute, kinds, pyarrow
from ps_cluster.data.holding_out import contents_of, hold_out
from ps_cluster.data.lazy_rows import IndexableRows
from ps_cluster.data.table_encoding import ColumnRoles, Encoding, as_floats, as_texts, learn_encoding
from ps_cluster.data.table_files import (
    ADVICE_FOR_INPUT,
    ADVICE_FOR_TARGET,
    PiecewiseTable,
    Types,
    are_numbers,
    wrong_value_message,
)  # fmt: skip
from ps_cluster.data.targets import MOST_CLASSES_WITH_GAPS, Targets, classes_by_name, is_binary, targets_of
from ps_cluster.data.text_rows import text_field, text_size_of
from ps_cluster.errors import did_you_mean
from ps_cluster.files.values import Malformed, is_decimal, one_line

_NUMBERS_FOR_EACH_TEXT = 10  # a column with at least this many distinct numbers for each distinct text holds numbers
_MISSING_MARKS = frozenset({"?", "na", "n/a", "-", "null", "."})  # marks of a missing value, in lower case
_FEWEST_ROWS = 20  # in shorter tables, a column without repeats need not be an identifier
_ROWS_LOOKED_AT = 2**20  # the rows that are searched for repeats; limited because all their values are kept in memory
_MOST_TEXTS = 100  # up to this many different texts are categories, even if few of them are repeated

Names = Annotated[tuple[str, ...], Field(strict=False)]  # YAML gives a list


class TableSettings(OwnDataSettings):
    """Settings of tables."""

    target: str | None = Field(default=None, description="The column to predict.")
    categorical: Names = Field(
        default=(),
        description=(
            "Columns to treat as categories although they hold numbers (such as postal codes) or many different texts."
        ),
    )
    text: Names = Field(
        default=(),
        description="Columns of free text. Networks get all of them as strings, in one input called 'texts'.",
    )
    leave_out: Names = Field(default=(), description="Columns that are not used.")
    weight: str | None = Field(default=None, description="The column with the weights of the rows.")


def contents_of_tables(tables: Mapping[str, PiecewiseTable], settings: TableSettings) -> Contents:
    """Return the contents of a data set from its tables: "train", and perhaps "test".

    Raises Malformed if a column is missing, of a wrong type, or can't be encoded.
    """
    roles = _choose_roles(tables["train"].columns, settings)
    tables, unlabelled = _tables_with_target(tables, roles)
    targets, rows_of_parts = _target_columns(tables, roles.target, settings)
    held_out, examples = hold_out(targets, settings.held_out), len(targets.train)
    kept = None if held_out is None else np.isin(np.arange(examples), held_out.train)
    encoding = learn_encoding(tables["train"], kept, roles)
    rows_to_train_on = examples if held_out is None else len(held_out.train)
    for column in encoding.content.categories:
        _check_not_numbers(tables["train"], column.name, column.values, rows_to_train_on, settings)
    _check_free_text(encoding, rows_to_train_on, settings)
    text_size = text_size_of("a column of data.text", chain.from_iterable(map(encoding.text_pieces, tables.values())))
    rows: list[dict[str, IndexableRows]] = []
    for table, target in zip(tables.values(), (targets.train, targets.test)):
        assert target is not None  # it was read above
        weights = {WEIGHT: _whole_column(table, roles.weight, is_text=False)} if roles.weight else {}
        rows.append({**encoding.arrays(table, len(target), text_size), **weights})
    contents = contents_of(targets, held_out, *rows)
    inputs = dict(contents.spec.inputs)
    if "categories" in inputs:
        inputs["categories"] = replace(
            inputs["categories"], codes=tuple(len(one.values) + 1 for one in encoding.content.categories)
        )
    if "texts" in inputs:
        inputs["texts"] = text_field(inputs["texts"])
    notes = (*unlabelled, *contents.notes, *_identifier_notes(tables["train"], roles, settings))
    spec, file_rows = replace(contents.spec, inputs=inputs), _kept_rows(rows_of_parts, kept)
    return replace(contents, spec=spec, encoding=encoding.content, notes=notes, file_rows=file_rows)


def _kept_rows(rows_of_parts: Sequence[int], kept: np.ndarray | None) -> tuple[int, ...]:
    """Return the number of kept rows in each file; () for a single file. `kept`: bool [N]; None for all rows."""
    if len(rows_of_parts) == 1:
        return ()
    if kept is None:
        return tuple(rows_of_parts)
    return tuple(int(part.sum()) for part in np.split(kept, np.cumsum(rows_of_parts)[:-1]))


def _identifier_notes(table: PiecewiseTable, roles: ColumnRoles, settings: TableSettings) -> Iterator[str]:
    """Yield a line about input columns that seem to be identifiers: integers or texts that never repeat."""
    whole = [name for name in roles.numbers if kinds.is_integer(table.columns[name])]
    found = columns_without_repeats(
        table, [*whole, *(name for name in roles.categories if name not in settings.categorical)]
    )
    if found:
        named = one_line(", ".join(f"'{name}'" for name in found), 300)
        yield (
            f"used as inputs, although they have a different value in every row, like identifiers: {named}. To leave them out: "
            f"--set 'data.leave_out=[{one_line(', '.join([*settings.leave_out, *found]), 300)}]'"
        )


def columns_without_repeats(table: PiecewiseTable, names: Sequence[str]) -> list[str]:
    """Return the columns among `names` that have a different value in every row, and no missing value.

    Only about the first million rows are searched. The result is [] for a table of fewer than 20 rows.
    """
    parts: dict[str, list[Column]] = {name: [] for name in names}
    rows = 0
    for batch in table.batches(names) if names else ():
        rows += batch.num_rows
        for name in list(parts):
            parts[name].append(batch.column(name))
            if batch.column(name).null_count or compute.count_distinct(parts[name][-1]).as_py() < batch.num_rows:
                del parts[name]
        if not parts:
            return []
        if rows >= _ROWS_LOOKED_AT:
            break
    whole = {name: pyarrow.chunked_array(columns) for name, columns in parts.items()} if rows >= _FEWEST_ROWS else {}
    return [name for name, column in whole.items() if compute.count_distinct(column).as_py() == rows]


def _check_not_numbers(
    table: PiecewiseTable, name: str, texts: Iterable[str], rows: int, settings: TableSettings
) -> None:
    """Raise Malformed if a column of texts seems to be one of numbers with a typo, or with marks such as "n/a".

    Any other column of numbers and texts is taken for categories, e.g. numeric codes and the code "other".
    `texts`: the different values of the column. `rows`: its number of rows.
    """
    if name in settings.categorical or not table.guesses_types:
        return
    others = [text for text in texts if text and not is_decimal(text.strip())]
    numbers = sum(1 for text in texts if text) - len(others)
    if not others or numbers < _NUMBERS_FOR_EACH_TEXT * len(others):
        return
    are_marks = all(text.strip().lower() in _MISSING_MARKS for text in others)
    if are_marks or (len(others) == 1 and numbers > rows / 2):
        advice = ADVICE_FOR_TARGET if name == settings.target else ADVICE_FOR_INPUT
        raise Malformed(wrong_value_message(name, "holds numbers", others[0], table.place(name, others[0]), advice))


def _check_free_text(encoding: Encoding, rows: int, settings: TableSettings) -> None:
    """Raise Malformed if a column of categories seems to hold free text, because its texts hardly repeat.

    A category that occurs in only one row says nothing about other rows.
    """
    different = {column.name: len(column.values) for column in encoding.content.categories}
    free = [name for name, texts in different.items() if texts > max(_MOST_TEXTS, rows / 2)]
    if free := [name for name in free if name not in settings.categorical]:
        raise Malformed(
            f"the column '{free[0]}' has {different[free[0]]:,} different texts in {rows:,} training rows: leave it out (--set "
            f"'data.leave_out=[{one_line(', '.join([*settings.leave_out, *free]), 300)}]'), give it to the network as text "
            f"(--set 'data.text=[{one_line(', '.join([*settings.text, *free]), 300)}]'), or name it in data.categorical if "
            "each text is a category"
        )


def _choose_roles(columns: Types, settings: TableSettings) -> ColumnRoles:
    known = one_line(", ".join(columns), 600)
    if settings.target is None:
        raise Malformed(f"data.target is missing: set --target to one of these columns: {known}")
    named = {
        "target": (settings.target,),
        "weight": (settings.weight,) if settings.weight else (),
        "categorical": settings.categorical,
        "text": settings.text,
        "leave_out": settings.leave_out,
    }
    for setting, names in named.items():
        if unknown := [name for name in names if name not in columns]:
            hint = did_you_mean(unknown[0], columns).strip()
            raise Malformed(
                f"data.{setting}: there is no column '{unknown[0]:.100}' among {known}{f': {hint}' if hint else ''}"
            )
    if nameless := [name for name in columns if not name.strip() or not name.isprintable()]:
        raise Malformed(
            f"a column has the name {nameless[0]!r:.100}, which can't be used: rename it "
            "(pandas writes no such column with index=False)"
        )
    not_inputs = {settings.target, settings.weight, *settings.leave_out}
    texts = [name for name in columns if name in settings.text and name not in not_inputs]
    inputs = {name: kind for name, kind in columns.items() if name not in {*not_inputs, *texts}}
    categories = [name for name, kind in inputs.items() if name in settings.categorical or _is_category(name, kind)]
    if not inputs and not texts:
        raise Malformed(f"there is no column but '{settings.target}', so there is nothing to predict it from")
    return ColumnRoles(
        settings.target, settings.weight, [name for name in inputs if name not in categories], categories, texts
    )


def _is_category(name: str, kind: DataType) -> bool:
    """Return whether a column holds categories, not numbers or times. Raises Malformed for any other type of values."""
    if kinds.is_dictionary(kind):
        kind = kind.value_type
    if any(test(kind) for test in (kinds.is_boolean, kinds.is_string, kinds.is_large_string, kinds.is_null)):
        return True
    if kinds.is_binary(kind):
        raise Malformed(
            f"the column '{name}' is not text in UTF-8: save the file as UTF-8, or name it in data.leave_out"
        )
    if not are_numbers(kind) and not kinds.is_temporal(kind):
        raise Malformed(f"the column '{name}' is {kind}, neither numbers nor text: name it in data.leave_out")
    return False


def _tables_with_target(
    tables: Mapping[str, PiecewiseTable], roles: ColumnRoles
) -> tuple[Mapping[str, PiecewiseTable], tuple[str, ...]]:
    """Leave out a test table that has all inputs but no target. Return the other tables, and a line about that table.

    Competitions publish such test tables. Raises Malformed if a column of inputs is missing.
    """
    inputs = [*roles.numbers, *roles.categories, *roles.texts]
    used = [roles.target, *inputs, *([roles.weight] if roles.weight else [])]
    for split, table in tables.items():
        missing = [name for name in used if name not in table.columns]
        if roles.target in missing and not set(inputs) & set(missing):
            note = f"{table.what} is not used: it has no column '{one_line(roles.target, 100)}' to predict"
            return {"train": tables["train"]}, (note,)
        if missing:
            raise Malformed(f"the {split} table has no column '{missing[0]}', which the training table has")
    return tables, ()


def _whole_column(table: PiecewiseTable, name: str, *, is_text: bool) -> np.ndarray:
    """Return a column of a table, as text or as float64. A missing value is "" or NaN, respectively."""
    columns = (batch.column(name) for batch in table.batches([name]))
    if is_text:
        return np.concatenate([np.empty(0, str), *(as_texts(column).astype(str) for column in columns)])
    return np.concatenate([np.empty(0), *map(as_floats, columns)])


def _target_columns(
    tables: Mapping[str, PiecewiseTable], name: str, settings: TableSettings
) -> tuple[Targets, list[int]]:
    """Return the targets, and the number of rows in each file of the training table."""
    is_text = _is_category(name, tables["train"].columns[name])
    try:
        columns = {
            split: [_whole_column(part, name, is_text=is_text) for part in table.parts]
            for split, table in tables.items()
        }
    except Malformed as error:  # a text that comes after the rows from which the type was guessed
        raise Malformed(str(error).replace(ADVICE_FOR_INPUT, ADVICE_FOR_TARGET)) from error
    found = {split: np.concatenate(parts) for split, parts in columns.items()}
    return _targets_in(tables, found, name, settings), list(map(len, columns["train"]))


def _targets_in(
    tables: Mapping[str, PiecewiseTable], found: Mapping[str, np.ndarray], name: str, settings: TableSettings
) -> Targets:
    """Return the targets. `found`: the values of the column to predict, `name`, by split.

    By default, a column has classes if it has texts, a few different integers, or only the numbers 0 and 1. Any other
    column of numbers means a regression.
    """
    kind = tables["train"].columns[name]
    is_text = _is_category(name, kind)
    for split, values in found.items():
        if not len(values):
            raise Malformed(f"the {split} table has no rows")
        if missing := np.count_nonzero(values == "" if is_text else np.isnan(values)):
            raise Malformed(
                f"the column '{name}' has no value in {missing:,} of {len(values):,} rows: fill in the values, or "
                "remove these rows"
            )
    if is_text:
        texts = np.unique(found["train"]).tolist()
        _check_not_numbers(tables["train"], name, texts, len(found["train"]), settings)
    objective = settings.objective
    if objective == "auto":
        train, is_integer = found["train"], not is_text and kinds.is_integer(kind)
        few_whole = is_integer and (train % 1 == 0).all() and len(np.unique(train)) <= MOST_CLASSES_WITH_GAPS
        objective = "classification" if is_text or few_whole or is_binary(train) else "regression"
    if objective == "classification":
        if not is_text and (large := max(np.abs(values).max() for values in found.values())) >= 2**53:
            raise Malformed(
                f"the column '{name}' has whole numbers such as {large:.0f}, which float64 can't tell apart: name it "
                "in data.categorical"
            )
        return classes_by_name(
            _as_whole_numbers(found["train"]), _as_whole_numbers(found["test"]) if "test" in found else None
        )
    if objective == "multi-label":
        raise Malformed("data.objective=multi-label needs several columns to predict, and a table has one")
    return targets_of(found["train"], found.get("test"), objective)


def _as_whole_numbers(values: np.ndarray) -> np.ndarray:
    """Return floats as int64 if all are whole, so that the names of classes have no fraction."""
    return values.astype(np.int64) if values.dtype.kind == "f" and (values % 1 == 0).all() else values
