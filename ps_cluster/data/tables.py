"""Data sets of tables: a column to predict, and columns to predict it from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field

from ps_cluster.catalogue.datasets import Contents, OwnDataSettings
from ps_cluster.catalogue.examples import TARGET, WEIGHT
from ps_cluster.data.holding_out import hold_out
from ps_cluster.data.table_encoding import Encoding, Part, as_floats, learned
from ps_cluster.data.table_files import Table
from ps_cluster.data.targets import Targets, classes_by_name, targets_of
from ps_cluster.errors import did_you_mean
from ps_cluster.files.malformed import Malformed
from ps_cluster.files.plain_text import one_line

MOST_WHOLE_CLASSES = 100  # different whole numbers that are taken for classes
_MOST_TEXTS = 100  # different texts that are categories, even if hardly one comes twice

Names = Annotated[tuple[str, ...], Field(strict=False)]  # YAML has a list


class TableSettings(OwnDataSettings):
    """Settings of tables."""

    target: str | None = Field(default=None, description="The column to predict.")
    categorical: Names = Field(
        default=(), description="Columns of numbers that are names, such as codes of places; text with many values."
    )
    leave_out: Names = Field(default=(), description="Columns that are not used.")
    weight: str | None = Field(default=None, description="The column that says how much a row counts.")


class Roles(NamedTuple):
    """The roles of a table's columns: target, weight, and inputs that are numbers or categories."""

    target: str
    weight: str | None
    numbers: list[str]
    categories: list[str]


def contents_of_tables(tables: Mapping[str, Table], settings: TableSettings) -> Contents:
    """Return the contents of a data set of tables, "train" and perhaps "test".

    Raises:
      Malformed: a column is missing, of a wrong type, or can't be encoded.
    """
    roles = _roles(tables["train"].columns, settings)
    _check_same(tables, roles)
    targets = _targets(tables, roles.target, settings.objective)
    weights = {split: _column(table, roles.weight) for split, table in tables.items()} if roles.weight else {}
    if "test" in tables:
        assert targets.test is not None  # it was read above
        parts = {split: Part(table, len(_of(targets, split))) for split, table in tables.items()}
        arrays = {split: {TARGET: _of(targets, split)} for split in tables}
        notes: tuple[str, ...] = ()
    else:
        labels = targets.train if targets.objective == "classification" else None
        split = hold_out(settings.held_out, len(targets.train), labels)
        ids = {"train": split.train, "test": split.test}
        parts = {name: _some(tables["train"], len(targets.train), chosen) for name, chosen in ids.items()}
        arrays = {name: {TARGET: targets.train[chosen]} for name, chosen in ids.items()}
        weights = {name: weights["train"][chosen] for name, chosen in ids.items() if weights}
        notes = (split.note,)
    encoding = learned(parts["train"], roles.target, roles.numbers, roles.categories)
    _check_free_text(encoding, parts["train"].rows, settings)
    whole: dict[str, dict[str, Any]] = {
        split: {**encoding.arrays(part), **arrays[split], **({WEIGHT: weights[split]} if weights else {})}
        for split, part in parts.items()
    }
    contents = Contents.of(whole["train"], whole["test"], objective=targets.objective, classes=targets.classes)
    return replace(_with_codes(contents, encoding), notes=notes, encoding=encoding.content)


def _check_free_text(encoding: Encoding, rows: int, settings: TableSettings) -> None:
    """Raise Malformed for columns of text that hardly come twice: as categories they tell nothing of other rows."""
    different = dict(zip(encoding.categories, map(len, encoding.values)))
    free = [name for name, texts in different.items() if texts > max(_MOST_TEXTS, rows / 2)]
    if free := [name for name in free if name not in settings.categorical]:
        raise Malformed(
            f"the column '{free[0]}' has {different[free[0]]:,} different texts in {rows:,} training rows, and free text is "
            f"not read: leave it out (--set 'data.leave_out=[{one_line(', '.join([*settings.leave_out, *free]), 300)}]'), or "
            "name it in data.categorical if each text is a category"
        )


def _of(targets: Targets, split: str) -> Any:
    return targets.train if split == "train" else targets.test


def _some(table: Table, rows: int, ids: np.ndarray) -> Part:
    mask = np.zeros(rows, bool)
    mask[ids] = True
    return Part(table, len(ids), mask)


def _with_codes(contents: Contents, encoding: Encoding) -> Contents:
    """Return contents that say how many codes each column of categories has."""
    inputs = dict(contents.spec.inputs)
    if "categories" in inputs:
        inputs["categories"] = replace(inputs["categories"], codes=tuple(len(one) + 1 for one in encoding.values))
    return replace(contents, spec=replace(contents.spec, inputs=inputs))


