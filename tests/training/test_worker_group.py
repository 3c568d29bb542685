import pytest
import tensorflow as tf

from ps_cluster.training.worker_group import WorkerGroup


@pytest.mark.parametrize("content", [b"", b"\0\xff" * 1000 + b"\0"])
def test_what_is_told_comes_back_byte_for_byte(content):
    alone = WorkerGroup(tf.distribute.OneDeviceStrategy("/device:CPU:0"), 0, 1)
    assert alone.broadcast(content) == content
    assert alone.gather(content) == [content]
