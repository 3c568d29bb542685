"""Print what a forked process sees of itself as JSON, then do what the argument says: `exit 3`, `raise` or `wait`."""

import gc
import json
import os
import sys
import time

if __name__ == "__main__":
    seen = {
        "pid": os.getpid(),
        "parent": os.getppid(),
        "session": os.getsid(0),
        "argv": sys.argv[1:],
        "folder": os.getcwd(),
        "variable": os.environ.get("GREETING"),
        "preloaded": "tensorflow" in sys.modules,
        "collects_garbage": gc.isenabled(),
        "descriptors": sorted(
            os.readlink(f"/proc/self/fd/{fd}").split(":")[0] for fd in os.listdir("/proc/self/fd")[:-1]
        ),
    }
    print(json.dumps(seen), flush=True)
    if sys.argv[1] == "exit":
        sys.exit(int(sys.argv[2]))
    if sys.argv[1] == "raise":
        raise ValueError("as told")
    if sys.argv[1] == "wait":
        time.sleep(60)
