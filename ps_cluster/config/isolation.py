"""Define the values of the setting `cluster.isolation`: "auto", "require", "off" or "interface=NAME"."""

from __future__ import annotations

import re
from typing import Annotated, Literal, get_args

from pydantic import BeforeValidator, Field

from ps_cluster.errors import did_you_mean

Word = Literal["auto", "require", "off"]
WORDS: tuple[Word, ...] = get_args(Word)
INTERFACE = r"^interface=[A-Za-z0-9_.:@-]{1,15}$"  # Linux allows 15 characters; the firewall reads a * as a pattern


def _check_isolation(value: object) -> object:
    if value in WORDS or (isinstance(value, str) and re.fullmatch(INTERFACE, value)):
        return value
    nearest = did_you_mean(value, WORDS) if isinstance(value, str) else ""
    words = ", ".join(map(repr, WORDS))
    raise ValueError(f"{nearest}Input should be {words} or, for `task`, interface=NAME, e.g. interface=wg0")


Isolation = Annotated[Word | Annotated[str, Field(pattern=INTERFACE)], BeforeValidator(_check_isolation)]


def interface_of(setting: str) -> str | None:
    """Return the network interface that `cluster.isolation` names; None for "auto", "require" and "off"."""
    return None if setting in WORDS else setting.partition("=")[2]
