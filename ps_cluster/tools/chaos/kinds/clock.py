"""Shift the clock that the run sees. The real clock is not changed, since the whole machine uses it."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path

from ps_cluster.tools.chaos.kind import FaultKind, Injection, Run, Scene
from ps_cluster.tools.chaos.signs import TrainingContinues

BACK_S = 3600
FILE_VARIABLE = "PS_CLUSTER_TEST_CLOCK"
SOURCE = Path(__file__).with_name("shifted_clock.c")
_SHIFT = struct.Struct("l")  # seconds
_COMPILED_WITHIN_S = 60.0


class ClockSetBack(FaultKind):
    """A fault that sets the clock back by an hour for all processes of the run.

    All processes have to survive this, and all durations that the run reports have to be right.

    A library that is loaded before the C library replaces `clock_gettime`, `gettimeofday` and `time`. Unlike with a
    real change of the clock, waits that have begun don't get longer, and the times of files are the real times.
    """

    name = "clock set back"
    all_survive = True

    def environment(self, folder: Path) -> Mapping[str, str]:
        compiler, library = shutil.which("cc"), folder / "shifted_clock.so"
        if compiler is None:
            return {}
        argv = (compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(SOURCE), "-ldl")
        if subprocess.run(argv, capture_output=True, timeout=_COMPILED_WITHIN_S).returncode:
            return {}
        _shift_file(folder).write_bytes(_SHIFT.pack(0))
        libraries = ":".join(filter(None, (str(library), os.environ.get("LD_PRELOAD"))))
        return {"LD_PRELOAD": libraries, FILE_VARIABLE: str(_shift_file(folder))}

    def why_not(self, run: Run) -> str | None:
        if _shift_file(run.tools).exists():
            return None
        return "the library that shifts the clock needs a C compiler (cc) and the GNU C library 2.30 or newer"

    def inject(self, scene: Scene) -> Injection:
        # The file is changed in place, since the processes have mapped it.
        with _shift_file(scene.run.tools).open("r+b") as file:
            (shift,) = _SHIFT.unpack(file.read(_SHIFT.size))
            file.seek(0)
            file.write(_SHIFT.pack(shift - BACK_S))
        return Injection(scene.now(), [TrainingContinues(scene.now())])


def _shift_file(folder: Path) -> Path:
    return folder / "clock-shift"
