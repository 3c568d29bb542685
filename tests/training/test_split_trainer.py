"""Which worker gets which layers, and what can't be placed; the lock between steps and a snapshot."""

import threading
import time

import pytest

from ps_cluster.config import build_config
from ps_cluster.config.tasks import Task
from ps_cluster.errors import UserError
from ps_cluster.models.stages import Block
from ps_cluster.training.devices import device_name, processor_beside
from ps_cluster.training.modes.layers import PlacementEntry, parse_placement
from ps_cluster.training.placement import devices_of, first_blocks
from ps_cluster.training.split_trainer import FairLock
from tests.helpers.waiting import run_workers

BLOCKS = [
    Block((name,), weights, 8, None) for name, weights in (("in", 0), ("a", 10), ("pool", 0), ("b", 30), ("c", 40))
]
BLOCKS[3] = Block(("b", "sum"), 30, 8, None)


def config_of(**mode):
    values = {f"mode.{name}": value for name, value in mode.items()}
    return build_config(None, {"mode.name": "layers", "cluster.workers": 3} | values)


@pytest.mark.parametrize(
    ("placement", "workers", "firsts"),
    [
        ("auto", 1, [0]),
        ("auto", 2, [0, 4]),
        ("auto", 3, [0, 2, 4]),
        ("b=1", 2, [0, 3]),
        ("pool=1", 2, [0, 2]),
        ("sum=1,c=2", 3, [0, 3, 4]),
        ("c = 2 , b=1,in=0", 3, [0, 3, 4]),
    ],
)
def test_each_worker_begins_with_a_block(placement, workers, firsts):
    assert first_blocks(BLOCKS, parse_placement(placement), workers) == firsts


@pytest.mark.parametrize(
    ("placement", "workers", "says"),
    [
        ("auto", 4, "cluster.workers: got 4: the network can be cut into at most 3 parts that have weights"),
        ("d=1", 2, "mode.placement: got 'd': the network has no such layer; it has a, b, sum, c"),
        ("b=1,sum=2", 3, "b, sum can't be cut apart"),
        ("b=2,c=1", 3, "got 'c=1': the layers before it are on worker 2"),
        ("b=1", 3, "worker 2 would have no weights"),
        ("in=1", 2, "worker 0 would have no weights"),
        ("a=0,c=2", 3, "worker 1 would have no weights"),
    ],
)
def test_a_placement_that_can_not_be_is_told(placement, workers, says):
    with pytest.raises(ValueError) as error:
        first_blocks(BLOCKS, parse_placement(placement), workers)
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("conv", "'conv' is not LAYER=WORKER"),
        ("", "is not LAYER=WORKER"),
        ("conv=one", "is not LAYER=WORKER"),
        ("conv=1:GPU", "is not LAYER=WORKER"),
        ("a=1,a=2", "'a' is placed on worker 1 and on worker 2"),
        ("a=1:GPU:0,b=1:GPU:1", "worker 1 has two devices, GPU:0 and GPU:1"),
        ("a=3", "mode.placement: got 'a=3': the workers are 0 to 2"),
    ],
)
def test_a_placement_that_can_not_be_read_is_refused_before_anything_starts(text, says):
    with pytest.raises(UserError) as error:
        config_of(placement=text)
    assert says in str(error.value) and "\n" not in str(error.value)


def test_a_layer_is_read_with_its_worker_and_device():
    assert parse_placement("conv2d_1=1:gpu:0,dense=2") == (
        PlacementEntry("conv2d_1", 1, "GPU:0"),
        PlacementEntry("dense", 2, ""),
    )


def test_a_batch_that_can_not_be_cut_into_micro_batches_is_refused():
    with pytest.raises(UserError, match="mode.micro_batches: got 3"):
        config_of(micro_batches=3)
    assert config_of(micro_batches=4).chosen_mode.label(config_of(micro_batches=4)) == "layers m=4"


def device(worker, name="CPU:0"):
    return device_name(Task("worker", worker), name)


PROCESSORS = [device(worker) for worker in range(3)]


def test_a_device_that_is_asked_for_is_taken_and_is_refused_if_the_worker_does_not_have_it():
    config = config_of(placement="a=0,b=1:GPU:0,c=2")
    asked = config.mode.devices
    wanted = [PROCESSORS[0], device(1, "GPU:0"), PROCESSORS[2]]
    assert devices_of(config, asked, [*PROCESSORS, wanted[1]]) == wanted
    with pytest.raises(UserError, match="got 'GPU:0' for worker 1, which has only CPU:0: .* --gpus auto"):
        devices_of(config, asked, PROCESSORS)


def test_with_gpus_a_worker_computes_on_its_first_one_unless_another_device_is_asked_for():
    config = build_config(None, {"mode.name": "layers", "cluster.workers": 3, "cluster.gpus": "auto"})
    there = [*PROCESSORS, device(0, "GPU:0"), device(1, "GPU:0")]
    assert devices_of(config, {}, there) == [device(0, "GPU:0"), device(1, "GPU:0"), PROCESSORS[2]]
    assert devices_of(config, {0: "CPU:0"}, there)[0] == PROCESSORS[0]
    assert processor_beside(device(1, "GPU:0")) == PROCESSORS[1]


def test_a_thread_that_takes_it_again_and_again_lets_another_one_in():
    lock, ends = FairLock(), threading.Event()

    def busy():
        while not ends.is_set():
            with lock:
                time.sleep(0.002)

    thread = threading.Thread(target=busy, daemon=True)
    thread.start()
    turns = 0
    began = time.monotonic()
    while turns < 20 and time.monotonic() - began < 30:
        with lock:
            turns += 1
    ends.set()
    thread.join(10)
    assert turns == 20 and not thread.is_alive()


def test_nobody_is_in_it_with_another():
    lock, inside, most = FairLock(), [], []

    def work(worker):
        for _ in range(50):
            with lock:
                inside.append(1)
                most.append(len(inside))
                time.sleep(0)
                inside.pop()

    run_workers(work)
    assert len(most) == 150 and max(most) == 1
