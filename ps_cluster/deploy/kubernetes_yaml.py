"""Write manifests as YAML that every reader takes for the same values, of YAML 1.1 as of 1.2."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import yaml

Document = dict[str, Any]

_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")
_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}  # kubectl reads YAML 1.1


def dump_documents(documents: Iterable[Document]) -> str:
    """Return the documents, each after a line `---`."""
    return "".join(f"---\n{yaml.dump(one, Dumper=_Dumper, sort_keys=False, width=1000)}" for one in documents)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, indentless=False)  # lists are indented, as in most manifests

    def represent_text(self, text: str) -> yaml.Node:
        """Write several lines as a block, and quote what is not surely text."""
        plain = _PLAIN.fullmatch(text) and text.lower() not in _WORDS
        style = "|" if "\n" in text else None if plain else "'"
        return self.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _Dumper.represent_text)
