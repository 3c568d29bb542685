import hashlib
import http.server
import importlib
import inspect
import os
import threading
import time

import pytest

from ps_cluster.config.datasets import DATASETS
from ps_cluster.data.download import DownloadError, Patience, download

CONTENT = bytes(range(256)) * 4096  # 1 MiB
SHA256 = hashlib.sha256(CONTENT).hexdigest()
HALF = len(CONTENT) // 2


class Server(http.server.ThreadingHTTPServer):
    """Serves CONTENT with Range support; `script` holds what the next requests get instead."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}/cifar.tar.gz"
        self.ranges = []  # the Range header of each request
        self.script = []
        self.released = threading.Event()  # ends the answers that are slow on purpose


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.ranges.append(self.headers["Range"])
        answer = self.server.script.pop(0) if self.server.script else with_ranges
        answer(self)

    def reply(self, status, body=b"", length=None, **headers):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def with_ranges(handler):
    if not handler.headers["Range"]:
        return handler.reply(200, CONTENT)
    start = int(handler.headers["Range"].removeprefix("bytes=").removesuffix("-"))
    if start >= len(CONTENT):
        return handler.reply(416, Content_Range=f"bytes */{len(CONTENT)}")
    end = len(CONTENT) - 1
    return handler.reply(206, CONTENT[start:], Content_Range=f"bytes {start}-{end}/{end + 1}")


def without_ranges(handler):
    handler.reply(200, CONTENT)


def truncated(handler):
    handler.reply(200, CONTENT[:HALF], length=len(CONTENT))


def another_range(handler):
    handler.reply(206, CONTENT[7:], Content_Range=f"bytes 7-{len(CONTENT) - 1}/{len(CONTENT)}")


def status(code):
    return lambda handler: handler.reply(code)


def mute(handler):
    handler.server.released.wait(20)


def half_then_silent(handler):
    truncated(handler)
    mute(handler)


def dripping(handler):
    handler.reply(200, b"", length=len(CONTENT))
    while not handler.server.released.wait(0.02):
        handler.wfile.write(b"x")


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.released.set()
    server.shutdown()
    server.server_close()
    thread.join(5)
    assert not thread.is_alive()


@pytest.fixture
def fetch(server, tmp_path):
    """fetch() downloads from the server and records the waits and the progress; time does not pass while waiting."""

    def call(url=None, sha256=SHA256, **limits):
        call.waits, call.progress = [], []
        report = lambda done, total: call.progress.append((done, total))  # noqa: E731
        download(url or server.url, call.destination, sha256, report, Patience(**limits), sleep=call.waits.append)
        assert call.destination.read_bytes() == CONTENT
        assert not call.part.exists()

    call.destination = tmp_path / "new folder" / "cifar.tar.gz"
    call.part = tmp_path / "new folder" / "cifar.tar.gz.part"
    call.part.parent.mkdir()
    return call


def failure(fetch, *args, **options) -> str:
    started = time.monotonic()
    with pytest.raises(DownloadError) as error:
        fetch(*args, **options)
    assert time.monotonic() - started < 10
    assert not fetch.destination.exists()
    assert "\n" not in str(error.value)
    return str(error.value)


def test_whole_file_arrives_and_progress_ends_at_the_total(fetch, server):
    fetch()
    assert server.ranges == [None]
    assert fetch.progress[-1] == (len(CONTENT), len(CONTENT))
    assert fetch.progress == sorted(fetch.progress)


@pytest.mark.parametrize(
    ("partial", "script", "ranges", "waits"),
    [
        (CONTENT[:HALF], [], [f"bytes={HALF}-"], []),
        (CONTENT, [], [f"bytes={len(CONTENT)}-"], []),
        (CONTENT + b"more", [], [f"bytes={len(CONTENT) + 4}-", None], [1.0]),
        (b"old" * 100, [without_ranges], ["bytes=300-"], []),
        (CONTENT[:HALF], [another_range], [f"bytes={HALF}-", None], [1.0]),
        (b"", [truncated], [None, f"bytes={HALF}-"], [1.0]),
        (b"", [status(503), status(500), status(429)], [None] * 4, [1.0, 2.0, 4.0]),
    ],
    ids=[
        "resumed", "whole already", "longer than the server's", "without ranges", "another range", "cut off", "server trouble",
    ],
)  # fmt: skip
def test_a_partial_file_or_an_answer_that_fails_is_gone_on_from(fetch, server, partial, script, ranges, waits):
    if partial:
        fetch.part.write_bytes(partial)
    server.script = script
    fetch()
    assert (server.ranges, fetch.waits) == (ranges, waits)
    assert fetch.progress == [] or fetch.progress[-1] == (len(CONTENT), len(CONTENT))


def test_attempts_that_bring_something_do_not_count_against_the_limit(fetch, server):
    def a_little(handler):
        start = int((handler.headers["Range"] or "bytes=0-")[6:-1])
        end = len(CONTENT) - 1
        handler.reply(206, CONTENT[start:][:100_000], end - start + 1, Content_Range=f"bytes {start}-{end}/{end + 1}")

    server.script = [a_little] * 10
    fetch(attempts=2)
    assert len(server.ranges) == 11


def test_wrong_checksum_is_an_error_and_the_partial_file_is_deleted(fetch):
    message = failure(fetch, sha256="0" * 64)
    assert "not the expected file" in message and SHA256 in message
    assert not fetch.part.exists()


@pytest.mark.parametrize(
    ("script", "options", "message", "waits", "left"),
    [
        ([status(404)], {}, "the server answered 404", [], b""),
        ([truncated, *[status(503)] * 9], {"attempts": 3}, "the server answered 503", [1.0, 2.0], CONTENT[:HALF]),
        ([], {"url": "cifar.tar.gz"}, "is not an address", [], b""),
        ([], {"url": "http://127.0.0.1:9/", "attempts": 1}, "Connection refused", [], b""),
        ([mute], {"connect_timeout_s": 0.2, "attempts": 1}, "no answer within 0.2 s", [], b""),
        ([half_then_silent], {"timeout_s": 0.2, "attempts": 1}, "timed out", [], CONTENT[:HALF]),
    ],
    ids=["missing", "server trouble", "no address", "nobody listening", "no answer", "silence"],
)
def test_a_download_that_fails_is_given_up_and_keeps_what_has_arrived(
    fetch, server, script, options, message, waits, left
):
    server.script = list(script)
    assert message in failure(fetch, **options)
    assert len(server.ranges) == (0 if "url" in options else 1 + len(waits)) and fetch.waits == waits
    assert (fetch.part.read_bytes() if fetch.part.exists() else b"") == left


def test_a_download_that_is_too_slow_is_given_up(fetch, server):
    server.script = [dripping]
    assert "too slow" in failure(fetch, deadline_s=0.3)


def test_server_that_makes_it_start_over_for_ever_is_given_up(fetch, server):
    server.script = [truncated, status(416)] * 50
    failure(fetch, attempts=4)
    assert len(server.ranges) <= 8


def test_second_download_of_the_same_file_does_not_touch_the_first(fetch, server):
    server.script = [mute]
    first = threading.Thread(target=failure, args=(fetch,), kwargs={"connect_timeout_s": 1, "attempts": 1})
    first.start()
    while not server.ranges:
        time.sleep(0.01)
    refusal = failure(fetch)
    assert "cifar.tar.gz.part' is in use by" in refusal and f"(pid {os.getpid()}, since" in refusal
    first.join(5)
    assert not first.is_alive()
    fetch()


def test_nothing_is_downloaded_through_a_link(fetch, server, tmp_path):
    (tmp_path / "mine").write_text("mine")
    fetch.part.parent.mkdir(exist_ok=True)
    fetch.part.symlink_to(tmp_path / "mine")
    with pytest.raises(PermissionError, match="it is a link"):
        fetch()
    assert (tmp_path / "mine").read_text() == "mine" and server.ranges == []


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "mnist"])
def test_a_pinned_digest_is_that_of_keras(name):
    module = importlib.import_module(f"keras.src.datasets.{name}")
    (pinned,) = DATASETS[name].downloads
    assert pinned.sha256 in inspect.getsource(module) and pinned.url.rpartition("/")[0] in inspect.getsource(module)
