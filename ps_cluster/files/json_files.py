"""Read JSON into typed models, within limits. Duplicate keys, NaN and infinity are refused."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError

from ps_cluster.errors import UserError
from ps_cluster.files.reading import read_bytes
from ps_cluster.files.values import Malformed, first_error, parse_decimal, parse_integer

MOST_BYTES = 24 * 2**20
# The largest number of commas, colons and opening brackets in a text. A value of two bytes takes up to 100 bytes in
# memory, and 400 more if it does not fit the model. The summary of a run that lasts a month and is scored every minute
# stays below this limit.
MOST_PARTS = 600_000

Json = dict[str, Any]
"""A JSON object that is about to be written, or was read without a model."""
Model = TypeVar("Model", bound=BaseModel)


def read_json(path: Path, model: type[Model], most_bytes: int = MOST_BYTES) -> Model:
    """Return the validated content of a JSON file.

    Raises FileNotFoundError, or UserError with the file and the field if it can't be read or does not fit `model`.
    """
    try:
        return model.model_validate(parse_json(read_bytes(path, most_bytes)))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UserError(f"'{path}' can't be read: {error.strerror or error}") from error
    except ValidationError as error:
        raise UserError(first_error(error, f"'{path}'")) from error
    except Malformed as error:
        raise UserError(f"'{path}': {error}") from error


def parse_json(text: bytes | str) -> Any:
    """Return the value of a JSON text.

    Raises Malformed if the text is not JSON, has too many values, or is nested too deep. Raises it also if an object
    has a key twice, or if the text has NaN, infinity, or a number with too many digits.
    """
    try:
        text = text.decode("utf-8") if isinstance(text, bytes) else text
        if sum(text.count(mark) for mark in ",:[{") > MOST_PARTS:
            raise Malformed(f"holds more than {MOST_PARTS:,} values")
        return json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=_refuse_constant,
            parse_int=parse_integer,
            parse_float=parse_decimal,
        )
    except Malformed:
        raise
    except RecursionError as error:
        raise Malformed("is nested too deep") from error
    except ValueError as error:
        raise Malformed(f"is not JSON ({error})") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        key = next(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
        raise Malformed(f"has the key {key!r:.60} twice")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise Malformed(f"has {name}, which is not a number in JSON")
