"""Asynchronous parameter-server training that can be run, broken and measured on one machine.

`fit`, `train` and `compare` are the Python API (docs/python-api.md). Each is imported at its first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ps_cluster.api.compare_arms import Compared, compare
    from ps_cluster.api.fit import FitHistory, fit
    from ps_cluster.api.listener import STOP
    from ps_cluster.api.result import Result
    from ps_cluster.api.train import train
    from ps_cluster.errors import TrainingFailed, UserError

__version__ = "0.1.0"
__all__ = ["STOP", "Compared", "FitHistory", "Result", "TrainingFailed", "UserError", "compare", "fit", "train"]

_HOMES = {
    "STOP": "api.listener",
    "Compared": "api.compare_arms",
    "FitHistory": "api.fit",
    "Result": "api.result",
    "TrainingFailed": "errors",
    "UserError": "errors",
    "compare": "api.compare_arms",
    "fit": "api.fit",
    "train": "api.train",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ps_cluster' has no attribute '{name}'")
    return getattr(import_module(f"ps_cluster.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
