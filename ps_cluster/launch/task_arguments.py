"""Define the arguments of a task's process: a launcher or the command `task` writes them, and the process reads them."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ps_cluster.config.tasks import Task


@dataclass(frozen=True)
class TaskArguments:
    """The arguments of a task's process. The process reads settings and data from files in the run directory.

    Attributes:
      cores: the numbers of the cores that the task may use. If it is empty, the task may use those of its parent.
      resume: whether the training continues from a checkpoint or snapshot.
      least_workers: the number of workers with which a leader begins training; other workers may come later. If it is
        None, training begins with all workers.
      alone: whether the task has no launcher (command `task`). It then reads settings and data from its workspace.
      term: only with `alone`: the term number with which the command `task` has claimed the run directory for this
        leader. If it is 0, the process of a leader makes the claim itself.
      wait_s: only with `alone`: how many seconds an evaluator waits for the training.
    """

    run_dir: Path
    task: Task
    cores: tuple[int, ...] = ()
    resume: bool = False
    least_workers: int | None = None
    alone: bool = False
    term: int = 0
    wait_s: float = math.inf

    def argv(self) -> tuple[str, ...]:
        """Return the words of the command line. With them, the system's list of processes shows the run directory."""
        words = ["--run-dir", str(self.run_dir), "--type", self.task.type, "--index", str(self.task.index)]
        if self.cores:
            words += ["--cores", ",".join(map(str, self.cores))]
        if self.resume:
            words += ["--resume"]
        if self.least_workers is not None:
            words += ["--least-workers", str(self.least_workers)]
        if self.alone:
            words += ["--alone", "--term", str(self.term), "--wait-seconds", str(self.wait_s)]
        return tuple(words)

    @classmethod
    def parse(cls, words: Sequence[str] | None = None) -> TaskArguments:
        """Parse the words that `argv` returns. If `words` is None, parse the command line of this process."""
        parser = argparse.ArgumentParser(prog="python -m ps_cluster.launch.task")
        parser.add_argument("--run-dir", type=Path, required=True)
        parser.add_argument("--type", required=True)
        parser.add_argument("--index", type=int, required=True)
        parser.add_argument("--cores", type=lambda text: tuple(map(int, text.split(","))), default=cls.cores)
        parser.add_argument("--resume", action="store_true")
        parser.add_argument("--least-workers", type=int)
        parser.add_argument("--alone", action="store_true")
        parser.add_argument("--term", type=int, default=cls.term)
        parser.add_argument("--wait-seconds", type=float, default=cls.wait_s)
        given = parser.parse_args(words)
        return cls(
            run_dir=given.run_dir,
            task=Task(given.type, given.index),
            cores=given.cores,
            resume=given.resume,
            least_workers=given.least_workers,
            alone=given.alone,
            term=given.term,
            wait_s=given.wait_seconds,
        )
