"""Derive JSON schemas for editors, and the table of all settings, from the classes of settings.

`python -m ps_cluster.cli.reference docs/configuration.md` writes the table into the page; a test compares the two.
`ps_cluster.tools.compare.schemas` writes the schemas. This module does not import TensorFlow.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel

from ps_cluster.cli.options import CONFIG_OPTIONS
from ps_cluster.config.augmentation import VARIATIONS
from ps_cluster.config.registry import Named
from ps_cluster.config.schema import section_classes
from ps_cluster.config.sections import CHOICE_BY_SECTION, CHOICE_BY_SETTING, Choice, flat, own_settings
from ps_cluster.config.user_settings import EXTENDS
from ps_cluster.files.values import one_line_text
from ps_cluster.files.writing import write_whole
from ps_cluster.files.yaml_files import read_yaml
from ps_cluster.installation import CONFIG_FOLDER

# The JSON schema of a configuration.

Schema = dict[str, Any]  # a JSON schema
DIALECT = "http://json-schema.org/draft-07/schema#"  # which all editors know
_PATH = "[./]"  # a name that this package does not define is a path of data or code, with a . or /
_EXTENDS: Schema = {
    "type": "string",
    "minLength": 1,
    "description": "The path of another file, relative to this file. The settings in this file replace those of the other one.",
}


def run_schema() -> Schema:
    """Return the JSON schema of a file for `run --config`.

    The section `mode` accepts the settings of all modes, unless the file itself chooses a mode. The sections of
    networks, data sets and so on work in the same way.
    """
    return {
        "$schema": DIALECT,
        "title": "Configuration of a run of ps_cluster",
        **one_object({EXTENDS: _EXTENDS, **sections_schema()}),
    }


def sections_schema() -> dict[str, Schema]:
    """Return the schema of each section, with defaults, by the name of the section."""
    defaults = flat(read_yaml(CONFIG_FOLDER / "default.yaml"))
    return {name: _with_defaults(name, _section(name, model), defaults) for name, model in section_classes().items()}


def one_object(properties: Mapping[str, Schema]) -> Schema:
    """Return the schema of an object with these properties and no others. None of them is required."""
    return {"type": "object", "additionalProperties": False, "properties": dict(properties)}


def schema_of(model: type[BaseModel]) -> Schema:
    """Return the schema of a class. References are replaced by their definitions, and titles are removed."""
    whole = model.model_json_schema()
    found: Schema = _inlined(whole, whole.pop("$defs", {}))
    return found


def leaves(properties: Mapping[str, Schema], prefix: str = "") -> Iterator[tuple[str, Schema]]:
    """Yield the dotted key and the schema of each setting. The key begins with the names of its sections."""
    for name, found in properties.items():
        if "properties" in found:
            yield from leaves(found["properties"], f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", found


def own_names(choice: Choice[Named]) -> list[str]:
    """Return the names of this package's objects (modes, networks, …) that users may choose in a section."""
    return [name for name in choice.kinds.names if name in choice.kinds.own]


def _section(name: str, model: type[BaseModel]) -> Schema:
    properties = dict(schema_of(model)["properties"])
    if name not in CHOICE_BY_SECTION:
        return one_object(properties)
    choice = CHOICE_BY_SECTION[name]
    properties[choice.key] = names_schema(choice, properties[choice.key])
    for kind in choice.kinds.with_settings:
        own = schema_of(kind.Settings)["properties"]
        for setting in own_settings(name, kind):
            properties[setting] = _either(properties.get(setting), own[setting])
    return {**one_object(properties), "allOf": list(_only_own(choice))}


def names_schema(choice: Choice[Named], found: Schema) -> Schema:
    """Return the schema of a key that chooses an object by its name, e.g. `mode.name`.

    `found`: the schema of the key in the settings class. Only its description is kept.
    """
    described = {key: value for key, value in found.items() if key == "description"}
    return {"anyOf": [{"enum": own_names(choice)}, {"type": "string", "pattern": _PATH}], **described}


def _only_own(choice: Choice[Named]) -> Iterator[Schema]:
    """Yield a condition for each choice of a section: if it is chosen, settings of other choices are not allowed."""
    for name in own_names(choice):
        chosen = {"properties": {choice.key: {"const": name}}, "required": [choice.key]}
        yield {"if": chosen, "then": {"propertyNames": {"enum": list(choice.kinds[name].Settings.model_fields)}}}


def _either(one: Schema | None, other: Schema) -> Schema:
    """Return a schema that accepts whatever one of two schemas accepts. If `one` is None, return `other`.

    Two choices of a section, e.g. two modes, may have a setting of the same name with different values.
    """
    if one is None or one == other:
        return other
    return {"anyOf": [*one.get("anyOf", [one]), other]}


