"""Read `cluster.isolation`: a word, or the interface to which a task on several machines keeps. No TensorFlow."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from ps_cluster.errors import did_you_mean

WORDS = ("auto", "require", "off")
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


def interface_of(setting: str) -> str | None:
    """Return the interface that the setting names, None for one of the words."""
    return None if setting in WORDS else setting.partition("=")[2]
