"""The formats of exported models: what each needs, how it is written, and how it is loaded again to be checked."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ps_cluster.catalogue.examples import ExampleSpec
from ps_cluster.catalogue.kinds import Kinds
from ps_cluster.errors import UserError
from ps_cluster.installation import to_add, to_install

if TYPE_CHECKING:
    import keras

    from ps_cluster.prediction.finished_run import FinishedRun
    from ps_cluster.prediction.predictor import Inputs

SAMPLES = 200  # training examples from which the ranges of a quantised model are found


class Exported:
    """A model to write.

    Attributes:
      run: that has left it.
      model: takes raw examples, computes in float32 and returns predictions [B, outputs].
      spec: the form of the examples.
    """

    def __init__(self, run: FinishedRun, model: keras.Model):
        self.run, self.model, self.spec = run, model, run.spec

    @property
    def output_name(self) -> str:
        """The name of the predictions, in formats that have one."""
        return "probabilities" if self.spec.classes else "values"

    @cached_property
    def graph(self) -> Any:
        """The model as a graph of raw inputs by name; images are uint8."""
        from ps_cluster.prediction.predictor import graph_of

        return graph_of(self.model, self.spec)

    def samples(self) -> Inputs:
        """Return some raw training examples, evenly spaced."""
        ids = spaced(self.run.dataset.train_examples, SAMPLES)
        return {name: np.asarray(rows[ids]) for name, rows in self.run.dataset.inputs("train").items()}


class ExportFormat:
    """A format. Subclass it, and write both methods.

    Attributes:
      name: its name; says: in a few words, what it is.
      file: the name of the file or folder that is written.
      tolerance: the largest difference of a probability from the original's that is allowed; None if it is only told.
      packages: modules that have to be installed; extra: the extra of this package that brings them.
    """

    name = ""
    says = ""
    page = "docs/export.md"
    file = ""
    tolerance: float | None = 1e-4
    packages: tuple[str, ...] = ()
    extra = ""

    def check(self, spec: ExampleSpec) -> None:
        """Raise UserError where this format can't be written here, or not for such examples."""
        if missing := [name for name in self.packages if importlib.util.find_spec(name) is None]:
            raise UserError(
                f"--to: '{self.name}' needs {missing[0]}, which is not installed: "
                f"{to_install(self.extra) if self.extra else to_add(missing)}; or leave {self.name} out"
            )

    def write(self, exported: Exported, path: Path) -> None:
        """Write the model to `path`, which does not exist."""
        raise NotImplementedError

    def load(self, exported: Exported, path: Path) -> Callable[[Inputs], np.ndarray]:
        """Return what was written as a function of raw examples, as `Predictor` is."""
        raise NotImplementedError


EXPORT_FORMATS: Kinds[ExportFormat] = Kinds(
    "export format", ExportFormat, "ps_cluster.export.formats", "ps_cluster.export_formats"
)


def spaced(count: int, most: int) -> np.ndarray:
    """Return int64 [n]: at most `most` places of `count`, evenly spaced."""
    wanted = min(count, most)
    return np.arange(wanted) * count // wanted
