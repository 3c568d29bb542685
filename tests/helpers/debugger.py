"""Hold all threads of a process as a debugger does: `debugger.py PID`. Ends when the process is gone.

Its state in the list of processes is then "tracing stop" and not "stopped", so only its silence gives it away.
"""

import ctypes
import errno
import os
import sys

_SEIZE, _INTERRUPT, _WALL = 0x4206, 0x4207, 0x40000000


def main(pid: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
    held: set[str] = set()
    while new := set(os.listdir(f"/proc/{pid}/task")) - held:  # until there is no thread that was born meanwhile
        for request in (_SEIZE, _INTERRUPT):
            for thread in new:
                if libc.ptrace(request, int(thread), None, None) and ctypes.get_errno() != errno.ESRCH:
                    sys.exit(f"thread {thread} can't be held: {os.strerror(ctypes.get_errno())}")
        held |= new
    while True:
        try:
            os.waitpid(-1, _WALL)  # a thread's end is reported to its debugger first
        except ChildProcessError:
            return


if __name__ == "__main__":
    main(int(sys.argv[1]))
