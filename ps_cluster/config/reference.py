"""Write docs/settings.md, the list of all settings, from the classes that validate them.

`python -m ps_cluster.config.reference > docs/settings.md` writes it anew; a test compares the two. No TensorFlow.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel

from ps_cluster.config.schema import sections
from ps_cluster.config.sections import CHOSEN, own_settings
from ps_cluster.config.trees import flat
from ps_cluster.files.yaml_files import read_yaml
from ps_cluster.installation import CONFIG_FOLDER

_HEAD = """# Settings

Made by `python -m ps_cluster.config.reference > docs/settings.md`: don't edit it by hand.

Give a setting by `--set section.name=value`, or in a YAML file by `--config FILE`. The defaults are those of
[configs/default.yaml](../configs/default.yaml). A network's recipe, in its file in
`ps_cluster/models/networks/`, replaces some of them."""
_NAMES = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true or false", "null": "null"}
_LIMITS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}

Schema = Mapping[str, Any]  # a JSON schema


class Setting(NamedTuple):
    """A line of the page. `default`: None for one that has none."""

    key: str
    values: str
    default: str | None
    meaning: str


def page() -> str:
    """Return the whole page."""
    defaults = flat(read_yaml(CONFIG_FOLDER / "default.yaml"))
    parts = [_HEAD]
    for section, settings in sections().items():
        parts += [f"## {section}", _table(_settings(section, settings, defaults))]
        if section in CHOSEN:
            parts += _of_choices(section, defaults)
    return "\n\n".join(parts) + "\n"


def _of_choices(section: str, defaults: Mapping[str, Any]) -> Iterator[str]:
    """Yield a table for each choice that has settings of its own, and a line about those that have none."""
    key, kinds = CHOSEN[section]
    plain = [kind.name for kind in kinds.with_settings if not own_settings(section, kind)]
    alike: dict[type[BaseModel], list[str]] = {}
    for kind in kinds.with_settings:
        if kind.name not in plain:
            alike.setdefault(kind.Settings, []).append(kind.name)
    for settings, names in alike.items():
        shared = kinds.settings.model_fields
        yield f"With `{section}.{key}` {', '.join(names)}, also:"
        yield _table(one for one in _settings(section, settings, defaults) if one.key.split(".")[1] not in shared)
    if plain:
        yield f"No further settings: {', '.join(plain)}."


def _settings(prefix: str, model: type[BaseModel], defaults: Mapping[str, Any]) -> Iterator[Setting]:
    schema = model.model_json_schema()
    return _of_schema(prefix, schema, schema.get("$defs", {}), defaults)


def _of_schema(prefix: str, schema: Schema, parts: Schema, defaults: Mapping[str, Any]) -> Iterator[Setting]:
    """Yield the settings of an object; those of an object within it have longer keys. `parts`: named schemas."""
    for name, given in schema["properties"].items():
        key, found = f"{prefix}.{name}", _resolved(given, parts)
        if "properties" in found:
            yield from _of_schema(key, found, parts, defaults)
        else:
            default = defaults.get(key, found.get("default", ...))
            text = None if default is ... else json.dumps(default, ensure_ascii=False)
            yield Setting(key, _choices(key) or _values(found, parts), text, found.get("description", ""))


def _choices(key: str) -> str | None:
    """Return the names that may be chosen, for the key that chooses a section's further settings; None for other keys."""
    section, _, name = key.partition(".")
    if section not in CHOSEN or name != CHOSEN[section].key:
        return None
    return ", ".join([*CHOSEN[section].kinds.own, "or yours as path/to/file.py:name"])


def _values(schema: Schema, parts: Schema) -> str:
    """Return which values a setting takes, e.g. "whole number ≥ 1, ≤ 256, or null"."""
    if "anyOf" in schema:
        return ", or ".join(_values(_resolved(one, parts), parts) for one in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(_word(value) for value in schema["enum"])
    if "const" in schema:
        return _word(schema["const"])
    if "prefixItems" in schema:
        return f"list of {len(schema['prefixItems'])}, each: {_values(schema['prefixItems'][0], parts)}"
    if schema.get("type") == "array":
        return f"list of: {_values(_resolved(schema['items'], parts), parts)}"
    if "properties" in schema:
        return "; ".join(f"{name}: {_values(value, parts)}" for name, value in schema["properties"].items())
    if "additionalProperties" in schema and schema["type"] == "object":
        return f"names, each with a {_values(schema['additionalProperties'], parts)}"
    limits = ", ".join(f"{sign} {schema[name]:,.15g}" for name, sign in _LIMITS.items() if name in schema)
    return f"{_NAMES[schema['type']]} {limits}".strip()


def _resolved(schema: Schema, parts: Schema) -> Schema:
    """Return the schema that a reference names; any other schema as it is."""
    reference = schema.get("$ref")
    return schema if reference is None else {**parts[reference.rpartition("/")[2]], **schema}


def _word(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _table(settings: Iterator[Setting]) -> str:
    rows = [  # no text here holds a |, which would end a cell
        f"| `{key}` | {values} | {'' if default is None else f'`{default}`'} | {meaning} |"
        for key, values, default, meaning in settings
    ]
    return "\n".join(["| setting | values | default | meaning |", "|---|---|---|---|", *rows])


if __name__ == "__main__":
    print(page(), end="")
