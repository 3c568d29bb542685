import builtins

from ps_cluster.run import run_dir
from ps_cluster.run.run_dir import say, say_the_rest


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
