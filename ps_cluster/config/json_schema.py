"""Derive the JSON schema of a configuration, and the names of all settings, from the classes that validate it.

`ps_cluster.comparison.schema_files` writes it to a file. No TensorFlow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from pydantic import BaseModel

from ps_cluster.config.schema import sections
from ps_cluster.config.sections import CHOSEN, Choice, own_settings
from ps_cluster.config.trees import flat
from ps_cluster.config.user_layers import EXTENDS
from ps_cluster.files.yaml_files import read_yaml
from ps_cluster.installation import CONFIG_FOLDER

Schema = dict[str, Any]  # a JSON schema
DIALECT = "http://json-schema.org/draft-07/schema#"  # which all editors know
_PATH = "[./]"  # is in each name that is no name of the package's own: the path of data or code
_EXTENDS: Schema = {
    "type": "string",
    "minLength": 1,
    "description": "Another file, as seen from this one, whose settings these change.",
}


def run_schema() -> Schema:
    """Return the schema of a file for `run --config`. It takes the settings of whatever can be chosen in a section."""
    return {
        "$schema": DIALECT,
        "title": "Configuration of a run of ps_cluster",
        **one_object({EXTENDS: _EXTENDS, **sections_schema()}),
    }


def sections_schema() -> dict[str, Schema]:
    """Return the schema of each section, with defaults, by its name."""
    defaults = flat(read_yaml(CONFIG_FOLDER / "default.yaml"))
    return {name: _with_defaults(name, _section(name, model), defaults) for name, model in sections().items()}


def one_object(properties: Mapping[str, Schema]) -> Schema:
    """Return the schema of an object with these properties and no others; all may be left out."""
    return {"type": "object", "additionalProperties": False, "properties": dict(properties)}


def schema_of(model: type[BaseModel]) -> Schema:
    """Return the schema of a class, without references and titles: what they name stands in their place."""
    whole = model.model_json_schema()
    found: Schema = _inlined(whole, whole.pop("$defs", {}))
    return found


def leaves(properties: Mapping[str, Schema], prefix: str = "") -> Iterator[tuple[str, Schema]]:
    """Yield dotted key → schema of each setting; those of an object within an object have longer keys."""
    for name, found in properties.items():
        if "properties" in found:
            yield from leaves(found["properties"], f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", found


def own_names(choice: Choice) -> list[str]:
    """Return the names of the package's own that users may choose."""
    return [name for name in choice.kinds.names if name in choice.kinds.own]


@lru_cache
def known_keys() -> tuple[str, ...]:
    """Return the dotted keys of all settings, also those of single modes, networks, …, and the names of the sections."""
    found = sections_schema()
    return (*found, *(key for key, _ in leaves(found)))


def _section(name: str, model: type[BaseModel]) -> Schema:
    properties = dict(schema_of(model)["properties"])
    if name not in CHOSEN:
        return one_object(properties)
    choice = CHOSEN[name]
    properties[choice.key] = names_schema(choice, properties[choice.key])
    for kind in choice.kinds.with_settings:
        own = schema_of(kind.Settings)["properties"]
        for setting in own_settings(name, kind):
            properties[setting] = _either(properties.get(setting), own[setting])
    return {**one_object(properties), "allOf": list(_only_own(choice))}


def names_schema(choice: Choice, found: Schema) -> Schema:
    """Return the schema of the key that chooses a section's further settings."""
    described = {key: value for key, value in found.items() if key == "description"}
    return {
        "anyOf": [
            {"enum": own_names(choice)},
            {"type": "string", "pattern": _PATH},
        ],
        **described,
    }


def _only_own(choice: Choice) -> Iterator[Schema]:
    """Yield a condition for each name: where it is chosen, there are no settings of the others."""
    for name in own_names(choice):
        chosen = {"properties": {choice.key: {"const": name}}, "required": [choice.key]}
        yield {"if": chosen, "then": {"propertyNames": {"enum": list(choice.kinds[name].Settings.model_fields)}}}


def _either(one: Schema | None, other: Schema) -> Schema:
    """Return a schema that takes what either takes: two choices may have a setting of one name."""
    if one is None or one == other:
        return other
    return {"anyOf": [*one.get("anyOf", [one]), other]}


def _with_defaults(prefix: str, found: Schema, defaults: Mapping[str, Any]) -> Schema:
    """Return a schema with the defaults of configs/default.yaml, which replace those of the classes."""
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
    return _as_list(found)


def _as_list(found: Schema) -> Schema:
    """Return the schema of a tuple as that of a list, which this dialect can tell. Its parts are all alike here."""
    parts = found.pop("prefixItems", None)
    return {**found, "items": parts[0]} if parts else found
