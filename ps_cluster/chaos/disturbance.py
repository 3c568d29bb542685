"""Inject faults into a run, one after the other, and measure the time of each recovery."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ps_cluster.catalogue.task_types import Task
from ps_cluster.chaos.faults import Fault
from ps_cluster.chaos.kind import ChaosFailed, Injection, NotAllowed, Run, Scene
from ps_cluster.chaos.signs import Row
from ps_cluster.cluster.policy import Limits


class Interrupted(Exception):
    """The user asked to stop."""


@dataclass(frozen=True)
class Bounds:
    """Time limits, and the least time between faults (s)."""

    look_every_s: float = 0.1
    training_s: float = Limits.startup_s + 30
    recovery_s: float = 60.0
    # The launcher gives up on a cluster that dies a few times in a row, each time without having got further.
    whole_cluster_spacing_s: float = 10.0
    end_s: float = Limits.drain_s + Limits.scoring_s + 60


@dataclass(frozen=True)
class Injected:
    """An injected fault and the seconds until the run had recovered; None if it did not."""

    kind: str
    victims: tuple[str, ...]
    time: float  # monotonic s, as in rows of progress
    whole_cluster: bool
    recovery_s: float | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Runner:
    """Disturbs one run. `injected`: the faults so far."""

    def __init__(
        self,
        run: Run,
        *,
        bounds: Bounds = Bounds(),
        stop_requested: Callable[[], bool] = lambda: False,
        notify: Callable[[str], None] = print,
        kill: Callable[[int, int], None] = os.kill,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ):
        self.injected: list[Injected] = []
        self._run = run
        self._bounds = bounds
        self._stop_requested = stop_requested
        self._notify = notify
        self._kill = kill
        self._clock = clock
        self._sleep = sleep
        self._last_row: Row = {}

    def wait_for_training(self) -> None:
        """Wait for the first update."""
        self._wait_for(self._new_rows_train, self._bounds.training_s, "no update was applied")

    def disturb(self, faults: Iterable[Fault], until: float | None = None) -> None:
        """Inject `faults` into a training run, each when it has recovered from the last.

        Args:
          until: monotonic s after which no further fault is injected.
        Raises:
          ChaosFailed: the run ended by itself, or did not recover in time.
          Interrupted: see `stop_requested`.
        """
        for fault in faults:
            self._pause(fault)
            if until is not None and self._clock() >= until:
                return
            self._inject(fault)

    def drain(self) -> None:
        """Interrupt the run once: the steps under way end, the last checkpoint is scored, the summary is written."""
        self._run.interrupt()
        self.wait_for_end(self._bounds.end_s)

    def wait_for_end(self, limit_s: float, exit_code: int = 0) -> None:
        """Wait until the run has ended. Raises ChaosFailed for another exit code."""
        deadline = self._clock() + limit_s
        while self._run.exit_code is None:
            self._look_out(deadline, "the run did not end", limit_s)
        if self._run.exit_code != exit_code:
            other = "failed with" if exit_code == 0 else f"was to end with exit code {exit_code} and had"
            raise ChaosFailed(f"the run {other} exit code {self._run.exit_code}: {self._run.last_line}")

    def _inject(self, fault: Fault) -> None:
        names = " and ".join(map(str, fault.victims)) or "the run"
        self._wait_for(lambda: self._all_run(fault.victims), self._bounds.recovery_s, f"{names} did not run")
        self._new_rows()
        began = self._clock()
        self._injected(fault, began, None)
        try:
            injection = fault.kind.inject(self._scene(fault))
        except NotAllowed as reason:
            raise ChaosFailed(f"{fault.kind.name} could not be injected: {reason}") from reason
        self._wait_for_signs(injection)
        injection.then()
        self.injected.pop()
        recovered_at = max(sign.seen_at for sign in injection.signs if sign.seen_at is not None)
        recovery_s = max(0.0, recovered_at - injection.time)
        self._injected(fault, began, recovery_s)
        self._notify(
            f"{len(self.injected):4d}  {fault.kind.name} ({names}): recovered in {recovery_s:.1f} s, "
            f"at update {self._last_row['applied']:,}"
        )

    def _scene(self, fault: Fault) -> Scene:
        running = self._run.running()
        return Scene(
            run=self._run,
            victims={victim: running[victim] for victim in fault.victims},
            whole_cluster=fault.whole_cluster,
            last_row=self._last_row,
            now=self._clock,
            kill=self._kill,
            wait_for=self._wait_for,
            wait_for_end=lambda exit_code: self.wait_for_end(self._bounds.end_s, exit_code),
        )

    def _wait_for_signs(self, injection: Injection) -> None:
        def recovered() -> bool:
            rows, now_running = self._new_rows(), self._run.running()
            for sign in injection.signs:
                sign.look(rows, now_running, self._clock())
            return all(sign.seen_at is not None for sign in injection.signs)

        def missing() -> str:
            return ", ".join(sign.missing for sign in injection.signs if sign.seen_at is None)

        self._wait_for(recovered, self._bounds.recovery_s, missing)

    def _injected(self, fault: Fault, time_s: float, recovery_s: float | None) -> None:
        victims = tuple(map(str, fault.victims))
        self.injected.append(Injected(fault.kind.name, victims, time_s, fault.whole_cluster, recovery_s))

    def _pause(self, fault: Fault) -> None:
        """Leave the run alone before `fault`."""
        until = self._clock() + fault.pause_s
        if fault.whole_cluster:
            before = [injected.time for injected in self.injected if injected.whole_cluster]
            until = max([until, *(time_s + self._bounds.whole_cluster_spacing_s for time_s in before)])
        while self._clock() < until:
            self._goes_on()
            self._sleep(self._bounds.look_every_s)

    def _all_run(self, tasks: Sequence[Task]) -> bool:
        running = self._run.running()
        return all(task in running for task in tasks)

    def _new_rows(self) -> Sequence[Row]:
        rows = self._run.new_rows()
        self._last_row = rows[-1] if rows else self._last_row
        return rows

    def _new_rows_train(self) -> bool:
        return any(row["phase"] == "training" and row["applied"] > 0 for row in self._new_rows())

    def _wait_for(self, condition: Callable[[], bool], limit_s: float, problem: str | Callable[[], str]) -> None:
        """Wait for the condition. Raises ChaosFailed with the problem after `limit_s`, or when the run ends first."""
        deadline = self._clock() + limit_s
        while not condition():
            self._goes_on()
            self._look_out(deadline, problem, limit_s)

    def _goes_on(self) -> None:
        if self._stop_requested():
            raise Interrupted
        if self._run.exit_code is not None:
            done = f"after {len(self.injected)} faults (exit code {self._run.exit_code})"
            raise ChaosFailed(f"the run ended by itself {done}: {self._run.last_line}")

    def _look_out(self, deadline: float, problem: str | Callable[[], str], limit_s: float) -> None:
        if self._stop_requested():
            raise Interrupted
        if self._clock() > deadline:
            told = problem if isinstance(problem, str) else problem()
            after = f" after {self.injected[-1].kind}" if self.injected else ""
            raise ChaosFailed(f"{told} within {limit_s:.0f} s{after}")
        self._sleep(self._bounds.look_every_s)
