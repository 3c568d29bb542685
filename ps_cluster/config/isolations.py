"""Read `cluster.isolation`: a word, or the interface to which a task on several machines keeps. No TensorFlow."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from ps_cluster.errors import did_you_mean

KEY = "cluster.isolation"
WORDS = ("auto", "require", "off")
_STRICTER = ("off", "auto", "require")  # each than those before it; stricter than all: an interface
INTERFACE = r"^interface=[A-Za-z0-9_.:@-]{1,15}$"  # Linux has no longer names; a * would be a pattern for the firewall


def _known(value: object) -> object:
    if value in WORDS or isinstance(value, str) and re.fullmatch(INTERFACE, value):
        return value
    nearest = did_you_mean(value, WORDS) if isinstance(value, str) else ""
    words = ", ".join(map(repr, WORDS))
    raise ValueError(f"{nearest}Input should be {words} or, for `task`, interface=NAME, e.g. interface=wg0")


Isolation = Annotated[
    Literal["auto", "require", "off"] | Annotated[str, Field(pattern=INTERFACE)], BeforeValidator(_known)
]


def joined(layers: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Join layers of dotted keys, the later over the earlier. But of `cluster.isolation` the strictest wins."""
    layers = list(layers)
    return {key: value for layer in layers for key, value in layer.items()} | strictest(layers)


def strictest(layers: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the strictest `cluster.isolation` that layers of dotted keys have, under its key; {} where none has it.

    Who asks for protection gets it, whoever else asks for less.
    """
    asked = [value for layer in layers if isinstance(value := layer.get(KEY), str)]
    return (
        {KEY: max(asked, key=lambda one: _STRICTER.index(one) if one in _STRICTER else len(_STRICTER))} if asked else {}
    )


def interface_of(setting: str) -> str | None:
    """Return the interface that the setting names, None for one of the words."""
    return None if setting in WORDS else setting.partition("=")[2]
