"""Find the checkpoints of a run, and the run directory in which their scores are recorded."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from ps_cluster.config import RunConfig, fitted, load_config
from ps_cluster.errors import UserError
from ps_cluster.runs import checkpoints
from ps_cluster.runs.checkpoints import Checkpoint
from ps_cluster.runs.run_dir import RunDir


@dataclass(frozen=True)
class CheckpointFolder:
    """The folder of a run's checkpoints, and the run directory in which their scores are recorded."""

    run_dir: RunDir
    checkpoints: Path

    @classmethod
    def of(cls, directory: Path) -> CheckpointFolder:
        """Find the checkpoints in a run directory, in its folder checkpoints/, or in any other folder of checkpoints.

        `directory`: an absolute path. The folder may not exist yet, or may still be empty.

        Raises:
          UserError: the path is a file, or a folder that contains other things but no checkpoints.
        """
        if directory.exists() and not directory.is_dir():
            raise UserError(f"checkpoint directory '{directory}' is a file")
        ours = ("config.yaml", "checkpoints", "metrics", checkpoints.ENDED)
        names: list[str] = []
        with contextlib.suppress(FileNotFoundError):  # it may appear later, or may just have been deleted
            names = [path.name for path in directory.iterdir() if not path.name.startswith(".")]
        if names and not any(name in ours or name.startswith("step-") for name in names):
            raise UserError(
                f"checkpoint directory '{directory}' holds other things, such as '{min(names)}', but no checkpoints"
            )
        if RunDir(directory).config.is_file():
            return cls(RunDir(directory), RunDir(directory).checkpoints)
        parent = RunDir(directory.parent)
        if parent.checkpoints == directory and parent.config.is_file():
            return cls(parent, directory)
        return cls(RunDir(directory), directory)

    def config(self, checkpoint: Checkpoint) -> RunConfig:
        """Return the configuration of the run; if there is no run, the configuration in the checkpoint."""
        if config := self.run_config():
            return config
        try:
            return fitted(checkpoint.meta.config)
        except ValidationError as error:
            raise UserError(
                f"checkpoint of step {checkpoint.step}: contains no valid configuration, and '{self.run_dir.root}' has no "
                f"{self.run_dir.config.name}"
            ) from error

    def run_config(self) -> RunConfig | None:
        """Return the configuration of the run; None if there is no run yet."""
        return load_config(self.run_dir.config) if self.run_dir.config.is_file() else None

    def scores_all(self) -> bool:
        """Return whether the run's configuration wants every checkpoint to be scored; False if there is no run yet."""
        config = self.run_config()
        return config is not None and (config.evaluation.after_training or config.checkpoints.every_epochs is not None)

    def describe_lack(self) -> str:
        """Return a short reason why there is nothing to score."""
        folder = self.checkpoints
        if not folder.is_dir():
            return f"checkpoint directory '{folder}' does not exist"
        readable = " that can be read" if checkpoints.steps(folder) else ""
        return f"checkpoint directory '{folder}' holds no checkpoint{readable}"
