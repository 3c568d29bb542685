"""Show a run to several at once."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any

from ps_cluster.config import RunConfig
from ps_cluster.data.packed import PackedDataset
from ps_cluster.errors import UserError
from ps_cluster.files.writing import write_whole
from ps_cluster.installation import to_install
from ps_cluster.report.dashboard import Row, RunState
from ps_cluster.report.progress import ProgressView
from ps_cluster.runs.result_rows import EvaluationRow
from ps_cluster.runs.run_dir import RunDir

if TYPE_CHECKING:
    from ps_cluster.report.metrics import RunMetrics


class SeveralViews(ProgressView):
    """Passes every event on to each view, in their order."""

    def __init__(self, *views: ProgressView):
        super().__init__(time.monotonic)
        self._views = views

    def start(self, config: RunConfig, run_dir: RunDir, dataset: PackedDataset) -> None:
        for view in self._views:
            view.start(config, run_dir, dataset)

    def notice(self, line: str) -> None:
        for view in self._views:
            view.notice(line)

    def tasks(self, tasks: list[Row]) -> None:
        for view in self._views:
            view.tasks(tasks)

    def progress(self, row: Row) -> None:
        for view in self._views:
            view.progress(row)

    def evaluation(self, row: EvaluationRow) -> None:
        for view in self._views:
            view.evaluation(row)

    def close(self) -> None:
        for view in self._views:
            view.close()


# Serve the metrics of a run over HTTP, beside its view. No TensorFlow.

LOOK_S = 0.1  # for the end
REQUEST_S = 10.0  # a connection that asks for nothing is closed after it


@contextlib.contextmanager
def beside(view: ProgressView, port: int | None, host: str, task: str) -> Iterator[ProgressView]:
    """Yield the view to use within the block: `view` alone or, with a port, one that also serves metrics.

    Args:
      port: to listen at; 0: any that is free; None: serve nothing.
      host: the address to listen at.
      task: the name of this process in the run.
    Raises:
      UserError: prometheus_client is not installed, or nothing can listen there.
    """
    if port is None:
        yield view
        return
    try:
        from ps_cluster.report.metrics import RunMetrics
    except ImportError as error:
        needs = f"--metrics-port needs prometheus_client ({error})"
        raise UserError(f"{needs}: {to_install('metrics')}; or leave it out") from error
    metrics = RunMetrics()
    with _server(host, port, metrics) as server:
        yield SeveralViews(view, metrics, Link(view, server.url, task))


class Link(ProgressView):
    """Tells where the metrics are, when the run has its directory: in a line, and in a file as long as it is true."""

    def __init__(self, view: ProgressView, url: str, task: str):
        super().__init__(lambda: 0.0)
        self._view, self._url, self._task = view, url, task
        self._run_dir: RunDir | None = None

    def _begin(self, state: RunState) -> None:
        self._run_dir = state.run_dir
        write_whole(self._run_dir.metrics_link(self._task), f"{self._url}\n")
        self._view.notice(f"metrics: {self._url}")

    def notice(self, line: str) -> None:
        pass

    def close(self) -> None:
        if self._run_dir:
            self._run_dir.metrics_link(self._task).unlink(missing_ok=True)


class MetricsServer(ThreadingHTTPServer):
    """A server whose threads end with the process. Errors of a reader are not printed among the run's lines."""

    daemon_threads = True
    allow_reuse_port = False
    url: str

    def __init__(self, host: str, port: int, handler: Any):
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), handler)
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.server_port}/metrics"

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


@contextlib.contextmanager
def _server(host: str, port: int, metrics: RunMetrics) -> Iterator[MetricsServer]:
    from prometheus_client import CollectorRegistry, MetricsHandler, ProcessCollector

    registry = CollectorRegistry(auto_describe=False)
    registry.register(metrics)
    ProcessCollector(registry=registry)  # start time, processor time and memory of this process
    handler = type("Handler", (MetricsHandler.factory(registry),), {"timeout": REQUEST_S})
    try:
        server = MetricsServer(host, port, handler)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"--metrics-port: got {port}: nothing can listen at '{host}' there ({reason}): take another, or 0 for any"
        ) from error
    thread = Thread(target=server.serve_forever, args=(LOOK_S,), name="metrics", daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
