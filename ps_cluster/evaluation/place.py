"""Open a run that was trained: its checkpoints for the evaluator, or its best model; its configuration and its data."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from ps_cluster.config import RunConfig, fitted, load_config
from ps_cluster.config.objectives import ExampleSpec
from ps_cluster.data import sources
from ps_cluster.data.packed import PackedDataset, load_form
from ps_cluster.errors import UserError
from ps_cluster.runs import checkpoints
from ps_cluster.runs.checkpoints import Checkpoint
from ps_cluster.runs.run_dir import RunDir


@dataclass(frozen=True)
class Place:
    """The place of a run's checkpoints and scores."""

    run_dir: RunDir
    checkpoints: Path

    @classmethod
    def of(cls, directory: Path) -> Place:
        """Return the place of `directory` (absolute): a run directory, its checkpoints/, or checkpoints without a run.

        Raises:
          UserError: it is a file or holds other things, so the path is a mistake and waiting is no use.
        """
        _refuse_foreign(directory)
        if RunDir(directory).config.is_file():
            return cls(RunDir(directory), RunDir(directory).checkpoints)
        parent = RunDir(directory.parent)
        if parent.checkpoints == directory and parent.config.is_file():
            return cls(parent, directory)
        return cls(RunDir(directory), directory)

    def config(self, checkpoint: Checkpoint) -> RunConfig:
        """Return the run's configuration; without a run, the one in the checkpoint."""
        if self.run_dir.config.is_file():
            return load_config(self.run_dir.config)
        try:
            return fitted(checkpoint.meta.config)
        except ValidationError as error:
            raise UserError(
                f"checkpoint of step {checkpoint.step}: carries no configuration, and there is no config.yaml"
            ) from error

    def dataset(self, config: RunConfig, data_dir: Path | None, notify: sources.Notify) -> PackedDataset:
        """Return the packed copy that the training used, else the same data set found again (in `data_dir`)."""
        cache = sources.default_cache_dir()
        if data_dir is not None:
            found = sources.resolve(config.data.model_copy(update={"data_dir": data_dir}), cache, notify=notify)
        else:
            found = sources.of_run(self.run_dir.dataset, config.data, cache, notify=notify)
        return found.holding_out(config.evaluation.validation_examples)

    def scores_after_training(self) -> bool:
        """Return whether the run wants its checkpoints scored after training; False if there is no run yet."""
        return self.run_dir.config.is_file() and load_config(self.run_dir.config).evaluation.after_training

    def describe_lack(self) -> str:
        """Return why there is nothing to score, in a few words."""
        folder = self.checkpoints
        if not folder.is_dir():
            return f"checkpoint directory '{folder}' does not exist"
        readable = " that can be read" if checkpoints.steps(folder) else ""
        return f"checkpoint directory '{folder}' holds no checkpoint{readable}"


def _refuse_foreign(directory: Path) -> None:
    if not directory.is_dir():
        if directory.exists():
            raise UserError(f"checkpoint directory '{directory}' is a file")
        return
    ours = ("config.yaml", "checkpoints", "metrics", checkpoints.ENDED)
    try:
        names = [path.name for path in directory.iterdir() if not path.name.startswith(".")]
    except FileNotFoundError:  # deleted meanwhile
        return
    if names and not any(name in ours or name.startswith("step-") for name in names):
        raise UserError(
            f"checkpoint directory '{directory}' holds no checkpoints but other things, such as '{min(names)}'"
        )


# Open a run for its best model: its configuration, and the description of its examples.

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