def _roles(columns: Mapping[str, Any], settings: TableSettings) -> Roles:
    known = one_line(", ".join(columns), 600)
    if settings.target is None:
        raise Malformed(f"data.target is missing: say by --target which column to predict, of {known}")
    named = {"target": (settings.target,), "weight": (settings.weight,) if settings.weight else ()}
    for setting, names in {**named, "categorical": settings.categorical, "leave_out": settings.leave_out}.items():
        if unknown := [name for name in names if name not in columns]:
            hint = did_you_mean(unknown[0], columns).strip()
            raise Malformed(
                f"data.{setting}: there is no column '{unknown[0]:.100}', of {known}{f': {hint}' if hint else ''}"
            )
    if nameless := [name for name in columns if not name.strip() or not name.isprintable()]:
        raise Malformed(
            f"a column has the name {nameless[0]!r:.100}, which can't be told: rename it (pandas writes none with index=False)"
        )
    not_inputs = {settings.target, settings.weight, *settings.leave_out}
    inputs = {name: kind for name, kind in columns.items() if name not in not_inputs}
    categories = [name for name, kind in inputs.items() if name in settings.categorical or _is_category(name, kind)]
    if not inputs:
        raise Malformed(f"there is no column but '{settings.target}': nothing to predict it from")
    return Roles(settings.target, settings.weight, [name for name in inputs if name not in categories], categories)


def _is_category(name: str, kind: Any) -> bool:
    """Return whether a column holds names. Raises Malformed if it holds neither names nor numbers."""
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
    if any(test(kind) for test in (types.is_boolean, types.is_string, types.is_large_string, types.is_null)):
        return True
    if not any(test(kind) for test in (types.is_integer, types.is_floating, types.is_decimal, types.is_temporal)):
        raise Malformed(f"the column '{name}' is {kind}, neither numbers nor text: name it in data.leave_out")
    return False


def _check_same(tables: Mapping[str, Table], roles: Roles) -> None:
    used = [roles.target, *roles.numbers, *roles.categories, *([roles.weight] if roles.weight else [])]
    for split, table in tables.items():
        if missing := [name for name in used if name not in table.columns]:
            raise Malformed(f"the {split} table has no column '{missing[0]}', which the training table has")


def _column(table: Table, name: str) -> np.ndarray:
    """Return a whole column as float64."""
    parts = [as_floats(batch.column(name)) for batch in table.batches([name])]
    return np.concatenate([*parts, np.empty(0)])


def _targets(tables: Mapping[str, Table], name: str, objective: str) -> Targets:
    """Return the targets: text, and few different whole numbers, are classes; other numbers are to be predicted."""
    kind = tables["train"].columns[name]
    is_text = _is_category(name, kind)
    read = _texts if is_text else _column
    found = {split: read(table, name) for split, table in tables.items()}
    for split, values in found.items():
        if not len(values):
            raise Malformed(f"the {split} table has no rows")
        if missing := np.count_nonzero(values == "" if is_text else np.isnan(values)):
            raise Malformed(
                f"the column '{name}' has no value in {missing:,} of {len(values):,} rows: fill or remove them"
            )
    if objective == "auto":
        objective = "classification" if is_text or _few_whole(kind, found["train"]) else "regression"
    if objective == "classification":
        return classes_by_name(_short(found["train"]), _short(found["test"]) if "test" in found else None)
    if objective == "multi-label":
        raise Malformed("data.objective=multi-label needs several columns to predict, and a table has one")
    return targets_of(found["train"], found.get("test"), objective)


def _texts(table: Table, name: str) -> np.ndarray:
    """Return a whole column as text; "" where it is missing."""
    import pyarrow

    parts = [
        batch.column(name).cast(pyarrow.string()).fill_null("").to_numpy(zero_copy_only=False)
        for batch in table.batches([name])
    ]
    return np.concatenate([part.astype(str) for part in parts] or [np.empty(0, str)])


def _few_whole(kind: Any, values: np.ndarray) -> bool:
    from pyarrow import types

    return types.is_integer(kind) and bool((values % 1 == 0).all()) and len(np.unique(values)) <= MOST_WHOLE_CLASSES


def _short(values: np.ndarray) -> np.ndarray:
    """Return whole numbers as such, so that their names have no fraction."""
    return values.astype(np.int64) if values.dtype.kind == "f" and (values % 1 == 0).all() else values
