"""The checks of `doctor` and their findings. The checks run one after the other, each within its time limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import partial


class Status(StrEnum):
    """The outcome of a check. `WARN`: training works, but it is slower, less safe or not as expected."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Finding:
    """The result of a check, with a message for the user."""

    status: Status
    message: str
    todo: str = ""  # what the user should do; empty if all is well
    name: str = ""  # the name of the check; `examine` sets it
    seconds: float = 0.0  # the duration of the check; `examine` sets it


ok = partial(Finding, Status.OK)
warn = partial(Finding, Status.WARN)
fail = partial(Finding, Status.FAIL)


@dataclass(frozen=True)
class Check:
    """A check of this machine or installation. It has failed if it raises an error, or takes longer than `limit_s`."""

    name: str
    run: Callable[[], Finding]
    limit_s: float = 10.0


def examine(checks: Sequence[Check]) -> Iterator[Finding]:
    """Yield the finding of each check. A check that raises an error or takes too long has failed.

    The thread of a check that takes too long is not ended, because Python can't end a thread.
    """
    for check in checks:
        began = time.monotonic()
        findings: list[Finding] = []
        thread = threading.Thread(target=_run, args=(check, findings), daemon=True)
        thread.start()
        thread.join(check.limit_s)
        late = fail(f"no answer within {check.limit_s:g} s", "see whether the machine is overloaded or a disk hangs")
        finding = (findings or [late])[0]
        yield replace(finding, name=check.name, seconds=round(time.monotonic() - began, 3))


def _run(check: Check, findings: list[Finding]) -> None:
    """Append the finding of a check to `findings`."""
    try:
        findings.append(check.run())
    except Exception as error:  # the remaining checks run, whatever happens in this one
        findings.append(fail(f"{type(error).__name__}: {error}", "fix the cause that the error message names"))


def as_json(examined: Sequence[Finding]) -> dict[str, object]:
    """Return the output of --json. Its status is the worst of all checks."""
    worst = max((one.status for one in examined), key=list(Status).index, default=Status.OK)
    return {"status": worst.value, "checks": [asdict(one) for one in examined]}
