"""Holds a process as a debugger does, all threads of it: `debugger.py PID`. Ends when the process is gone.

The process is not "stopped" in the list of processes but "tracing stop", and nobody but its own silence tells of it.
"""

import ctypes
import os
import sys

_SEIZE, _INTERRUPT, _WALL = 0x4206, 0x4207, 0x40000000


def main(pid: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
    for request in (_SEIZE, _INTERRUPT):
        for thread in os.listdir(f"/proc/{pid}/task"):
            if libc.ptrace(request, int(thread), None, None):
                sys.exit(f"thread {thread} can't be held: {os.strerror(ctypes.get_errno())}")
    while True:
        try:
            os.waitpid(-1, _WALL)  # the end of a thread is told to its debugger before anybody else hears of it
        except ChildProcessError:
            return


if __name__ == "__main__":
    main(int(sys.argv[1]))
