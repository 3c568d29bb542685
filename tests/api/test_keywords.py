"""The keywords of the Python API, as mypy, editors and `help()` see them, are the options of the commands."""

import inspect
import os
from collections.abc import Mapping, Sequence
from typing import Annotated, get_args, get_origin, get_type_hints

import pytest

import ps_cluster
from ps_cluster.api.compare_arms import CompareOptions
from ps_cluster.api.keywords import KEYWORDS, FitOptions, RunOptions
from ps_cluster.config.schema import section_classes
from ps_cluster.config.sections import CHOICE_BY_SECTION
from ps_cluster.tools.compare.comparison_plan import Batch, Comparison

# Keywords that take another type than their setting has, because it is read from a path or from a short form.
OTHER_TYPES = {
    "data_dir": str | os.PathLike[str] | None,
    "image_size": int | str | None,
    "augment": str | Mapping[str, object] | None,
    "isolation": str | None,
}


def type_of(key):
    """The type of a setting, or None: that of the first of the modes, data sets, … that have it."""
    section, name = key.split(".")
    settings = [section_classes()[section]]
    if section in CHOICE_BY_SECTION:
        settings += [kind.Settings for kind in CHOICE_BY_SECTION[section].kinds.with_settings]
    found = next(one.model_fields[name].annotation for one in settings if name in one.model_fields)
    return (get_args(found)[0] if get_origin(found) is Annotated else found) | None


def test_train_has_every_option_of_run_with_the_type_of_its_setting():
    assert get_type_hints(RunOptions) == {name: type_of(key) for name, key in KEYWORDS.items()} | OTHER_TYPES


def test_fit_has_the_keywords_of_train_that_are_no_arguments_of_keras():
    of_keras = {"epochs", "steps", "batch_size"}
    assert get_type_hints(FitOptions) == {k: v for k, v in get_type_hints(RunOptions).items() if k not in of_keras}


def test_compare_has_the_fields_of_a_comparison_and_the_keywords_that_all_its_runs_share():
    of_plan = {name: one.annotation | None for name, one in Comparison.model_fields.items()}
    of_plan |= {"stragglers": Sequence[str] | None, "batches": Sequence[Batch] | None}  # any sequence will do
    differ = {"mode", "straggler", "seed"}  # from arm to arm, or from run to run
    of_runs = {name: kind for name, kind in get_type_hints(RunOptions).items() if name not in differ}
    of_plan = {name: kind for name, kind in of_plan.items() if name not in ("arms", "settings")}  # named arguments
    assert get_type_hints(CompareOptions) == of_runs | of_plan


@pytest.mark.parametrize(
    ("function", "options"), [("train", RunOptions), ("fit", FitOptions), ("compare", CompareOptions)]
)
def test_help_shows_every_keyword_with_its_type(function, options):
    shown = inspect.signature(getattr(ps_cluster, function)).parameters
    assert "options" not in shown
    assert {name: shown[name].annotation for name in get_type_hints(options)} == get_type_hints(options)
    assert {shown[name].default for name in get_type_hints(options)} == {None}
    assert [name for name in shown if name in KEYWORDS and name in get_type_hints(options)] == [
        name for name in KEYWORDS if name in get_type_hints(options)
    ]
