"""Convert and merge settings: trees of sections, and dotted keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ps_cluster.errors import UserError

Layer = dict[str, Any]


def flat(layer: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a layer as dotted key → value."""
    return dict(_leaves(layer, prefix))


def nested(dotted: Mapping[str, Any]) -> Layer:
    """Return dotted key → value as a tree of sections. Raises UserError where a key goes through a plain value."""
    tree: Layer = {}
    for key, value in dotted.items():
        *sections, name = key.split(".")
        branch = tree
        for section in sections:
            branch = branch.setdefault(section, {})
            if not isinstance(branch, dict):
                raise UserError(
                    f"{key}: '{section}' is given as {branch!r:.300}, where a section with its settings belongs"
                )
        branch[name] = value
    return tree


def merged(under: Layer, over: Mapping[str, Any]) -> Layer:
    """Return `over` on top of `under`, section by section; lists are replaced whole."""
    result = dict(under)
    for key, value in over.items():
        both_sections = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if both_sections else value
    return result


def _leaves(layer: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in layer.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
