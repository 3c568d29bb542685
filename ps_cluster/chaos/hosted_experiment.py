"""Disturb a training on hosts, and see that nothing was lost: `ps-cluster chaos --hosts`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ps_cluster.chaos.chaos_report import make_report
from ps_cluster.chaos.disturbance import Bounds, Injected, Runner
from ps_cluster.chaos.faults import Fault, allowed_here
from ps_cluster.chaos.hosted_run import HostedRun, placed
from ps_cluster.chaos.kind import ChaosFailed
from ps_cluster.chaos.settings import ChaosSettings, constant_rate
from ps_cluster.chaos.verdict import complaints_of_hosted
from ps_cluster.hosts.host import HostFailed
from ps_cluster.hosts.hosts import NoHosts, hosts
from ps_cluster.run.rows.training import TrainingResult
from ps_cluster.run.tables import read_csv

ALL_END_WITHIN_S = 30.0  # after the leader has ended

_PRECISION = ("--precision", "float32")  # machines may come to different ones, so `task` wants it named


class HostedExperiment:
    """One run on hosts and what is known of it so far, so that there is a report however chaos ends."""

    def __init__(
        self,
        settings: ChaosSettings,
        root: Path,
        bounds: Bounds,
        notify: Callable[[str], None],
        stop_requested: Callable[[], bool],
    ):
        self._settings = settings
        self._root = root
        self._bounds = bounds
        self._notify = notify
        self._stop_requested = stop_requested
        self._injected: list[Injected] = []
        self._seconds = 0.0
        self._skipped: dict[str, str] = {}
        self._places: dict[str, str] = {}
        self._restarts: dict[str, int] = {}
        self._ages: list[float] = []
        self._result: TrainingResult | None = None

    def carry_out(self, faults: Sequence[Fault] | None) -> list[str]:
        """Do all of it; return the problems. Leaves no process.

        Args:
          faults: those of the plan where None.
        Raises:
          ChaosFailed: the run did not behave.
          Interrupted: the user asked to stop.
        """
        folder = self._root / "run"
        for path in (folder, self._root / "output", self._root / "faults"):
            path.mkdir()
        assert self._settings.hosts
        try:
            with hosts(self._settings.hosts, run_dir=folder, shared=False) as machines:
                places = placed(self._settings.topology, machines)
                self._places = {str(task): host.name for task, host in places.items()}
                lost = {"cluster.lost_after_seconds": self._settings.lost_after_seconds}
                options = self._settings.task_options(constant_rate(self._settings.most_steps()) | lost)
                output, tools = self._root / "output", self._root / "faults"
                run = HostedRun(folder, output, (*_PRECISION, *options), places, tools)
                still_there = self._disturbed(run, faults)
        except (NoHosts, HostFailed) as reason:
            raise ChaosFailed(str(reason)) from reason
        self._result = run.result()
        steps = read_csv(run.files.updates)["step"].astype(int).tolist()
        return complaints_of_hosted(self._result.model_dump(), steps, sum(self._ages), still_there)

    def _disturbed(self, run: HostedRun, faults: Sequence[Fault] | None) -> list[str]:
        """Inject the faults and drain the run. Return the tasks that did not end with it."""
        settings, began = self._settings, time.monotonic()
        what = f"{settings.faults} faults" if settings.minutes is None else f"faults for {settings.minutes:g} min"
        self._notify(f"run on {settings.hosts} hosts: {what}, seed {settings.seed}; files in {self._root}")

        def look_on(seconds: float) -> None:
            run.look()
            time.sleep(seconds)

        runner = Runner(
            run, bounds=self._bounds, stop_requested=self._stop_requested, notify=self._notify, sleep=look_on
        )
        self._injected, self._ages = runner.injected, run.ages
        kinds = settings.wanted() if faults is None else dict.fromkeys(fault.kind for fault in faults)
        until = None if settings.minutes is None else began + 60 * settings.minutes
        try:
            runner.wait_for_training()
            allowed, self._skipped = allowed_here(kinds, run, self._notify)
            given = None if faults is None else [fault for fault in faults if fault.kind in allowed]
            runner.disturb(settings.plan(allowed) if given is None else given, until)
            runner.drain()
        finally:
            self._seconds, self._restarts = time.monotonic() - began, run.restarts
        return run.still_running(ALL_END_WITHIN_S)

    def report(self, problems: Sequence[str]) -> dict[str, Any]:
        """Return the content of chaos.json."""
        result = None if self._result is None else self._result.model_dump()
        return make_report(
            settings=asdict(self._settings),
            injected=self._injected,
            seconds=self._seconds,
            skipped=self._skipped,
            resumes=0,
            restarts=self._restarts,
            leader=str(self._settings.topology.leader),
            disturbed=result,
            undisturbed=None,
            test_examples=None,
            problems=problems,
            hosted=result
            and {
                "places": self._places,
                "rolled_back_seconds": result["rolled_back_seconds"],
                "unsaved_seconds": sum(self._ages),
            },
        )
