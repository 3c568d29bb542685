"""List the dotted keys of all settings."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from pydantic import BaseModel

from ps_cluster.config.schema import section_classes
from ps_cluster.config.sections import CHOICE_BY_SECTION


@lru_cache
def known_keys() -> tuple[str, ...]:
    """Return the dotted keys of all settings, including those of single modes, networks, …, and the section names."""
    found = dict.fromkeys(section_classes())
    for section, model in section_classes().items():
        kinds = CHOICE_BY_SECTION[section].kinds.with_settings if section in CHOICE_BY_SECTION else ()
        for settings in (model, *(kind.Settings for kind in kinds)):
            found |= dict.fromkeys(_keys(settings, f"{section}."))
    return tuple(found)


def _keys(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _keys(field.annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"
