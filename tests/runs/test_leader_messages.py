"""The leader's message to a task: half a message is none."""

import pytest

from ps_cluster.runs.leader_messages import MESSAGE_FILE, LeaderMessage, forget_leader_message, read_leader_message


@pytest.mark.parametrize(
    "message",
    [LeaderMessage(term=1), LeaderMessage(term=7, ended="completed"), LeaderMessage(term=2, refused="not the same")],
)
def test_the_message_that_the_leader_writes_is_read_until_it_is_forgotten(tmp_path, message):
    assert read_leader_message(tmp_path) is None
    (tmp_path / MESSAGE_FILE).write_text(message.model_dump_json())
    assert read_leader_message(tmp_path) == message
    forget_leader_message(tmp_path)
    assert read_leader_message(tmp_path) is None


@pytest.mark.parametrize(
    "text", ["", '{"term": 1', '{"term": "1"}', '{"term": -1}', '{"term": 1, "ended": "maybe"}', "[]"]
)
def test_anything_else_is_no_message(tmp_path, text):
    (tmp_path / MESSAGE_FILE).write_text(text)
    assert read_leader_message(tmp_path) is None
