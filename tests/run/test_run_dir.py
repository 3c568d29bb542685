import builtins

import pytest

from ps_cluster.errors import UserError
from ps_cluster.run import run_dir
from ps_cluster.run.run_dir import RunDir, say, say_the_rest


def test_a_folder_with_the_code_of_a_run_is_taken_and_one_with_more_is_not(tmp_path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "build.pickle").write_bytes(b"")
    assert RunDir.create(tmp_path).code == tmp_path / "code"
    with pytest.raises(UserError, match="is not empty"):
        RunDir.create(tmp_path)


def test_what_a_full_disk_refused_is_said_once_there_is_room(monkeypatch, capsys):
    full = [True]
    real_print = builtins.print

    def print_if_there_is_room(*values, **options):
        if full[0]:
            raise OSError(28, "No space left on device")
        real_print(*values, **options)

    monkeypatch.setattr(run_dir, "print", print_if_there_is_room, raising=False)
    say("first")
    say("second")
    assert capsys.readouterr().out == ""
    full[0] = False
    say_the_rest()
    say("third")
    assert capsys.readouterr().out == "first\nsecond\nthird\n"
