"""Train `tutorial_cnn` by torchft's DiLoCo over gloo: one worker, for `benchmarks.far_apart`.

    python -m benchmarks.torchft_diloco '{"run_dir": …}'

The environment has benchmarks/requirements-ddp.txt and torchft (`benchmarks/requirements-torchft.txt`). Images, batch, network,
inner rule and outer step are those of the arm `sync-diloco`: Adam, Nesterov's momentum, and as many local steps. A line of the
output is one step: unix seconds, examples, loss; the first is when training begins, with 0 and 0.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
from torch import nn
from torch.distributed import TCPStore
from torchft import Manager, ProcessGroupGloo
from torchft.local_sgd import DiLoCo

from ps_cluster.data.packed import load_pointed
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.tools.bench.ddp import KEEP_MEMORY, batches, build

LONGEST_WAIT = timedelta(seconds=300)


def main(
    run_dir: str,
    rank: int,
    workers: int,
    lighthouse: str,
    address: str,
    slower: float,
    output: str,
) -> None:
    """Train until it is killed. `slower`: how many times longer a step takes on purpose. `address`: of this host."""
    socket.gethostname = lambda: address  # torchft tells it to the others; all hosts here have the machine's name
    files = RunDir.open(Path(run_dir))
    config = json.loads(files.config.read_text())
    torch.set_num_threads(1)
    torch.manual_seed(config["training"]["seed"])  # the same first weights on all workers
    network = build(config["model"]["name"], config["model"]["activation"])
    for name, weight in network.named_parameters():  # as Keras begins
        nn.init.zeros_(weight) if name.endswith("bias") else nn.init.xavier_uniform_(weight)
    rule = config["optimizer"]
    inner = torch.optim.Adam(
        network.parameters(), rule["learning_rate"], (rule["momentum"], rule["beta_2"]), rule["epsilon"]
    )
    settings = config["mode"]
    outer = torch.optim.SGD(
        network.parameters(), settings["outer_rate"], momentum=settings["outer_momentum"], nesterov=True
    )
    store = TCPStore(address, 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=LONGEST_WAIT),
        min_replica_size=workers,
        load_state_dict=lambda state: network.load_state_dict(state["network"]),
        state_dict=lambda: {"network": network.state_dict()},
        replica_id=f"worker-{rank}",
        store_addr=address,
        store_port=store.port,
        rank=0,
        world_size=1,
        lighthouse_addr=lighthouse,
        hostname=address,
        use_async_quorum=False,  # DiLoCo asks for it
        init_sync=False,
        timeout=LONGEST_WAIT,
        quorum_timeout=LONGEST_WAIT,
    )
    stream = batches(load_pointed(files.dataset), config, rank, workers)
    with (
        open(output, "w", encoding="utf-8") as rows,
        DiLoCo(manager, [network], inner, outer, sync_every=settings["local_steps"], use_bucketization=True),
    ):
        rows.write(f"{time.time()},0,0\n")
        while True:
            asked = time.monotonic()
            images, labels = next(stream)
            loss = nn.functional.cross_entropy(
                network(images), labels, label_smoothing=config["training"]["label_smoothing"]
            )
            inner.zero_grad()
            loss.backward()
            time.sleep((slower - 1) * (time.monotonic() - asked))
            inner.step()  # after every so many steps DiLoCo exchanges here
            rows.write(f"{time.time()},{len(labels)},{float(loss.detach())}\n")
            rows.flush()


if __name__ == "__main__":
    if not KEEP_MEMORY.items() <= os.environ.items():  # only a process that starts with them obeys
        words = (sys.executable, "-m", "benchmarks.torchft_diloco", *sys.argv[1:])
        os.execve(sys.executable, words, os.environ | KEEP_MEMORY)
    main(**json.loads(sys.argv[1]))
