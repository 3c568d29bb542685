"""Plant modules in a folder, and find out which of them were run."""

from pathlib import Path

NAMES = (
    "click", "google", "grpc", "json", "keras", "logging", "numpy", "portpicker", "ps_cluster", "psutil", "pydantic", "random",
    "rich", "setproctitle", "socket", "subprocess", "tensorboard", "tensorflow", "tensorflow_datasets", "tempfile",
    "typing", "yaml",
)  # fmt: skip


def plant(folder: Path) -> None:
    """Write modules with names that this package's processes import. Each leaves a mark when it is run."""
    for name in NAMES:
        (folder / f"{name}.py").write_text(f"open({str(folder)!r} + '/run-' + __name__, 'w').close()\n")


def run_of(folder: Path) -> list[str]:
    """Return the names of the planted modules that were run."""
    return sorted(path.name.removeprefix("run-") for path in folder.glob("run-*"))
