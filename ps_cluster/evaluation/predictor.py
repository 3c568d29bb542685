"""Open a run that has a best model, and predict with this model in float32.

TensorFlow is imported when a predictor is created.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ps_cluster.config import RunConfig, load_config
from ps_cluster.config.objectives import ExampleSpec
from ps_cluster.data.packed import PackedDataset
from ps_cluster.errors import UserError
from ps_cluster.evaluation.raw_graph import prediction_graph
from ps_cluster.evaluation.raw_rows import Inputs
from ps_cluster.evaluation.scorer import dataset_of, dataset_or_description
from ps_cluster.files.values import one_line
from ps_cluster.models.failures import computing
from ps_cluster.notices import Notify
from ps_cluster.quiet_import import import_tensorflow
from ps_cluster.runs.run_dir import RunDir

RUNS = Path("runs")


@dataclass(frozen=True)
class TrainedRun:
    """A run that has a best model."""

    run_dir: RunDir
    config: RunConfig
    dataset: PackedDataset  # only the form of its examples if `open` was called with `needs_examples=False`

    @classmethod
    def open(
        cls, root: Path | None, data_dir: Path | None, notify: Notify, *, needs_examples: bool = True
    ) -> TrainedRun:
        """Open the run in `root`; if this is None, open the run in runs/ that has the newest model.

        Args:
          data_dir: the folder of the data set; None: use the copy that the run used.
          needs_examples: whether the examples of the data set are needed. If not, the data set need not exist any more,
            because the run directory contains the shapes and dtypes of an example.

        Raises:
          UserError: `root` is not a run directory, the run has no model, or its data set can't be found.
        """
        if root is None:
            models = [file for file in RUNS.glob("*/best/model.keras") if file.is_file()]
            if not models:
                raise UserError(
                    f"--run: '{RUNS}' has no run with a model: train one, or give the folder of a run by --run"
                )
            root = max(models, key=lambda file: file.stat().st_mtime_ns).parents[1]
            notify(f"run: '{root}', which has the newest model (choose another run with --run)")
        run_dir = RunDir.open(root)
        if not run_dir.best_model.is_file():
            raise UserError(
                f"run directory '{root}' has no best/{run_dir.best_model.name}, so no checkpoint was scored: score one "
                f"by evaluate --once --checkpoint-dir {root}"
            )
        config = load_config(run_dir.config)
        return cls(
            run_dir,
            config,
            (dataset_of if needs_examples else dataset_or_description)(run_dir, config, data_dir, notify),
        )

    @property
    def spec(self) -> ExampleSpec:
        """The description of the examples: the inputs that the model takes, and the target."""
        return self.dataset.spec


class Predictor:
    """The best model of a run, as a function of raw examples.

    Attributes:
      model: takes raw examples and returns predictions.
    """

    def __init__(self, run: TrainedRun, *, as_trained: bool = False):
        """Load the model.

        Args:
          as_trained: compute in the precision of the training instead of float32.

        Raises:
          UserError: the model can't be loaded, or does not fit the data set.
        """
        import_tensorflow()
        from ps_cluster.models.best import load_best
        from ps_cluster.models.saved import in_float32, predicting

        file = run.run_dir.best_model
        try:
            model = load_best(file, run.config.model, run.spec)
            found = predicting(model if as_trained else in_float32(model), run.spec)
        except UserError:
            raise
        except Exception as error:  # a damaged file can raise almost any exception
            raise UserError(
                f"'{file}' can't be used for the data set '{run.dataset.name}' ({one_line(str(error), 300)}): if a "
                "layer in it is your own, name its file by --code; if the run used another data set, name that data "
                "set by --data-dir"
            ) from error
        if found.output.shape[1:] != (run.spec.outputs,):
            raise UserError(
                f"'{file}' returns {list(found.output.shape[1:])} for an example, and the data set "
                f"'{run.dataset.name}' has {run.spec.outputs} outputs: the run used another data set, so name "
                "that data set by --data-dir"
            )
        self.model = found
        self._predictions = prediction_graph(self.model, run.spec)

    def __call__(self, inputs: Inputs) -> np.ndarray:
        """Return predictions float32 [B, outputs]: probabilities, or values in the target's units."""
        with computing():
            found: np.ndarray = self._predictions(**inputs).numpy()
        return found
