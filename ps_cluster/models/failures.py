"""Find out why TensorFlow could not compute a graph, and whether the user's own computation failed.

This module does not import TensorFlow.
"""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ps_cluster.errors import FailedComputation
from ps_cluster.files.values import one_line
from ps_cluster.installation import IMPORT_FOLDER

COMPUTATION = "own_computation"
"""The name scope of a network's forward pass, loss and gradients. TensorFlow names it in errors that occur there."""

# The folders of code that is not the user's: this package, the standard library and installed packages. The names of
# Python's frozen modules begin with "<frozen".
FOLDERS_WITHOUT_USER_CODE = (
    str(IMPORT_FOLDER / "ps_cluster"), "<frozen", *{sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")},
)  # fmt: skip

# Codes of TensorFlow errors that occur again if the same values are computed again: invalid argument, failed
# precondition, out of range, unimplemented.
_SAME_AGAIN = {3, 9, 11, 12}
# The beginnings of paragraphs that only say where the graph was built.
_PLACE = re.compile(r'\s*(Graph execution error:|Detected at node|File ")')
_FILE = re.compile(r'File "([^"]+)", line (\d+)')
_COUNT = re.compile(r"\d+ root error\(s\) found\.")
_CODE = re.compile(r"^(\(\d+\) [A-Z_]+:|\{\{function_node \S+\}\})\s*")
# The beginnings of lines that follow the reason: they name the operation, and the calls that passed the error on.
_TRAIL = re.compile(r"\[\[|Additional GRPC error information|:?\{\w|:[A-Z_]+:|\d+ (successful|derived)")
_END = re.compile(r"\s*\[(\[\{\{node .*|Op:\w+\].*)$")
_NODE = re.compile(rf"{COMPUTATION}/(?:gradient_tape/)?([\w./-]+)")
_CHARACTERS = 300


def reason_of(error: BaseException) -> str:
    """Return the reason for an error of TensorFlow, on one line, without the stack trace of how the graph was built."""
    paragraphs = str(error).split("\n\n")
    text = "\n".join(one for one in paragraphs if not _PLACE.match(one)) or str(error)
    reason: list[str] = []
    for line in map(str.strip, text.splitlines()):
        if _TRAIL.match(line) and reason:
            break
        if line and not _COUNT.match(line) and not _TRAIL.match(line):
            reason.append(_END.sub("", _CODE.sub("", line)))
    return one_line(" ".join(filter(None, reason)) or text)


def failure_of_computation(error: BaseException, *, anywhere: bool = False) -> str | None:
    """Return a line that says what failed in the user's own computation, and where. Return None for any other error.

    `anywhere`: True if nothing but the user's computation was running. Every failed operation then belongs to that
    computation, even if its name is outside of the name scope `COMPUTATION`.
    """
    text = str(error)
    if getattr(error, "error_code", None) not in _SAME_AGAIN or not (anywhere or COMPUTATION in text):
        return None
    layers = [path.rpartition("/")[0] for path in _NODE.findall(text) if "/" in path]
    lines = [(file, line) for file, line in _FILE.findall(text) if not file.startswith(FOLDERS_WITHOUT_USER_CODE)]
    places = [f"in '{layers[0]}'"] if layers else []
    places += [f"{Path(file).name}:{line}" for file, line in lines[-1:]]
    where = f" ({', '.join(places)})" if places else ""
    return f"the network's own computation failed{where}: {one_line(reason_of(error), _CHARACTERS)}"


@contextmanager
def computing() -> Iterator[None]:
    """Raise FailedComputation for errors of the user's computation. The block must compute nothing but the network."""
    try:
        yield
    except Exception as error:
        if failure := failure_of_computation(error, anywhere=True):
            raise FailedComputation(failure) from error
        raise
