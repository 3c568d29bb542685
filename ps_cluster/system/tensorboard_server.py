"""Run TensorBoard during a training, and end it with the training.

    python -m ps_cluster.system.tensorboard_server OPTIONS   runs TensorBoard, which ends with its launcher

It runs outside of the run's private network, so that a browser reaches it, and listens on the loopback interface only.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from threading import Event, Thread

import portpicker

from ps_cluster.files.writing import open_append
from ps_cluster.notices import Notify
from ps_cluster.system import environment
from ps_cluster.system.child_process import ChildProcess, how_ended
from ps_cluster.system.lifetime import die_with_launcher

ARGV = (sys.executable, "-m", __name__)
HOST = "127.0.0.1"
PATIENCE_S = 60.0  # TensorBoard starts in 3 s, or in 10 s while the machine trains
GRACE_S = 3.0
_ANSWER_INTERVAL_S = 0.25


def tensorboard_if(wanted: bool, logdir: Path, log: Path, notify: Notify) -> AbstractContextManager[object]:
    return TensorBoardServer(logdir, log, notify) if wanted else nullcontext()


class TensorBoardServer:
    """Runs TensorBoard within a `with` block. If it does not start, one notice says so, and the run continues."""

    def __init__(
        self,
        logdir: Path,
        log: Path,
        notify: Notify,
        *,
        argv: tuple[str, ...] = ARGV,
        patience_s: float = PATIENCE_S,
        pick_port: Callable[[], int] = portpicker.pick_unused_port,
    ):
        """Create a server that starts when its `with` block is entered.

        Args:
          logdir: the folder to show; it need not exist yet.
          notify: called with the link once TensorBoard answers, or with an error; may be called from another thread.
        """
        self._logdir, self._log = logdir, log
        self._notify = notify
        self._argv, self._patience_s, self._pick_port = argv, patience_s, pick_port
        self._child: ChildProcess | None = None
        self._over = Event()
        self._waiter: Thread | None = None

    def __enter__(self) -> TensorBoardServer:
        try:
            port = self._pick_port()
            self._child = self._start(port)
        except (OSError, portpicker.NoFreePortFoundError) as error:
            self._notify(f"TensorBoard can't be started: {error}")
            return self
        self._waiter = Thread(target=self._report, args=(self._child, port), daemon=True)
        self._waiter.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._child is not None:
            self._child.stop(GRACE_S)
        if self._waiter is not None:
            self._waiter.join()

    def _start(self, port: int) -> ChildProcess:
        # The fast loader would be another process, which ends later than TensorBoard.
        options = ("--host", HOST, "--port", str(port), "--load_fast", "false", "--reload_interval", "5")
        with open_append(self._log) as log:
            argv = (*self._argv, "--logdir", str(self._logdir), *options)
            return ChildProcess.start(argv, env=environment.for_child(os.environ), output=log)

    def _report(self, child: ChildProcess, port: int) -> None:
        """Report the link once TensorBoard answers, or that it has ended or does not answer."""
        deadline = time.monotonic() + self._patience_s
        while not self._over.wait(_ANSWER_INTERVAL_S):
            if (code := child.exit_code) is not None:
                self._notify(f"TensorBoard ended with {how_ended(code)}; training continues (log: {self._log})")
                return
            if _answers(port):
                self._notify(f"TensorBoard: http://{HOST}:{port}/ (until this command ends)")
                return
            if time.monotonic() > deadline:
                self._notify(
                    f"TensorBoard does not answer after {self._patience_s:g} s; training continues (log: {self._log})"
                )
                return


def _answers(port: int) -> bool:
    connection = HTTPConnection(HOST, port, timeout=_ANSWER_INTERVAL_S)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def main() -> None:
    """Run TensorBoard without TensorFlow, whose import would take memory and time from the training."""
    die_with_launcher()
    sys.modules["tensorflow"] = None  # type: ignore[assignment]  # an import of it fails
    from tensorboard.main import run_main

    run_main()


if __name__ == "__main__":
    main()
