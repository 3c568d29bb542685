"""Metrics over HTTP: the address is told and written, and nothing is left behind."""

import socket
import sys
import threading
import urllib.request

import pytest

from ps_cluster.config import build_config
from ps_cluster.errors import UserError
from ps_cluster.report.metrics_server import with_metrics
from ps_cluster.report.progress import ProgressView
from ps_cluster.runs.run_dir import RunDir
from tests.helpers.data import only_named
from tests.helpers.rows import progress_row


class Told(ProgressView):
    def __init__(self):
        super().__init__(lambda: 0.0)
        self.lines = []

    def notice(self, line):
        self.lines.append(line)


@pytest.fixture
def started(tmp_path):
    """started(view) starts a run in the view; `started.run_dir` is its directory."""
    run_dir = RunDir.create(tmp_path / "run")
    config, dataset = build_config(None, {}), only_named("synthetic", tmp_path, 100, 10)

    def call(view):
        view.start(config, run_dir, dataset)

    call.run_dir = run_dir
    return call


def beside(view, port=0, host="127.0.0.1"):
    return with_metrics(view, port, host, "launcher-0")


def get(url):
    return urllib.request.urlopen(url, timeout=5).read().decode()


def test_a_scrape_at_the_address_that_is_told_and_written_has_the_newest_row(started):
    told, link = Told(), started.run_dir.metrics_link("launcher-0")
    with beside(told) as view:
        started(view)
        view.progress(progress_row(7))
        url = link.read_text().strip()
        page = get(url)
        view.close()
        assert told.lines == [f"metrics: {url}"] and not link.exists()
    assert "ps_cluster_step 7.0\n" in page and "process_start_time_seconds" in page
    with pytest.raises(OSError):
        get(url)
    assert not [thread.name for thread in threading.enumerate() if "serve_forever" in thread.name]


def test_without_a_port_the_view_is_the_one_given(started):
    told = Told()
    with beside(told, port=None) as view:
        assert view is told


def test_a_reader_that_goes_away_leaves_no_trace_among_the_lines(started, capfd):
    with beside(Told()) as view:
        started(view)
        address = started.run_dir.metrics_link("launcher-0").read_text()
        host, port = "127.0.0.1", int(address.split(":")[2].split("/")[0])
        with socket.create_connection((host, port)) as reader:
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # reset at its close
            reader.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert "ps_cluster" in get(f"http://{host}:{port}/metrics")
    assert capfd.readouterr().err == ""


def test_a_taken_port_is_refused_by_name():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UserError, match=f"--metrics-port: got {port}: this program can't listen at this port of"):
            beside(Told(), port=port).__enter__()


def test_a_host_that_is_not_of_this_machine_is_refused():
    with pytest.raises(UserError, match="192.0.2.1"):
        beside(Told(), host="192.0.2.1").__enter__()


def test_a_missing_package_is_told_with_the_extra_that_brings_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ps_cluster.report.metrics", None)
    monkeypatch.delattr("ps_cluster.report.metrics", raising=False)
    with pytest.raises(UserError, match=r"-m pip install 'prometheus-client>=.*'; or leave out this option"):
        beside(Told()).__enter__()
