"""The leader's word to a task; half a word is none."""

import pytest

from ps_cluster.runs.messages import TOLD, LeaderMessage, forget_told, read_told


@pytest.mark.parametrize(
    "told",
    [LeaderMessage(epoch=1), LeaderMessage(epoch=7, ended="completed"), LeaderMessage(epoch=2, refused="not the same")],
)
def test_what_the_leader_writes_is_what_the_task_reads(tmp_path, told):
    (tmp_path / TOLD).write_text(told.model_dump_json())
    assert read_told(tmp_path) == told


@pytest.mark.parametrize(
    "text", ["", '{"epoch": 1', '{"epoch": "1"}', '{"epoch": -1}', '{"epoch": 1, "ended": "maybe"}', "[]"]
)
def test_anything_else_is_no_word(tmp_path, text):
    (tmp_path / TOLD).write_text(text)
    assert read_told(tmp_path) is None


def test_nothing_is_told_before_the_first_word_and_after_it_was_forgotten(tmp_path):
    assert read_told(tmp_path) is None
    (tmp_path / TOLD).write_text(LeaderMessage(epoch=1, ended="stopped").model_dump_json())
    forget_told(tmp_path)
    assert read_told(tmp_path) is None
