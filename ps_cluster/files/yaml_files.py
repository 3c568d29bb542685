"""Read and write YAML within limits. Features that let a short file expand to a large value are refused.

Values follow YAML 1.2's core schema (https://yaml.org/spec/1.2.2/#103-core-schema), but numbers have to be decimal.
`1e-3` is a number; `off` and `2024-01-01` are text. A value that other YAML versions read as a different number, such
as `010`, is refused.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from ps_cluster.errors import UserError
from ps_cluster.files import values
from ps_cluster.files.reading import read_bytes
from ps_cluster.files.values import Malformed

MOST_BYTES = 2**16  # PyYAML needs up to 2 s for a file of this size; the longest shipped file has 6,000 bytes
MOST_LEVELS = 20

_WORDS = {"": None, "~": None} | {
    spelling: value
    for word, value in {"null": None, "true": True, "false": False}.items()
    for spelling in (word, word.capitalize(), word.upper())
}
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_DOUBTFUL = re.compile(
    r"[-+]?(0[box][0-9A-Fa-f_]+|[0-9][0-9_]*(:[0-5]?[0-9])*(\.[0-9_]*)?([eE][-+]?[0-9]+)?|\.[0-9][0-9_]*([eE][-+]?[0-9]+)?)"
)
_LIBYAML = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # much quicker, but PyYAML may have been built without it
_AROUND = (yaml.StreamStartEvent, yaml.StreamEndEvent, yaml.DocumentStartEvent, yaml.DocumentEndEvent)

Event = Any  # a yaml.Event; its class decides which attributes it has
Events = Iterator[Event]


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file, {} if it is empty. Raises UserError with the file and, if known, the line."""
    try:
        content = parse_yaml(read_bytes(path, MOST_BYTES))
    except OSError as error:
        raise UserError(f"config file '{path}' can't be read: {error.strerror or error}") from error
    except Malformed as error:
        raise UserError(f"config file '{path}' {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UserError(
            f"config file '{path}' must hold keys with values, like 'key: value', but holds a {type(content).__name__}"
        )
    return content


def parse_yaml(text: bytes | str) -> Any:
    """Return the value of a YAML text: dict, list, str, int, float, bool or None.

    Raises Malformed if the text is not YAML, is too long, is nested too deep, or has more than one document. Raises it
    also for a key that appears twice in a mapping or is not text; for anchors, aliases, merge keys and tags; and for
    numbers that are too long, or that other versions of YAML read as other numbers.
    """
    if len(text) > MOST_BYTES:
        raise Malformed(f"has more than {MOST_BYTES:,} bytes")
    try:
        text = text.decode("utf-8") if isinstance(text, bytes) else text
        # A text that libyaml refuses is parsed again by PyYAML's Python code, which has better messages and accepts
        # names that are not UTF-8 ("\uDCFF").
        with contextlib.suppress(yaml.YAMLError):
            return _parsed(text, _LIBYAML)
        return _parsed(text, yaml.SafeLoader)
    except Malformed:
        raise
    except UnicodeDecodeError as error:
        raise Malformed("is not YAML: it is not UTF-8 text") from error
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise Malformed(f"is not YAML: {_reason(error)}") from error


def _parsed(text: str, loader: Any) -> Any:
    events = (event for event in yaml.parse(text, Loader=loader) if not isinstance(event, _AROUND))
    first = next(events, None)
    value = None if first is None else _value(first, events, MOST_LEVELS)
    if next(events, None) is not None:
        raise Malformed("holds more than one document")
    return value


def dump_yaml(value: Any) -> str:
    """Return YAML that `parse_yaml`, and readers of YAML 1.1 such as kubectl, read as the same value."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=1000)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, text: str) -> yaml.Node:
        """Write text of several lines as a block, and quote text that would otherwise be read as another type."""
        style = "|" if "\n" in text else None if _is_plain_text(text) else "'"
        return self.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _Dumper.represent_text)


def _is_plain_text(text: str) -> bool:
    try:
        return text.lower() not in ("y", "n") and isinstance(_plain(text), str)
    except Malformed:
        return False


def _value(event: Event, events: Events, levels: int) -> Any:
    """Return the value that starts at `event`. Aliases are refused, so the value can't be larger than the file."""
    if isinstance(event, yaml.AliasEvent) or event.anchor:
        raise _at(event, "anchors and aliases (&, *) are not read: write the value itself")
    if event.tag:
        raise _at(event, "tags (!) are not read: leave the tag out")
    if isinstance(event, yaml.ScalarEvent):
        return _scalar(event)
    if not levels:
        raise _at(event, f"nested deeper than {MOST_LEVELS} levels")
    if isinstance(event, yaml.SequenceStartEvent):
        return [_value(item, events, levels - 1) for item in _until(yaml.SequenceEndEvent, events)]
    return _mapping(events, levels - 1)


def _mapping(events: Events, levels: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for event in _until(yaml.MappingEndEvent, events):
        key = _value(event, events, levels)
        if not isinstance(key, str):
            raise _at(event, f"a key must be text, not {key!r:.60}")
        if key == "<<" and not event.style:
            raise _at(event, "merge keys (<<) are not read: write the values themselves")
        if key in found:
            raise _at(event, f"the key {key!r:.60} appears twice")
        found[key] = _value(next(events), events, levels)
    return found


def _until(end: type[yaml.Event], events: Events) -> Events:
    for event in events:
        if isinstance(event, end):
            return
        yield event


def _scalar(event: yaml.ScalarEvent) -> Any:
    if event.style:  # quoted, or a block of text
        return event.value
    try:
        return _plain(event.value)
    except Malformed as error:
        raise _at(event, str(error)) from error


def _plain(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    if _NOT_FINITE.fullmatch(text):
        return float(text.replace(".", ""))
    if values.is_integer(text):
        return values.parse_integer(text)
    if values.is_decimal(text):
        return values.parse_decimal(text)
    if _DOUBTFUL.fullmatch(text):
        raise Malformed(
            f"{text!r:.60} is not a plain decimal number: write the number in decimal, or put text in quotes"
        )
    return text


def _at(event: Event, problem: str) -> Malformed:
    return Malformed(f"can't be used: line {event.start_mark.line + 1}: {problem}")


def _reason(error: Exception) -> str:
    """Return the parser's reason without the quoted piece of the file."""
    mark = getattr(error, "problem_mark", None)
    reason = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    return f"line {mark.line + 1}: {reason}" if mark else reason
