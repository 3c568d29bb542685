"""A shard's journal survives whatever may happen to a file: cut short, damaged, a disk that refuses."""

import errno
import os
import resource
from contextlib import contextmanager

import numpy as np
import pytest

from ps_cluster.runs import journal
from ps_cluster.runs.journal import RECORD, Journal, JournalDamaged, JournalGivenUp, JournalNotWritten, JournalPart
from ps_cluster.runs.ledger import NO_ROWS
from tests.helpers.ledgers import random_rows, rows_of, write_journal


@pytest.fixture
def path(tmp_path):
    return tmp_path / "shard-0.bin"


def read(*history, **chunks):
    return np.concatenate([NO_ROWS, *journal.read(history, **chunks)])


@contextmanager
def files_of_at_most(size):
    """Writes of this process beyond `size` bytes into a file are refused, as by a full disk."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


@pytest.mark.parametrize("chunk_rows", [1, 3, 7, 1000])
def test_what_was_appended_is_read_whatever_the_chunks(path, chunk_rows):
    rows, ours = random_rows(100), Journal(path)
    for begin, end in ((0, 1), (1, 1), (1, 60), (60, 100)):
        ours.append(rows[begin:end])
    assert ours.rows == journal.count_rows(path) == 100
    assert (read(ours.piece, chunk_rows=chunk_rows) == rows).all()
    assert max(len(chunk) for chunk in journal.read([ours.piece], chunk_rows=chunk_rows)) == min(100, chunk_rows)


def test_a_loss_that_is_no_number_is_a_row_like_others_and_without_a_file_there_are_no_rows(path):
    assert (
        journal.count_rows(path) == 0 and list(journal.read([])) == list(journal.read([JournalPart(path, 0, 0)])) == []
    )
    history = write_journal(path, rows_of([0, 1], loss=[np.nan, np.inf]))
    assert str(read(*history)["loss"].tolist()) == "[nan, inf]"


@pytest.mark.parametrize("cut", [1, 7, RECORD.itemsize - 1])
def test_a_last_record_that_was_cut_short_is_no_row(path, cut):
    rows = random_rows(5)
    (whole,) = write_journal(path, rows)
    os.truncate(path, 5 * RECORD.itemsize - cut)
    assert journal.count_rows(path) == 4
    with pytest.raises(JournalDamaged, match=f"'{path}' holds 4 rows, but 5 were written"):
        read(whole)


def test_any_flipped_bit_is_found_and_its_row_named(path):
    rows = random_rows(6)
    history = write_journal(path, rows)
    content = path.read_bytes()
    for bit in range(0, 8 * len(content), 101):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        row, good = bit // 8 // RECORD.itemsize, [NO_ROWS]
        with pytest.raises(JournalDamaged, match=f"^row {row} of '{path}' is damaged: its checksum is wrong$"):
            good.extend(journal.read(history, chunk_rows=4))
        assert (np.concatenate(good) == rows[:row]).all(), "those before it were read"


@pytest.mark.parametrize("change", ["two rows change places", "a row is left out", "a row is there twice"])
def test_rows_that_are_whole_but_elsewhere_are_found(path, change):
    (piece,) = write_journal(path, random_rows(6))
    records = list(np.frombuffer(path.read_bytes(), RECORD))
    if change == "two rows change places":
        records[3], records[4] = records[4], records[3]
    elif change == "a row is left out":
        del records[3]
    else:
        records.insert(3, records[2])
    path.write_bytes(np.array(records, RECORD).tobytes())
    with pytest.raises(JournalDamaged, match=f"row 3 of '{path}' is damaged"):
        read(piece._replace(rows=len(records)))


def test_the_next_leader_writes_a_file_of_its_own_which_fits_behind_the_rows_that_count(tmp_path):
    rows = random_rows(10)
    first = Journal(tmp_path / "first")
    first.append(rows[:4])
    before = first.piece  # as the state says, from which the next leader goes on
    first.append(rows[4:6])
    content = first.path.read_bytes()
    second = Journal(tmp_path / "second", before.checksum)
    second.append(rows[7:])
    assert (read(before, second.piece) == rows[[0, 1, 2, 3, 7, 8, 9]]).all()
    assert first.path.read_bytes() == content, "nobody cuts or copies it"
    for others in ([second.piece], [first.piece, second.piece]):
        with pytest.raises(JournalDamaged, match=f"row 0 of '{second.path}' is damaged"):
            read(*others)
    with pytest.raises(JournalDamaged, match=f"'{first.path}' is not the journal that the checkpoint names"):
        read(before._replace(checksum=before.checksum ^ 1))


def test_a_leader_without_rows_passes_on_the_checksum_of_those_before_it(tmp_path):
    rows = random_rows(3)
    (first,) = write_journal(tmp_path / "first", rows[:2])
    second = Journal(tmp_path / "second", first.checksum)
    third = Journal(tmp_path / "third", second.piece.checksum)
    third.append(rows[2:])
    assert (read(first, second.piece, third.piece) == rows).all()


def test_a_journal_is_not_written_over_what_is_there_nor_through_a_link(path):
    write_journal(path, random_rows(3))
    path.with_name("link").symlink_to(path.with_name("elsewhere"))
    for there in (path, path.with_name("link")):
        with pytest.raises(JournalNotWritten, match=f"'{there}' can't be written: File exists"):
            Journal(there)
    assert journal.count_rows(path) == 3 and not path.with_name("elsewhere").exists()


def test_fewer_rows_than_count_are_refused(path):
    (piece,) = write_journal(path, random_rows(3))
    journal.check_lengths([piece])
    with pytest.raises(JournalDamaged, match=f"'{path}' holds 3 rows, but 4 were written"):
        journal.check_lengths([piece, piece._replace(rows=4)])
    with pytest.raises(JournalDamaged, match="holds 0 rows, but 1 were written"):
        journal.check_lengths([JournalPart(path.with_name("missing"), 1, 0)])


def test_a_disk_that_refuses_keeps_nothing_from_being_written_later(path):
    rows, ours = random_rows(12), Journal(path)
    ours.append(rows[:2])
    room = 4 * RECORD.itemsize + 5  # it takes two and a bit of the next five
    with files_of_at_most(room):
        with pytest.raises(JournalNotWritten, match=f"'{path}' can't be written: File too large"):
            ours.append(rows[2:7])
        assert path.stat().st_size == room
        for refused in (lambda: ours.append(rows[7:9]), lambda: ours.append(NO_ROWS), ours.flush):
            with pytest.raises(JournalNotWritten):
                refused()
        assert ours.rows == 9
    ours.append(NO_ROWS)
    assert (read(ours.piece) == rows[:9]).all(), "they come with the next call though it brings none"
    ours.append(rows[9:])
    ours.flush()
    assert ours.rows == 12 and (read(ours.piece) == rows).all()


def test_a_disk_that_refuses_for_long_costs_no_more_with_each_look(path, monkeypatch):
    tried = []
    monkeypatch.setattr(os, "pwrite", lambda file, content, offset: tried.append(len(content)) or refuse())
    ours = Journal(path)
    for row in random_rows(50):
        with pytest.raises(JournalNotWritten):
            ours.append(np.array([row]))
    assert tried == [RECORD.itemsize] * 50, "the rows that wait are not joined, nor offered together"


def test_a_disk_that_can_not_keep_what_it_took_is_told(path, monkeypatch):
    monkeypatch.setattr(os, "fdatasync", lambda file: refuse())
    with pytest.raises(JournalNotWritten, match=f"'{path}' can't be written: no room"):
        Journal(path).flush()


def test_rows_that_a_failed_fdatasync_has_lost_are_written_again(path, monkeypatch):
    """Linux reports a failed write once. Then the next fdatasync succeeds, and the pages are read from the disk again."""
    rows, ours, durable, fails = random_rows(9), Journal(path), bytearray(), [True]

    def fdatasync(file):
        if fails.pop(0):
            os.truncate(path, len(durable))  # the system forgets what it could not write
            raise OSError(errno.EIO, "Input/output error")
        durable[:] = path.read_bytes()

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    ours.append(rows[:3])
    with pytest.raises(JournalNotWritten, match="Input/output error"):
        ours.flush()
    fails[:] = [False, True, False]
    ours.append(rows[3:5])
    ours.flush()
    ours.append(rows[5:8])
    with pytest.raises(JournalNotWritten):
        ours.flush()
    ours.append(rows[8:])
    ours.flush()
    assert not fails and (read(ours.piece) == rows).all()


def test_a_disk_that_refuses_for_too_long_ends_the_leader_before_its_memory_is_full(path, monkeypatch):
    monkeypatch.setattr(journal, "SYNC_BYTES", 3 * RECORD.itemsize)
    monkeypatch.setattr(journal, "MOST_BYTES_IN_MEMORY", 10 * RECORD.itemsize)
    ours, rows, asked = Journal(path), random_rows(40), []
    monkeypatch.setattr(os, "fdatasync", lambda file: asked.append(file))
    for number in range(20):
        ours.append(rows[number : number + 1])
    assert len(asked) == 5, "the disk is asked to confirm every fourth row, as no snapshot does"
    monkeypatch.setattr(os, "pwrite", lambda file, content, offset: refuse())
    for number in range(20, 30):
        with pytest.raises(JournalNotWritten):
            ours.append(rows[number : number + 1])
    with pytest.raises(JournalGivenUp, match=r"no room: 11 rows wait in memory, and no more rows are accepted"):
        ours.append(rows[30:31])


def refuse():
    raise OSError(errno.ENOSPC, "no room")