def _with_defaults(prefix: str, found: Schema, defaults: Mapping[str, Any]) -> Schema:
    """Return the schema `found` with the defaults of configs/default.yaml instead of those of the settings classes.

    Args:
      prefix: the dotted key that `found` describes.
      defaults: the defaults in the file, by dotted key.
    """
    if "properties" not in found:
        return {**found, "default": defaults[prefix]} if prefix in defaults else found
    inner = {name: _with_defaults(f"{prefix}.{name}", one, defaults) for name, one in found["properties"].items()}
    return {**{key: value for key, value in found.items() if key != "default"}, "properties": inner}


def _inlined(node: Any, parts: Mapping[str, Any]) -> Any:
    if isinstance(node, list):
        return [_inlined(one, parts) for one in node]
    if not isinstance(node, dict):
        return node
    whole = {**parts[node["$ref"].rpartition("/")[2]], **node} if "$ref" in node else node
    found = {
        key: _inlined(value, parts)
        for key, value in whole.items()
        if key != "$ref" and not (key == "title" and isinstance(value, str))
    }
    # A tuple becomes a list, because this dialect has no tuples. All parts of a tuple have the same schema.
    of_tuple = found.pop("prefixItems", None)
    return {**found, "items": of_tuple[0]} if of_tuple else found


# The page of settings.

_NAMES = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true or false", "null": "null"}
_HEAD = "| setting | values | default | meaning |\n|---|---|---|---|\n"
_LIMITS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


class Setting(NamedTuple):
    """A row of the table of settings. `default`: None if the setting has no default."""

    key: str
    values: str
    default: str | None
    meaning: str


def page(text: str) -> str:
    """Return the text of the page with a new table of settings. The table is at the end of the page."""
    defaults = flat(read_yaml(CONFIG_FOLDER / "default.yaml"))
    rows: list[Setting] = []
    for section, settings in section_classes().items():
        rows += [*_settings(section, settings, defaults), *_of_choices(section, defaults)]
    table = "".join(  # no text here holds a |, which would end a cell
        f"| `{key}`{_options(key)} | {values} | {'' if default is None else f'`{default}`'} | {meaning} |\n"
        for key, values, default, meaning in rows
    )
    return f"{text.partition(_HEAD)[0]}{_HEAD}{table}"


def _of_choices(section: str, defaults: Mapping[str, object]) -> Iterator[Setting]:
    """Yield the settings that only some choices of a section have, with the names of these choices.

    A setting that is equal in several choices is yielded once.
    """
    if section not in CHOICE_BY_SECTION:
        return
    kinds = CHOICE_BY_SECTION[section].kinds
    having: dict[Setting, list[str]] = {}
    for kind in kinds.with_settings:
        for one in _settings(section, kind.Settings, defaults):
            if one.key.split(".")[1] not in kinds.settings.model_fields:
                having.setdefault(one, []).append(kind.name)
    for one, names in having.items():
        yield one._replace(meaning=f"{one.meaning} (With {', '.join(names)}.)".strip())


def _settings(section: str, model: type[BaseModel], defaults: Mapping[str, object]) -> Iterator[Setting]:
    for name, found in leaves(schema_of(model)["properties"]):
        key = f"{section}.{name}"
        default = defaults.get(key, found.get("default", ...))
        text = None if default is ... else json.dumps(default, ensure_ascii=False)
        yield Setting(key, _choices(key) or _values(found), text, found.get("description", ""))


def _options(key: str) -> str:
    """Return the command-line options that set a setting, with a comma before each option."""
    options = [option for option, setting in CONFIG_OPTIONS.items() if setting == key]
    forms = [one.form for one in VARIATIONS.values() if key == f"data.augmentation.{one.setting}"]
    options += [f"--augment {form}" for text in forms for form in text.split(" or ")]
    return "".join(f", `{option}`" for option in options)


def _choices(key: str) -> str | None:
    """Return the names that a setting such as mode.name may have. Return None for a setting that is not a `Choice`."""
    if key not in CHOICE_BY_SETTING:
        return None
    return ", ".join([*own_names(CHOICE_BY_SETTING[key]), "or yours as path/to/file.py:name"])


def _values(schema: Schema) -> str:
    """Return a description of a setting's values, e.g. "whole number ≥ 1, ≤ 256, or null"."""
    if "anyOf" in schema:
        return ", or ".join(_values(one) for one in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(one_line_text(value) for value in schema["enum"])
    if "const" in schema:
        return one_line_text(schema["const"])
    if schema.get("type") == "array" and schema.get("minItems") == schema.get("maxItems", ...):
        return f"list of {schema['minItems']} values, each: {_values(schema['items'])}"
    if schema.get("type") == "array":
        return f"list of: {_values(schema['items'])}"
    if "properties" in schema:
        return "; ".join(f"{name}: {_values(value)}" for name, value in schema["properties"].items())
    if "additionalProperties" in schema and schema["type"] == "object":
        return f"mapping from names to values: {_values(schema['additionalProperties'])}"
    limits = ", ".join(f"{sign} {schema[name]:,.15g}" for name, sign in _LIMITS.items() if name in schema)
    return f"{_NAMES[schema['type']]} {limits}".strip()


if __name__ == "__main__":
    file = Path(sys.argv[1])
    write_whole(file, page(file.read_text(encoding="utf-8")))
