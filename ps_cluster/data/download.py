"""Download one file over HTTP in bounded time: resume and retry the transfer, and verify the file."""

import contextlib
import hashlib
import http.client
import io
import os
import queue
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import NamedTuple

from ps_cluster.errors import UserError
from ps_cluster.files.locks import InUse, Lock
from ps_cluster.files.values import reason
from ps_cluster.files.writing import open_to_write

OnBytes = Callable[[int, int | None], None]
"""A function that gets the number of bytes so far, and the total, which is None if the server does not report it."""

_BLOCK_BYTES = 2**18
_BACKOFF_S = (1.0, 2.0, 4.0, 8.0)
_WORTH_ANOTHER_TRY = (408, 425, 429, 500, 502, 503, 504)


class DownloadError(UserError):
    """Raised if a file can't be downloaded. The message names the address and the reason."""


class Patience(NamedTuple):
    """The limits of a download: its timeouts and the number of attempts."""

    timeout_s: float = 30.0  # the longest silence of the server during the transfer
    connect_timeout_s: float = 30.0  # the longest wait for the answer to a request, including name resolution
    attempts: int = 5  # the download fails after this many attempts in a row without new bytes
    deadline_s: float = 7200.0  # the longest duration of all attempts together


def download(
    url: str,
    destination: Path,
    sha256: str,
    progress: OnBytes,
    patience: Patience = Patience(),
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Download `url` into `destination`, which appears only when it is complete and verified.

    Received bytes stay in `<destination>.part`, and the next attempt or call continues from there. `sleep` waits for
    some seconds between attempts (1, 2, 4, then 8).

    Raises:
      DownloadError: the server refuses, or does not answer; the transfer is too slow, or is interrupted too often; or
        the received file is not the expected one.
      OSError: `destination` can't be written.
    """
    destination.parent.mkdir(parents=True, exist_ok=True)
    part = destination.with_name(destination.name + ".part")
    with _locked(part) as file:
        transfer = _Transfer(url, file, progress, patience, time.monotonic() + patience.deadline_s)
        failures, most = 0, transfer.size
        while True:
            try:
                transfer.attempt()
                break
            except _Interrupted as error:
                # Only more bytes than ever before count as progress. Otherwise the transfer could start over forever.
                failures = 1 if transfer.size > most else failures + 1
                most = max(most, transfer.size)
                if failures >= patience.attempts:
                    raise DownloadError(f"url: '{url}' cannot be fetched ({error}; attempt {failures})") from error
                sleep(_BACKOFF_S[min(failures, len(_BACKOFF_S)) - 1])
        file.seek(0)
        found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != sha256:
            part.unlink()
            raise DownloadError(f"url: '{url}' is not the expected file (SHA-256 {found} instead of {sha256})")
        os.replace(part, destination)


class _Interrupted(Exception):
    """Raised if an attempt to download a file fails, but the next attempt may succeed."""


@dataclass
class _Transfer:
    """The transfer of one file. Each `attempt` continues where the last one stopped."""

    url: str
    file: io.BufferedRandom
    progress: OnBytes
    patience: Patience
    deadline: float  # by time.monotonic

    @property
    def size(self) -> int:
        """Bytes received so far."""
        return self.file.seek(0, os.SEEK_END)

    def attempt(self) -> None:
        """Download the rest. On failure, raises _Interrupted if another attempt may succeed, else DownloadError."""
        try:
            request = urllib.request.Request(self.url, headers={"User-Agent": "ps_cluster"})
            if self.size:
                request.add_header("Range", f"bytes={self.size}-")
            response = _open(request, self.patience)
        except urllib.error.HTTPError as error:
            error.close()
            return self._refused(error)
        except ValueError as error:
            raise DownloadError(f"url: '{self.url}' is not an address ({error})") from error
        except (OSError, http.client.HTTPException) as error:
            raise _Interrupted(reason(getattr(error, "reason", error))) from error
        with response:
            self._receive(response)

    def _refused(self, error: urllib.error.HTTPError) -> None:
        """Raise _Interrupted or DownloadError (see `attempt`) for an HTTP error, unless the file is complete.

        If the file is complete, the server answers the request for the rest of it with error 416.
        """
        if error.code == 416 and _whole_size(error.headers) == self.size:
            return
        if error.code == 416:
            self._start_over()
            raise _Interrupted("the bytes received so far do not fit the server's file") from error
        if error.code in _WORTH_ANOTHER_TRY:
            raise _Interrupted(f"the server answered {error.code}") from error
        raise DownloadError(f"url: '{self.url}' cannot be fetched (the server answered {error.code})") from error

    def _receive(self, response: http.client.HTTPResponse) -> None:
        if response.status == 206:
            total = _whole_size(response.headers)
            if not response.headers.get("Content-Range", "").startswith(f"bytes {self.size}-"):
                self._start_over()
                raise _Interrupted("the server sent another range than it was asked for")
        else:
            total = response.length
            self._start_over()
        while block := _read(response):
            self.file.write(block)
            self.progress(self.size, total)
            if time.monotonic() > self.deadline:
                raise DownloadError(
                    f"url: '{self.url}' is too slow ({self.size} bytes so far; run the command again to continue)"
                )
        if total is not None and self.size != total:
            raise _Interrupted(f"cut off after {self.size} of {total} bytes")

    def _start_over(self) -> None:
        self.file.truncate(0)


def _read(response: http.client.HTTPResponse) -> bytes:
    try:
        # `read` would wait for the whole block, however slowly it comes. `read1` returns what has arrived.
        return response.read1(_BLOCK_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise _Interrupted(reason(getattr(error, "reason", error))) from error


def _open(request: urllib.request.Request, patience: Patience) -> http.client.HTTPResponse:
    """Call urlopen in a thread, with a limit on the total time.

    The timeout of urlopen does not limit the resolution of a host name, and it starts again for each of the host's addresses.
    """
    answer: queue.SimpleQueue[http.client.HTTPResponse | Exception] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answer.put(urllib.request.urlopen(request, timeout=patience.timeout_s))
        except Exception as error:
            answer.put(error)

    threading.Thread(target=ask, name="download", daemon=True).start()
    try:
        result = answer.get(timeout=patience.connect_timeout_s)
    except queue.Empty:
        raise TimeoutError(f"no answer within {patience.connect_timeout_s:g} s") from None
    if isinstance(result, Exception):
        raise result
    return result


def _whole_size(headers: Message) -> int | None:
    """Return the size of the whole file from the Content-Range header (RFC 9110, section 14.4); None if unknown."""
    match = re.fullmatch(r"bytes (?:\d+-\d+|\*)/(\d+)", headers.get("Content-Range", ""))
    return int(match.group(1)) if match else None


@contextlib.contextmanager
def _locked(part: Path) -> Iterator[io.BufferedRandom]:
    """Open and lock the partial file, because two writers would corrupt it."""
    try:
        lock = Lock(part.with_name(f"{part.name}.lock"), f"download '{part}'")
    except InUse as error:
        raise DownloadError(str(error)) from error
    try:
        with os.fdopen(open_to_write(part, os.O_RDWR | os.O_APPEND | os.O_CREAT), "a+b") as file:
            try:
                yield file
            finally:
                if file.seek(0, os.SEEK_END) == 0:
                    part.unlink(missing_ok=True)
    finally:
        lock.release()
