"""Inject faults into a run, one after the other, and measure the time of each recovery."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from ps_cluster.launch.stages import RunLimits
from ps_cluster.notices import Notify
from ps_cluster.runs.result_rows import ProgressRow
from ps_cluster.tools.chaos.chaos_report import Injected
from ps_cluster.tools.chaos.kind import ChaosFailed, Fault, Injection, Run, Scene
from ps_cluster.tools.chaos.namespaces import NotAllowed
from ps_cluster.tools.chaos.signs import Pids


class Interrupted(Exception):
    """The user asked to stop."""


@dataclass(frozen=True)
class ChaosBounds:
    """Time limits, and the shortest time between two faults, in seconds."""

    poll_interval_s: float = 0.1
    training_s: float = RunLimits.startup_s + 30
    recovery_s: float = 60.0
    # The launcher gives up on a cluster that dies a few times in a row without progress.
    whole_cluster_spacing_s: float = 10.0
    end_s: float = RunLimits.drain_s + RunLimits.scoring_s + 60


@dataclass
class Runner:
    """Injects faults into one run, and waits after each fault until the run has recovered."""

    run: Run
    bounds: ChaosBounds = ChaosBounds()
    stop_requested: Callable[[], bool] = lambda: False
    notify: Notify = print
    kill: Callable[[int, int], None] = os.kill
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    injected: list[Injected] = field(default_factory=list, init=False)  # so far
    _last_row: ProgressRow | None = field(default=None, init=False)

    def wait_for_training(self) -> None:
        """Wait for the first update."""
        self._wait_for(
            lambda: any(row.phase == "training" and row.applied > 0 for row in self._new_rows()),
            self.bounds.training_s,
            "no update was applied",
        )

    def disturb(self, faults: Iterable[Fault], until: float | None = None) -> None:
        """Inject `faults`, each after recovery from the previous fault, and none after `until` (monotonic seconds).

        Raises:
          ChaosFailed: the run ended unexpectedly, or did not recover in time.
          Interrupted: the user asked to stop.
        """
        for fault in faults:
            self._pause(fault)
            if until is not None and self.clock() >= until:
                return
            self._inject(fault)

    def drain(self) -> None:
        """Interrupt the run, and wait until it has finished its steps, scored a checkpoint and written its summary."""
        self.run.interrupt()
        self.wait_for_end(self.bounds.end_s)

    def wait_for_end(self, limit_s: float, exit_code: int = 0) -> None:
        """Wait until the run has ended. Raises ChaosFailed after `limit_s`, or if its exit code is not `exit_code`."""
        self._wait_for(lambda: self.run.exit_code is not None, limit_s, "the run did not end", may_end=True)
        if self.run.exit_code != exit_code:
            other = "failed with" if exit_code == 0 else f"should have ended with exit code {exit_code}, but had"
            raise ChaosFailed(f"the run {other} exit code {self.run.exit_code}: {self.run.last_line}")

    def _inject(self, fault: Fault) -> None:
        names = " and ".join(map(str, fault.victims)) or "the run"
        running: Pids = {}

        def all_run() -> bool:
            nonlocal running
            running = self.run.running()
            return running.keys() >= set(fault.victims)

        self._wait_for(all_run, self.bounds.recovery_s, f"{names} did not run")
        self._new_rows()
        injected = Injected(fault.kind.name, tuple(map(str, fault.victims)), self.clock(), fault.restarts_whole_cluster)
        self.injected.append(injected)
        scene = Scene(
            run=self.run,
            victims={victim: running[victim] for victim in fault.victims},
            restarts_whole_cluster=fault.restarts_whole_cluster,
            last_row=self._last_row,
            now=self.clock,
            kill=self.kill,
            wait_for=self._wait_for,
            wait_for_end=lambda exit_code: self.wait_for_end(self.bounds.end_s, exit_code),
        )
        try:
            injection = fault.kind.inject(scene)
        except NotAllowed as reason:
            raise ChaosFailed(f"{fault.kind.name} could not be injected: {reason}") from reason
        self._wait_for_signs(injection)
        if fault.kind.all_survive:
            now_running = self.run.running()
            died = [str(task) for task, pid in running.items() if now_running.get(task) != pid]
            if died:
                raise ChaosFailed(f"{' and '.join(died)} died of {fault.kind.name}, which every process should survive")
        injection.then()
        recovered_at = max(sign.seen_at for sign in injection.signs if sign.seen_at is not None)
        injected.recovery_s = max(0.0, recovered_at - injection.time)
        at = f"at update {self._last_row.applied:,}" if self._last_row else ""
        self.notify(
            f"{len(self.injected):4d}  {fault.kind.name} ({names}): recovered in {injected.recovery_s:.1f} s, {at}"
        )

    def _wait_for_signs(self, injection: Injection) -> None:
        def recovered() -> bool:
            rows, now_running = self._new_rows(), self.run.running()
            for sign in injection.signs:
                if sign.seen_at is None:
                    sign.seen_at = sign.seen(rows, now_running, self.clock())
            return all(sign.seen_at is not None for sign in injection.signs)

        def missing() -> str:
            return ", ".join(sign.missing for sign in injection.signs if sign.seen_at is None)

        self._wait_for(recovered, self.bounds.recovery_s, missing)

    def _pause(self, fault: Fault) -> None:
        """Let the run train undisturbed for a while before `fault`."""
        until = self.clock() + fault.pause_s
        if fault.restarts_whole_cluster:
            before = [injected.time for injected in self.injected if injected.restarts_whole_cluster]
            until = max([until, *(time_s + self.bounds.whole_cluster_spacing_s for time_s in before)])
        self._wait_for(lambda: self.clock() >= until, math.inf, "the clock did not advance")

    def _new_rows(self) -> Sequence[ProgressRow]:
        rows = self.run.new_rows()
        self._last_row = rows[-1] if rows else self._last_row
        return rows

    def _wait_for(
        self,
        condition: Callable[[], bool],
        limit_s: float,
        problem: str | Callable[[], str],
        *,
        may_end: bool = False,
    ) -> None:
        """Wait until `condition()` is true. Raises ChaosFailed, with `problem` in the message, after `limit_s` seconds.

        Without `may_end`, raises ChaosFailed also if the run ends first.
        """
        deadline = self.clock() + limit_s
        while not condition():
            if self.stop_requested():
                raise Interrupted
            if self.run.exit_code is not None and not may_end:
                done = f"after {len(self.injected)} faults (exit code {self.run.exit_code})"
                raise ChaosFailed(f"the run ended unexpectedly {done}: {self.run.last_line}")
            if self.clock() > deadline:
                what = problem if isinstance(problem, str) else problem()
                after = f" after {self.injected[-1].kind}" if self.injected else ""
                raise ChaosFailed(f"{what} within {limit_s:.0f} s{after}")
            self.sleep(self.bounds.poll_interval_s)
