"""Two commands on one folder."""

import errno
import fcntl
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ps_cluster.errors import UserError
from ps_cluster.files import locks
from ps_cluster.files.locks import InUse, Lock, sole_use
from tests.helpers.users import SOMEBODY, as_user, common  # noqa: F401

HOLDER = """
import subprocess, sys, time
from pathlib import Path
from ps_cluster.files import locks
with locks.sole_use(Path(sys.argv[1]), "run directory", print):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], close_fds=False)
    print(child.pid, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """A process that holds tmp_path/held, and has started another that ends after it."""
    argv = [sys.executable, "-c", HOLDER, str(tmp_path / "held")]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    child = int(process.stdout.readline())
    yield process
    process.kill()
    process.wait()
    process.stdout.close()
    os.kill(child, 9)


def hold(folder):
    return sole_use(folder, "run directory", pytest.fail)


def test_a_second_command_is_told_in_one_line_who_is_there(holder, tmp_path):
    with pytest.raises(InUse) as refusal, hold(tmp_path / "held"):
        pytest.fail("it went on")
    line = str(refusal.value)
    assert f"run directory '{tmp_path}/held' is in use by '-c {tmp_path}/held' (pid {holder.pid}, since 2" in line
    assert f" on {socket.gethostname()})" in line
    assert line.endswith("wait until it has ended, or end it") and "\n" not in line


def test_who_is_killed_leaves_the_folder_free_at_once_also_where_its_children_live_on(holder, tmp_path):
    holder.kill()
    holder.wait()
    with hold(tmp_path / "held"):
        assert (tmp_path / "held" / locks.LOCK).is_file()


def test_nothing_is_left_of_a_lock_nor_of_a_folder_that_stayed_empty_and_one_with_a_file_stays(tmp_path):
    (tmp_path / "there").mkdir()
    with hold(tmp_path / "there"), hold(tmp_path / "new" / "newer"):
        pass
    assert list(tmp_path.rglob("*")) == [tmp_path / "there"]
    with hold(tmp_path / "new" / "newer"):
        (tmp_path / "new" / "newer" / "file").touch()
    assert list((tmp_path / "new" / "newer").iterdir()) == [tmp_path / "new" / "newer" / "file"]


def test_a_lock_whose_file_was_removed_meanwhile_is_taken_on_the_new_one(tmp_path, monkeypatch):
    """Its last holder removes the file between the opening and the locking of the next."""
    (tmp_path / "lock").touch()
    flock, removed = fcntl.flock, []

    def removed_before(descriptor, how):
        if not removed:
            removed.append((tmp_path / "lock").unlink())
        flock(descriptor, how)

    monkeypatch.setattr(locks.fcntl, "flock", removed_before)
    lock = Lock(tmp_path / "lock", "it")
    with pytest.raises(InUse, match="it is in use by"):
        Lock(tmp_path / "lock", "it")
    lock.release()
    Lock(tmp_path / "lock", "it").release()


def test_a_file_system_without_locks_is_said_and_the_work_goes_on(tmp_path, monkeypatch):
    def refuses(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(locks.fcntl, "flock", refuses)
    said = []
    with sole_use(tmp_path, "run directory", said.append), sole_use(tmp_path, "run directory", said.append):
        locks.share(tmp_path / "alive")
        locks.wait_for_sharers(tmp_path / "alive", "it")
    line = "can't be locked (No locks available): make sure that no other command writes to it"
    assert said == [f"run directory '{tmp_path}' {line}"] * 2


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "in use by another command: "),
        ("c" * 2**17, "in use by another command: "),
        ("'c\n\u202e' (pid 1, since b on a\x1b[31m)", "in use by 'c ?' (pid 1, since b on a?[31m): "),
        ("c" * 9000, " ... "),
    ],
)
def test_what_a_lock_file_says_about_its_holder_is_shortened_and_made_printable(tmp_path, content, says):
    (tmp_path / locks.LOCK).write_text(content)
    with (tmp_path / locks.LOCK).open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(InUse) as refusal, hold(tmp_path):
            pass
    assert says in str(refusal.value) and str(refusal.value).isprintable() and len(str(refusal.value)) < 2200


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_file_in_the_way_is_told_in_one_line(tmp_path, place):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="run directory '.*' can't be made: a file is in"), hold(tmp_path / place):
        pass


def test_a_link_in_the_place_of_the_lock_is_refused(tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / locks.LOCK).symlink_to(tmp_path / "mine")
    with pytest.raises(UserError, match="can't be written: it is a link"), hold(tmp_path):
        pass
    assert (tmp_path / "mine").read_text() == "mine"


SHARER = """
import sys, time
from pathlib import Path
from ps_cluster.files import locks
locks.share(Path(sys.argv[1]))
print(flush=True)
time.sleep(60)
"""


def test_processes_of_before_are_waited_for_and_named_where_they_do_not_end(tmp_path):
    alive = tmp_path / "alive"
    sharers = [subprocess.Popen([sys.executable, "-c", SHARER, str(alive)], stdout=subprocess.PIPE) for _ in range(2)]
    for sharer in sharers:
        sharer.stdout.readline()
    sharers.pop().kill()
    with pytest.raises(UserError, match="run directory 'x': processes of an earlier run are still running after 0.2 s"):
        locks.wait_for_sharers(alive, "run directory 'x'", within_s=0.2)
    sharers[0].kill()
    began = time.monotonic()
    locks.wait_for_sharers(alive, "run directory 'x'")
    assert time.monotonic() - began < locks.SHARERS_END_WITHIN_S / 2
    assert Path(alive).is_file()


def test_short_work_on_one_file_is_done_in_turn_and_not_held_up_by_who_stands_still(tmp_path):
    done = []

    def work():
        with locks.briefly_locked(tmp_path / "lock"):
            done.append("second")

    with locks.briefly_locked(tmp_path / "lock"):
        second = threading.Thread(target=work)
        second.start()
        second.join(0.2)
        done.append("first")
    second.join(5)
    with locks.briefly_locked(tmp_path / "lock"), locks.briefly_locked(tmp_path / "lock", within_s=0.1):
        done.append("went on")
    assert done == ["first", "second", "went on"]


@pytest.mark.parametrize("mode", [0o300, 0o500, 0o000])
def test_a_folder_that_the_system_refuses_is_told_in_one_line(common, mode):  # noqa: F811
    with as_user(SOMEBODY):
        (common / "folder").mkdir(mode=mode)
        for folder in (common / "folder", common / "folder" / "new"):
            if mode & 0o300 == 0o300 and folder.name == "new":
                continue  # it may be made
            with pytest.raises(UserError, match=f"'{folder}' can't be written: Permission denied"), hold(folder):
                pytest.fail("it went on")


def looked_at(path, seconds):
    """Hold a lock as one who looks does, but longer. Return the thread that lets it go."""
    descriptor = os.open(path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    timer = threading.Timer(seconds, os.close, [descriptor])
    timer.start()
    return timer


def test_who_looks_keeps_nobody_from_taking_or_sharing_a_lock(tmp_path):
    (tmp_path / locks.LOCK).touch()
    looking = looked_at(tmp_path / locks.LOCK, 0.1)
    with hold(tmp_path):
        assert locks.is_held(tmp_path)
    looking.join()

    (tmp_path / "alive").touch()
    looking = looked_at(tmp_path / "alive", 0.1)
    locks.share(tmp_path / "alive")
    assert locks.is_held(tmp_path / "alive")
    looking.join()


def test_another_user_can_not_lock_what_is_ours_not_even_by_reading(common):  # noqa: F811
    folder = common / "held"
    with hold(folder), locks.sharing_new(common / "shared"):
        locks.share(common / "alive")
        with locks.briefly_locked(common / "turn"), as_user(SOMEBODY):
            for file in (folder / locks.LOCK, common / "shared", common / "alive", common / "turn"):
                with pytest.raises(PermissionError):
                    os.close(os.open(next(file.iterdir()) if file.is_dir() else file, os.O_RDONLY))
            assert not locks.is_held(folder)
