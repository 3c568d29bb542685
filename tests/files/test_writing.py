"""What is written where somebody else could have put something in the way."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ps_cluster.files.writing import (
    create_beside,
    create_text_beside,
    open_append,
    path_beside,
    remove_leftovers,
    write_json,
    write_whole,
)

PACKAGE = Path(__file__).parents[2] / "ps_cluster"


def test_what_is_written_whole_is_there_and_nothing_beside_it(tmp_path):
    write_json(tmp_path / "new" / "a.json", {"a": 1})
    write_whole(tmp_path / "new" / "a.json", b"2")
    assert [path.read_text() for path in (tmp_path / "new").iterdir()] == ["2"]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path):
    (tmp_path / "a").write_text("old")
    with pytest.raises(ZeroDivisionError), create_beside(tmp_path / "a") as file:
        file.write(b"new")
        raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError), create_text_beside(tmp_path / "a") as text:
        text.write("new")
        raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError), path_beside(tmp_path / "a") as path:
        path.write_text("new")
        raise ZeroDivisionError
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def test_text_and_a_file_that_a_library_writes_get_their_names_when_they_are_complete(tmp_path):
    with create_text_beside(tmp_path / "a") as text:
        text.write("één\n")
        assert not (tmp_path / "a").exists()
    with path_beside(tmp_path / "b.keras") as path:
        path.write_text("new")
        assert path.suffix == ".keras" and not (tmp_path / "b.keras").exists()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        "a": "één\n".encode(), "b.keras": b"new"
    }  # fmt: skip


def write_as_a_library(path):
    with path_beside(path) as unfinished:
        unfinished.write_text("new")


@pytest.mark.parametrize(
    ("write", "is_flushed"),
    [
        (lambda path: write_whole(path, "new"), True),
        (lambda path: write_whole(path, "new", lasting=False), False),
        (write_as_a_library, True),
    ],
    ids=["lasting", "not lasting", "by a library"],
)
def test_a_lasting_file_is_flushed_to_the_disk_when_it_is_complete_and_before_it_gets_its_name(
    tmp_path, monkeypatch, write, is_flushed
):
    path, flushed = tmp_path / "a", []
    path.write_text("old")
    monkeypatch.setattr(
        os, "fsync", lambda file: flushed.append((Path(f"/proc/self/fd/{file}").read_text(), path.read_text()))
    )
    write(path)
    assert path.read_text() == "new"
    assert flushed == [("new", "old")] * is_flushed


def test_a_link_in_the_place_of_a_whole_file_is_replaced_and_not_followed(tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "a").symlink_to(tmp_path / "mine")
    write_whole(tmp_path / "a", "written")
    assert (tmp_path / "mine").read_text() == "mine" and not (tmp_path / "a").is_symlink()


@pytest.mark.parametrize("target", ["there", "not there"])
def test_nothing_is_appended_through_a_link(tmp_path, target):
    (tmp_path / "there").write_text("mine")
    (tmp_path / "rows").symlink_to(tmp_path / target)
    with pytest.raises(PermissionError, match="it is a link"):
        open_append(tmp_path / "rows")
    assert (tmp_path / "there").read_text() == "mine" and not (tmp_path / "not there").exists()


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "rows")
    reader = os.open(tmp_path / "rows", os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(PermissionError, match="a regular file"):
        open_append(tmp_path / "rows")
    os.close(reader)
    with pytest.raises(OSError, match="No such device"):
        open_append(tmp_path / "rows")


def test_rows_come_at_the_end_of_a_file_that_programs_do_not_inherit(tmp_path):
    for row in (b"1", b"2"):
        with open_append(tmp_path / "rows") as file:
            file.write(row)
            assert not os.get_inheritable(file.fileno())
    assert (tmp_path / "rows").read_text() == "12"


WRITER = """
import sys, time
from pathlib import Path
from ps_cluster.files import writing
from ps_cluster.files.writing import create_beside
with create_beside(Path(sys.argv[1])) as file:
    file.write(b"half")
    file.flush()
    print(flush=True)
    time.sleep(60)
"""


def test_left_overs_of_a_killed_writer_are_known_by_its_lock_alone(tmp_path):
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path / "a")], stdout=subprocess.PIPE)
    writer.stdout.readline()
    remove_leftovers(tmp_path, "a")
    (beside,) = tmp_path.iterdir()
    writer.kill()
    writer.wait()
    writer.stdout.close()
    remove_leftovers(tmp_path, "b")
    assert list(tmp_path.iterdir()) == [beside]
    remove_leftovers(tmp_path, "a*")
    assert list(tmp_path.iterdir()) == []


OWN_WAYS = {
    "tools/bench/running.py": "in a folder of a random name that it has just made",
    "files/writing.py": "the opener",
    "system/namespace.py": "/proc alone, and nothing of ours is imported there",
    "data/packing.py": "in a folder of a random name that it has just made",
    "api/streams.py": "in a temporary folder that was made for it",
    "models/by_value.py": "in a temporary folder that it has just made",
    "data/tfds_reader.py": "in a temporary folder that was made for it",
    "tools/chaos/kinds/clock.py": "in a folder that it has just made",
    "tools/chaos/control_group.py": "a control group",
    "tools/chaos/hosts.py": "in a temporary folder that it has just made",
    "tools/doctor/trial.py": "in a temporary folder that was made for it",
    "evaluation/export_formats/tflite.py": "in a folder of a random name that was made for it",
}


def test_every_module_writes_with_the_one_opener():
    found = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if any(map(writes, calls_in(path)))}
    assert found <= OWN_WAYS.keys() and "system/namespace.py" in found


def calls_in(path):
    return (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))


def writes(call):
    """Whether a call opens a file for writing by its name: open, Path.open, os.open, write_text, write_bytes, mkstemp."""
    name = getattr(call.func, "attr", getattr(call.func, "id", None))
    if name in ("write_text", "write_bytes", "NamedTemporaryFile", "mkstemp"):
        return True
    texts = [a.value for a in (*call.args, *(k.value for k in call.keywords)) if isinstance(a, ast.Constant)]
    by_mode = any(isinstance(text, str) and len(text) < 4 and set(text) & set("wax+") for text in texts)
    return name == "open" and (by_mode or any("O_CREAT" in ast.unparse(argument) for argument in call.args))
