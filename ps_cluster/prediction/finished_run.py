"""Open a run for its best model: its configuration, and the description of its examples."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ps_cluster.catalogue.examples import ExampleSpec
from ps_cluster.config import RunConfig, load_config
from ps_cluster.data.packed import PackedDataset, load_form
from ps_cluster.errors import UserError
from ps_cluster.evaluation.place import Place
from ps_cluster.run.run_dir import RunDir

RUNS = Path("runs")


@dataclass(frozen=True)
class FinishedRun:
    """A run that has left a model.

    Attributes:
      dataset: without its examples, if the run is opened for its model alone.
    """

    run_dir: RunDir
    config: RunConfig
    dataset: PackedDataset

    @classmethod
    def open(
        cls, root: Path | None, data_dir: Path | None, notify: Callable[[str], None], *, needs_examples: bool = True
    ) -> FinishedRun:
        """Return the run in `root`; for None the one in runs/ with the newest model.

        Args:
          data_dir: where the data set is; None takes the copy that the run used.
          notify: called with a line for a person, each time.
          needs_examples: False: how the run says that an example looks is enough, and its data set need not be here.

        Raises:
          UserError: it is no run, it has no model, or its data set is not here.
        """
        if root is None:
            root = newest_with_model(RUNS)
            notify(f"run: '{root}', which has the newest model (--run names another)")
        run_dir = RunDir.open(root)
        if not run_dir.best_model.is_file():
            raise UserError(
                f"run directory '{root}' has no best/{run_dir.best_model.name}, so no checkpoint was scored: score one by "
                f"evaluate --once --checkpoint-dir {root}"
            )
        config = load_config(run_dir.config)
        if not needs_examples and data_dir is None:
            with suppress(FileNotFoundError):  # its tasks were started by hand
                return cls(run_dir, config, load_form(run_dir.examples))
        return cls(run_dir, config, Place.of(run_dir.root).dataset(config, data_dir, notify))

    @property
    def spec(self) -> ExampleSpec:
        """The form of the examples that the model takes."""
        return self.dataset.spec


def newest_with_model(runs: Path) -> Path:
    """Return the run directory in `runs` whose best model was written last. Raises UserError if there is none."""
    models = [file for file in runs.glob("*/best/model.keras") if file.is_file()]
    if not models:
        raise UserError(f"--run: '{runs}' has no run with a model: train one, or name the folder of another by --run")
    return max(models, key=lambda file: file.stat().st_mtime_ns).parents[1]
