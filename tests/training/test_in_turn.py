import threading
import time

from ps_cluster.training.split_trainer import FairLock


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

    def work():
        for _ in range(50):
            with lock:
                inside.append(1)
                most.append(len(inside))
                time.sleep(0)
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(most) == 150 and max(most) == 1
