"""Read JSON into typed models: bounded, without duplicate keys, without numbers that JSON does not have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError

from ps_cluster.errors import UserError
from ps_cluster.files.malformed import Malformed
from ps_cluster.files.opening import read_bytes
from ps_cluster.files.validation import first_error

MOST_BYTES = 64 * 2**20  # a summary of 100,000 scores has 20 MB
MOST_DIGITS = 400  # of one number; Python's own limit is 4,300

Model = TypeVar("Model", bound=BaseModel)


def read_json(path: Path, model: type[Model], most_bytes: int = MOST_BYTES) -> Model:
    """Return the validated content of a JSON file.

    Raises:
      FileNotFoundError: there is no such file.
      UserError: it can't be read, or is not what `model` says; one line that names the file and the field.
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

    Raises:
      Malformed: not JSON, too deep, a key twice in one object, NaN or an infinity, or a number of too many digits.
    """
    try:
        text = text.decode("utf-8") if isinstance(text, bytes) else text
        return json.loads(
            text, object_pairs_hook=_object, parse_constant=_refuse_constant, parse_int=_whole, parse_float=_float
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
        keys = [key for key, _ in pairs]
        raise Malformed(f"has the key {next(key for key in keys if keys.count(key) > 1)!r:.60} twice")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise Malformed(f"has {name}, which is no number of JSON")


def _whole(digits: str) -> int:
    _check_digits(digits)
    return int(digits)


def _float(digits: str) -> float:
    _check_digits(digits)
    return float(digits)


def _check_digits(digits: str) -> None:
    if len(digits) > MOST_DIGITS:
        raise Malformed(f"has a number of {len(digits):,} digits")
