"""Run one arm of `bench` in a process and a folder of its own, and read what it measured."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from ps_cluster.config import RunConfig
from ps_cluster.data.packed import PackedDataset, write_pointer
from ps_cluster.errors import RunFailed
from ps_cluster.installation import IMPORT_FOLDER
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.system.lifetime import die_with_parent
from ps_cluster.tools.bench.arms import ARM_TIMEOUT_S, BenchArm, Measured

RateOf = Callable[[BenchArm, RunConfig, PackedDataset], float | None]


def rate_of(
    arm: BenchArm, config: RunConfig, packed: PackedDataset, *, timeout_s: float = ARM_TIMEOUT_S
) -> float | None:
    """Run `arm` once, in a new run directory. Return its examples/s; None if it ended before it had a rate.

    Raises:
      RunFailed: the arm failed, or took longer than `timeout_s`. Its files are kept, so that they can be read.
    """
    folder = Path(tempfile.mkdtemp(prefix="ps_cluster-bench-"))
    keeps = False
    try:
        run_dir = RunDir.create(folder / "run")
        # JSON is YAML too: `ddp` reads the file as JSON, and the other arms read it as YAML.
        run_dir.config.write_text(config.model_dump_json())
        write_pointer(run_dir.dataset, packed)
        imports = IMPORT_FOLDER
        if arm.torch:  # Another Python must not find packages that are installed beside this project.
            imports = folder / "import"
            imports.mkdir()
            (imports / "ps_cluster").symlink_to(IMPORT_FOLDER / "ps_cluster")
        stdout, stderr = folder / "stdout", folder / "stderr"
        with stdout.open("wb") as out, stderr.open("wb") as error:
            subprocess.run(
                [arm.python, "-m", arm.module, str(run_dir.root), *arm.arguments],
                cwd=imports, stdin=subprocess.DEVNULL, stdout=out, stderr=error, timeout=timeout_s, check=True,
                preexec_fn=die_with_parent,  # Otherwise it would continue after this process is killed.
            )  # fmt: skip
        return Measured.model_validate_json(stdout.read_text().splitlines()[-1]).examples_per_second
    except subprocess.TimeoutExpired as late:
        keeps = True
        raise RunFailed(f"arm {arm.name} had not ended after {timeout_s} s; its files: {folder}") from late
    except subprocess.CalledProcessError as failed:
        keeps = True
        last = (stderr.read_text(errors="replace").splitlines() or ["it printed no error"])[-1]
        why = f"failed with exit code {failed.returncode}: {last}"
        raise RunFailed(f"arm {arm.name} {why}; its files: {folder}") from failed
    finally:
        if not keeps:
            # After Ctrl-C, processes of the arm may still write there. Their error must not replace the real one.
            shutil.rmtree(folder, ignore_errors=True)
