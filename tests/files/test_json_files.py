"""JSON from anywhere: bounded memory and time, and no value that JSON does not have."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict

from ps_cluster.errors import UserError
from ps_cluster.files.json_files import MOST_BYTES, MOST_PARTS, parse_json, read_json
from ps_cluster.files.values import Malformed
from tests.helpers.bad_input import MOST_CPU_S, MOST_MEMORY, PROJECT, peak_of

pytestmark = pytest.mark.slow


class Score(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    step: int


class Scores(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    rows: list[Score]


def filled(item: str, parts: int) -> str:
    """A list of as many items as there may be, of which each has so many commas, colons and brackets."""
    return "[" + item * (MOST_PARTS // parts - 2) + "0]"


def bombs() -> dict[str, str]:
    """Return the texts. To make them takes a second."""
    return {
        "objects": filled('{"a":0},', 3),
        "a key twice at the end": "{" + ",".join(f'"{n:x}":0' for n in range(MOST_PARTS // 2 - 3)) + ',"0":0}',
        "text in four bytes": json.dumps("\U0001f600" + "a" * (MOST_BYTES - 100), ensure_ascii=False),
        "more values than may be": "[" + "0," * (MOST_BYTES // 2 - 10) + "0]",
        "more bytes than may be": '"' + "a" * MOST_BYTES + '"',
        "depth": "[" * (MOST_PARTS - 1),
        "digits": "9" * (MOST_BYTES - 1),
        "mistakes in a list": '{"rows":' + filled("0,", 1)[:-6] + "]}",
        "mistakes in keys": '{"rows":[],' + ",".join(f'"{n:x}":0' for n in range(MOST_PARTS // 2 - 6)) + "}",
    }


def test_bombs_take_bounded_memory_and_time(tmp_path):
    """In one process of their own, whose peak is theirs alone."""
    texts = bombs()
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    code = "from tests.files.test_json_files import explode; import sys; explode(sys.argv[1])"
    ended = subprocess.run(
        [sys.executable, "-c", code, tmp_path], cwd=PROJECT, capture_output=True, text=True, timeout=100
    )
    told = {name: (message, peak, cpu_s) for name, message, peak, cpu_s in map(json.loads, ended.stdout.splitlines())}
    assert set(told) == set(texts), ended.stderr
    for name, (message, peak, cpu_s) in told.items():
        assert name in message and len(message) < 2000, name
        assert peak < MOST_MEMORY and cpu_s < MOST_CPU_S, (name, peak, cpu_s)


def explode(folder: str) -> None:
    for path in Path(folder).iterdir():
        with peak_of() as peak:
            try:
                read_json(path, Scores)
                message = "was taken"
            except UserError as error:
                message = str(error)
        print(json.dumps([path.name, message, peak.memory, peak.cpu_s]))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("NaN", "has NaN"),
        ("1e400", "too large a number"),
        ("\uff13", "is not JSON"),
        ("9" * 401, "401 digits"),
        ('{"a": 1, "a": 2}', "has the key 'a' twice"),
        ("[" * 5000, "nested too deep"),
        (b"\xff", "is not JSON"),
    ],
)
def test_what_json_does_not_have_is_refused(text, says):
    with pytest.raises(Malformed, match=says):
        parse_json(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"rows": [{"step": true}]}', "rows.0.step: got True: Input should be a valid integer"),
        ('{"rows": [{"step": 1.0}]}', "rows.0.step: got 1.0: Input should be a valid integer"),
        ('{"rows": [{"step": 1, "stop": 2}]}', "unknown key 'rows.0.stop'"),
        ('{"rows": [3]}', "rows.0: got 3: a mapping of names to values is needed"),
        ("{}", "'rows' is missing"),
    ],
)
def test_a_file_of_other_types_is_told_by_its_first_field(tmp_path, text, says):
    (tmp_path / "scores.json").write_text(text)
    with pytest.raises(UserError) as error:
        read_json(tmp_path / "scores.json", Scores)
    assert str(error.value).startswith(f"'{tmp_path / 'scores.json'}'") and says in str(error.value)
