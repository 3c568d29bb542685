"""Serve the metrics of a run over HTTP while a view shows it. Needs prometheus_client, and imports no TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ps_cluster.errors import UserError
from ps_cluster.installation import install_command
from ps_cluster.report.progress import ProgressView


@contextmanager
def with_metrics(view: ProgressView, port: int | None, host: str, task: str) -> Iterator[ProgressView]:
    """Yield the view to use in the block: `view` itself or, with a port, a view that also serves metrics.

    Args:
      port: the port to listen at; 0 for any free one; None to serve no metrics.
      host: the address to listen at.
      task: the name of this process in the run.

    Raises:
      UserError: prometheus_client is not installed, or nothing can listen at the address.
    """
    if port is None:
        yield view
        return
    try:
        from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server

        from ps_cluster.report.metrics import RunMetrics
    except ImportError as error:
        needs = f"--metrics-port needs prometheus_client ({error})"
        raise UserError(f"{needs}: {install_command('metrics')}; or leave out this option") from error
    metrics, registry = RunMetrics(view, task), CollectorRegistry(auto_describe=False)
    registry.register(metrics)
    ProcessCollector(registry=registry)  # start time, processor time and memory of this process
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise UserError(
            f"--metrics-port: got {port}: this program can't listen at this port of '{host}' ({error.strerror}): "
            "choose another port, or 0 for any free one"
        ) from error
    # Without this, the error of a reader that went away would be printed among the lines of the run.
    server.handle_error = lambda request, client_address: None  # type: ignore[method-assign]
    metrics.url = f"http://{f'[{host}]' if ':' in host else host}:{server.server_port}/metrics"
    try:
        yield metrics
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
