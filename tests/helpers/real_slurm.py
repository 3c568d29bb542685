"""Run a real Slurm with three nodes on this machine. A node is a host with an address of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ps_cluster.tools.chaos.hosts import Host, hosts
from tests.helpers.on_hosts import skip_without_hosts
from tests.helpers.processes import wait_until

_PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "squeue", "srun")
_READY_S = 30.0
# Requeued jobs wait until their credentials have expired, so these expire sooner than after the usual two minutes.
_CONFIGURATION = """\
ClusterName=tests
SlurmctldHost={machine}({address})
SlurmUser=root
SlurmdUser=root
AuthInfo=socket={folder}/munge,cred_expire=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=1
MailProg=/bin/true
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdSpoolDir={folder}/spool.%n
SlurmdPidFile={folder}/%n.pid
SlurmdLogFile={folder}/%n.log
PartitionName=usual Nodes=ALL Default=YES GraceTime=20
"""


class RealSlurm:
    """Runs the programs of Slurm on the first node."""

    def __init__(self, folder: Path, nodes: list[Host]):
        self.nodes = [node.name for node in nodes]
        self._folder, self._hosts = folder, nodes
        self._environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": _PATH}

    def ask(self, program: str, *arguments: object) -> str:
        """Run a program of Slurm. Return what it prints."""
        argv = [_found(program), *map(str, arguments)]
        network = self._hosts[0].network
        ended = subprocess.run(
            network.inside(argv), pass_fds=network.descriptors, env=self._environment, cwd=self._folder, timeout=60,
            stdin=subprocess.DEVNULL, capture_output=True, text=True,
        )  # fmt: skip
        assert ended.returncode == 0, f"{argv}: {ended.stderr}"
        return ended.stdout

    def job(self, number: str) -> dict[str, str]:
        """Return the fields that `scontrol` shows of a job, by name."""
        shown = self.ask("scontrol", "--oneliner", "show", "job", number)
        return dict(part.partition("=")[::2] for part in shown.split())

    def submit(self, script: Path, *options: object) -> str:
        """Submit a job. Return its number."""
        return self.ask("sbatch", "--parsable", *options, script).strip()

    def start(self) -> None:
        """Start the daemons, and wait until all nodes are idle."""
        folder, (first, *_) = self._folder, self._hosts
        (folder / "state").mkdir()
        (folder / "key").write_bytes(os.urandom(128))
        (folder / "key").chmod(0o600)
        machine = os.uname().nodename
        nodes = (
            f"NodeName={one.name} NodeHostname={machine} NodeAddr={one.address} CPUs=4 RealMemory=8192\n"
            for one in self._hosts
        )
        content = _CONFIGURATION.format(folder=folder, machine=machine, address=first.address)
        (folder / "slurm.conf").write_text("".join(nodes) + content)
        files = (f"--{name}-file={folder}/munge.{name}" for name in ("pid", "log", "seed"))
        self._daemon(
            first, "munged", "--foreground", "--force", f"--key-file={folder}/key", f"--socket={folder}/munge", *files
        )
        wait_until((folder / "munge").exists)
        self._daemon(first, "slurmctld", "-D")
        for node in self._hosts:
            self._daemon(node, "slurmd", "-D", "-N", node.name)
        deadline = time.monotonic() + _READY_S
        while self._idle() < len(self._hosts):
            assert time.monotonic() < deadline, (folder / "slurmctld.log").read_text()[-3000:]
            time.sleep(0.1)

    def _idle(self) -> int:
        try:
            return self.ask("sinfo", "--Node", "--noheader", "--states=idle").count("idle")
        except AssertionError:  # slurmctld does not listen yet
            return 0

    def _daemon(self, host: Host, name: str, *options: str) -> None:
        with (self._folder / f"{name}.{host.name}.output").open("w") as output:
            host.popen(
                [_found(name), *options], env=self._environment, cwd=self._folder, stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip


def _found(program: str) -> str | None:
    return shutil.which(program, path=_PATH)


def skip_without_slurm() -> None:
    """Skip the test if Slurm is not installed, or if this system does not allow several hosts on one machine."""
    if missing := [name for name in _PROGRAMS if _found(name) is None]:
        pytest.skip(f"no {', '.join(missing)} here: apt-get install slurm-wlm munge")
    if os.getuid() != 0:
        pytest.skip("slurmd starts jobs as their users, which only root may")
    skip_without_hosts()


@contextmanager
def real_slurm(folder: Path) -> Iterator[RealSlurm]:
    """Yield a Slurm that keeps its files in `folder`. All its processes end with the block."""
    with hosts(3) as nodes:
        slurm = RealSlurm(folder, nodes)
        slurm.start()
        yield slurm
