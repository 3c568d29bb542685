"""What the workers of an all-reduce tell each other. That of several is in tests/end_to_end/test_several_machines.py."""

import pytest
import tensorflow as tf

from ps_cluster.training.all_reduce import WorkerGroup


@pytest.mark.parametrize("content", [b"", b"a", b"12345678", b"\0\xff" * 1000 + b"\0"])
def test_what_is_told_comes_back_byte_for_byte(content):
    alone = WorkerGroup(tf.distribute.OneDeviceStrategy("/device:CPU:0"), 0, 1)
    assert alone.broadcast(content) == content
    assert alone.gather(content) == [content]
