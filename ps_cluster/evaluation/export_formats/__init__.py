"""Define the formats of exported models: what each needs, how it is written, and how it is loaded for the check."""

from __future__ import annotations

import importlib.util
import sys
from abc import ABC, abstractmethod
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ps_cluster.config.objectives import ExampleSpec
from ps_cluster.config.registry import Named, Registry
from ps_cluster.errors import UserError
from ps_cluster.evaluation.raw_graph import prediction_graph
from ps_cluster.evaluation.raw_rows import Inputs, Predictions, as_raw, with_encoding
from ps_cluster.installation import install_command, pip_command

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

    from ps_cluster.evaluation.predictor import TrainedRun


class Exported:
    """A model to be exported.

    Attributes:
      run: the run that trained the model.
      model: takes examples as the network does, computes in float32, and returns predictions [B, outputs].
      spec: the description of the examples that the model takes.
      encoding: how the columns of a table became examples; None if the data set is not a table.
    """

    def __init__(self, run: TrainedRun, model: keras.Model):
        self.run, self.model, self.spec = run, model, run.spec
        self.encoding = run.dataset.encoding()

    @property
    def output_name(self) -> str:
        """The name of the output, for formats in which outputs have names."""
        return "probabilities" if self.spec.classes else "values"

    @cached_property
    def graph(self) -> tf.types.experimental.ConcreteFunction:
        """The model as a graph that takes raw inputs by name, e.g. images as uint8."""
        return prediction_graph(self.model, self.spec)

    @cached_property
    def raw_model(self) -> keras.Model:
        """A model that takes a table's columns as they are, and encodes them for `model`.

        If the data set is not a table, it is `model` itself.
        """
        return self.model if self.encoding is None else with_encoding(self.model, self.encoding)

    def raw(self, inputs: Inputs) -> Inputs:
        """Convert examples to the inputs of `raw_model`."""
        return inputs if self.encoding is None else as_raw(inputs, self.encoding)


class ExportFormat(Named, ABC):
    """A format of exported models. A new format subclasses it, and defines the methods `write` and `load`.

    Attributes:
      name: the name by which users choose the format.
      title: a short description of the format.
      file: the name of the file or folder that is written.
      takes_raw_rows: whether the file takes the raw columns of a table: numbers and texts.
      tolerance: the largest allowed difference between the probabilities of the file and of the original.
      packages: the modules that have to be installed.
      extra: the extra of this package that installs these modules.
    """

    name = ""
    title = ""
    page = "docs/tools.md#export"
    file = ""
    takes_raw_rows = False
    tolerance = 1e-4
    packages: tuple[str, ...] = ()
    extra = ""

    def check(self, spec: ExampleSpec) -> None:
        """Raise UserError if a model can't be written in this format on this machine.

        `spec`: the description of the examples that the model takes.
        """
        if missing := [name for name in self.packages if importlib.util.find_spec(name) is None]:
            raise UserError(
                f"--to: '{self.name}' needs {missing[0]}, which is not installed: "
                f"{install_command(self.extra) if self.extra else pip_command(missing)}; or leave {self.name} out"
            )

    @abstractmethod
    def write(self, exported: Exported, path: Path) -> None:
        """Write the model to `path`, which does not exist yet."""

    @abstractmethod
    def load(self, exported: Exported, path: Path) -> Predictions:
        """Load the file that `write` wrote. Return a function from raw examples to predictions, like a `Predictor`."""


EXPORT_FORMATS: Registry[ExportFormat] = Registry(
    "export format", ExportFormat, lambda: sys.modules[__name__], "ps_cluster.export_formats"
)
