"""Check what has to be the same: of tasks on several machines, and of a training and the checkpoint it goes on from.

No TensorFlow: tasks find out before the first step that they differ, and a run before anything is started or written.
(A task's version of TensorFlow is read from the installed package.)
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field, ValidationError

from ps_cluster import __version__
from ps_cluster.config import RunConfig, fitted, user_code
from ps_cluster.config.datasets import OF_WORKER
from ps_cluster.errors import UserError
from ps_cluster.files.json_files import parse_json
from ps_cluster.files.values import Malformed, first_error
from ps_cluster.installation import tensorflow_version
from ps_cluster.runs import checkpoints, journal, ledger
from ps_cluster.runs.checkpoints import (
    ACCEPTED_STEPS,
    LEDGER,
    Checkpoint,
    CheckpointError,
    ProgressState,
    StatesUnreadable,
    is_consistent_cut,
)
from ps_cluster.runs.journal import JournalDamaged
from ps_cluster.runs.ledger import COLUMNS, COUNTS, MOST_OPEN, check_values, rows_of
from ps_cluster.runs.rows import Row
from ps_cluster.runs.run_dir import RunDir

if TYPE_CHECKING:
    from ps_cluster.data.packed import PackedDataset

MOST_BYTES = 2**19
_PACKAGE = Path(__file__).resolve().parent.parent
_SHOWN_CHARACTERS = 120
_DIGEST_CHARACTERS = 16
# These may differ from machine to machine: training is the same.
_OF_A_MACHINE = frozenset({"data.data_dir", "cluster.intra_op_threads", "cluster.pin_workers", "cluster.isolation"})

_Line = Annotated[str, Field(max_length=400, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]
Facts = Annotated[dict[_Line, _Line], Field(max_length=500)]


class CompatibilityFingerprint(Row):
    """The settings, versions and data that a task works with: name → value, in the order in which they are compared.

    Attributes:
      versions: of Python, TensorFlow and this package, and a digest of the package's sources.
      settings: the configuration, as section.name, without what may differ from machine to machine.
      files: a digest of each file that the settings name, e.g. the user's own code. Not of files that it imports.
      data: of the packed data set: its name, the numbers of its examples, and its checksum.
    """

    versions: Facts
    settings: Facts
    files: Facts
    data: Facts

    @classmethod
    def of(cls, config: RunConfig, dataset: PackedDataset) -> CompatibilityFingerprint:
        """Return what a task with this configuration and these examples works with."""
        settings = _settings(config)
        return cls(
            versions={
                "Python": ".".join(platform.python_version_tuple()[:2]),
                "TensorFlow": tensorflow_version() or "none",
                "ps_cluster": __version__,
                "source code of ps_cluster (SHA-256)": _digest_of_folder(_PACKAGE),
            },
            settings={key: _short(text_of(value)) for key, value in settings.items()},
            files=_files(settings),
            data=facts_of_data(dataset),
        )

    @classmethod
    def from_json(cls, text: bytes | str) -> CompatibilityFingerprint:
        """Return what another task has written by `to_json`. Raises Malformed where it is something else."""
        if len(text) > MOST_BYTES:
            raise Malformed(f"holds {len(text):,} bytes, which is too much")
        try:
            return cls.model_validate(parse_json(text))
        except ValidationError as error:
            raise Malformed(first_error(error, "agreement")) from error

    def to_json(self) -> str:
        """Return this as JSON of at most `MOST_BYTES`."""
        return self.model_dump_json()

    def difference(self, other: CompatibilityFingerprint, at: str, here: str = "here") -> str | None:
        """Return on one line the first thing that differs and both values; None where nothing does.

        Args:
          at: whose the other one is, e.g. "worker-1". here: whose this one is, where that is read elsewhere.
        """
        for mine, theirs in zip(self._parts(), other._parts(), strict=True):
            for name in dict.fromkeys([*mine, *theirs]):
                if mine.get(name) != theirs.get(name):
                    return f"{name}: {mine.get(name, 'nothing')} {here}, {theirs.get(name, 'nothing')} at {at}"
        return None

    def _parts(self) -> tuple[Mapping[str, str], ...]:
        return self.versions, self.settings, self.files, self.data


def _digest_of_folder(folder: Path) -> str:
    """Return a digest of the names and contents of all Python files below a folder."""
    files = {file.relative_to(folder).as_posix(): file for file in folder.rglob("*.py")}
    return _digest(part for name in sorted(files) for part in (name.encode(), files[name].read_bytes()))


def _settings(config: RunConfig) -> dict[str, Any]:
    sections = config.model_dump(mode="json").items()
    settings = {f"{section}.{name}": value for section, values in sections for name, value in values.items()}
    return {key: value for key, value in settings.items() if key not in _OF_A_MACHINE}


def _files(settings: Mapping[str, Any]) -> dict[str, str]:
    named = {key: _named_file(key, value) for key, value in settings.items() if isinstance(value, str)}
    return {
        f"{key}: content of {_short(file.name)} (SHA-256)": _digest([file.read_bytes()])
        for key, file in named.items()
        if file is not None and file.is_file()
    }


def _named_file(key: str, value: str) -> Path | None:
    if reference := user_code.parse(value):
        return reference.file
    # What a data set is made from may be large. The checksums of the packed copy tell more.
    return Path(value) if os.path.isabs(value) and not key.startswith("data.") else None


def facts_of_data(dataset: PackedDataset) -> dict[str, str]:
    """Return what tells one packed data set from another: name → value, as text."""
    return {
        "name of the data set": _short(_without_folder(dataset.name)),
        "training examples": f"{dataset.train_examples + dataset.validation_examples:,}",
        "test examples": f"{dataset.test_examples:,}",
        "content of the packed data (SHA-256)": dataset.checksum[:_DIGEST_CHARACTERS],
    }


def text_of(value: Any) -> str:
    """Return the value of a setting as text, a path without its folder."""
    if isinstance(value, str):
        return _without_folder(value)
    return json.dumps(value)


def _without_folder(text: str) -> str:
    """Return a path without its folder, which may be another one on another machine; any other text as it is.

    Data of a user's own have the name of their form before the path: "image_folder:/home/ada/pets".
    """
    form, separator, path = text.partition(":")
    if not form.isidentifier() or path.startswith("//"):  # no form, as in /home/ada/mine.py:load
        form, separator, path = "", "", text
    return f"{form}{separator}{os.path.basename(path.rstrip('/'))}" if os.path.isabs(path) else text


def _short(text: str) -> str:
    """Return a printable text itself where it is short, else its beginning and a digest."""
    if len(text) <= _SHOWN_CHARACTERS and text.isprintable():
        return text
    shown = "".join(one if one.isprintable() else "?" for one in text[:_SHOWN_CHARACTERS])
    return f"{shown}… (SHA-256 {_digest([text.encode(errors='surrogateescape')])})"


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()[:_DIGEST_CHARACTERS]


# Check what a run can be resumed from.


def newest_checkpoint(
    config: RunConfig, run_dir: RunDir, dataset: PackedDataset, notify: Callable[[str], None]
) -> Checkpoint:
    """Return the newest readable checkpoint or snapshot, after checking that `config` and `dataset` can go on from it.

    It may have another number of slices than `config`; then it is even (runs/checkpoints.py).

    Raises:
      UserError: there is none, or it is of a run with other settings or data.
    """
    checkpoint = newest_for(config.shards, run_dir, notify)
    if checkpoint is None:
        do = "begin another" if run_dir.has_trained else f"begin it again with --run-dir {run_dir.root}"
        raise UserError(f"run directory '{run_dir.root}' holds no checkpoint to resume from: {do}")
    before, progress = _state_of(checkpoint, run_dir)
    _check_same_work(config, dataset, checkpoint, before)
    begun = _begun(checkpoint, progress, before, run_dir)
    if begun > (total := config.total_updates(dataset.train_examples)):
        raise UserError(
            f"training.steps, training.epochs: {total} updates in all, but {begun} of the run in '{run_dir.root}' were "
            "begun: resume it with as many or more"
        )
    steps = checkpoint.arrays[ACCEPTED_STEPS]
    if steps.max() - steps[:, 0].min() > config.ledger_window:
        raise UserError(
            f"cluster.workers: got {config.cluster.workers}: the open steps of the run in '{run_dir.root}' are farther apart "
            f"than the {config.ledger_window:,} of the ledger of so many: resume it with as many workers as before"
        )
    return checkpoint


def newest_for(slices: int, run_dir: RunDir, notify: Callable[[str], None]) -> Checkpoint | None:
    """Return the newest readable checkpoint or snapshot that can be cut into so many slices; None without one.

    Raises:
      StatesUnreadable: the system refuses to read one.
    """

    def check(found: Checkpoint) -> None:
        arrays = found.arrays
        if arrays.keys() >= LEDGER and len(arrays["counts"]) != slices and not is_consistent_cut(arrays):
            raise CheckpointError(
                f"checkpoint of step {found.step}: its {len(arrays['counts'])} parameter servers had not applied the same "
                f"steps, so {slices} can't go on from it"
            )

    return checkpoints.load_to_go_on(run_dir.states, notify, check)


def check_journals(found: Checkpoint, run_dir: RunDir, slices: int) -> None:
    """Raise UserError where the journals lack rows of gradients that the checkpoint counts.

    Args:
      slices: that training goes on with.
    """
    for index in range(slices):
        try:
            journal.check(journal.history_of(run_dir, found.meta.leaders, index))
        except JournalDamaged as error:
            do = "put it back, or begin anew in another run directory"
            raise UserError(f"the checkpoint of step {found.step} can't be resumed: {error}: {do}") from error
        except OSError as error:
            raise StatesUnreadable(
                f"'{error.filename or run_dir.journals}' can't be read ({error.strerror}): see to the disk"
            ) from error


def _state_of(found: Checkpoint, run_dir: RunDir) -> tuple[RunConfig, ProgressState]:
    """Return configuration and progress of a checkpoint. Raises UserError where another version has written it."""
    earlier = UserError(
        f"run directory '{run_dir.root}' is of an earlier version, with another configuration or ledger: "
        "it can't be resumed; begin anew in another run directory"
    )
    try:
        config = fitted(found.meta.config)
    except ValidationError as error:
        raise earlier from error
    if found.meta.progress is None or found.meta.times is None or not found.arrays.keys() >= LEDGER:
        raise earlier
    if [found.arrays[name].shape[1] for name in ("counts", "waiting")] != [len(COUNTS), 1 + len(COLUMNS)]:
        raise earlier
    return config, found.meta.progress


def _begun(found: Checkpoint, progress: ProgressState, config: RunConfig, run_dir: RunDir) -> int:
    """Return how many updates were begun. Raises UserError where the checkpoint's numbers contradict each other."""
    counts = found.arrays["counts"]
    scheduled, applied = ledger.from_state(progress.scheduled), progress.applied
    gradients = sum(progress.tally.staleness.values())
    waiting, leaders = found.arrays["waiting"], found.meta.leaders
    # Where slices are cut anew, all of them have the same rows.
    rows = [sum(part.rows for part in journal.history_of(run_dir, leaders, index)) for index in range(len(counts))]
    whole = (
        bool(leaders)
        and rows == counts[:, COUNTS.index("accepted")].tolist()
        and counts.shape[0] == len(leaders[-1].rows) == len(found.arrays[ACCEPTED_STEPS]) == config.shards
        and counts.min(initial=0) >= 0
        and found.arrays[ACCEPTED_STEPS].shape[1] > 0
        and (found.arrays[ACCEPTED_STEPS][:, 0] <= applied.below).all()
        and len(waiting) <= MOST_OPEN
        and np.isin(waiting[:, 0], np.arange(config.shards)).all()
        and _are_rows(waiting[:, 1:])
        and applied.count <= counts[:, COUNTS.index("accepted")].min()
        and abs(gradients - applied.count) <= MOST_OPEN
        and abs(scheduled.first_missing - int(counts[:, COUNTS.index("version")].min())) <= MOST_OPEN
        and abs(scheduled.end * config.steps_per_update - applied.below) <= MOST_OPEN
    )
    if not whole:
        raise UserError(
            f"the checkpoint of step {found.step} can't be resumed: what it says of its updates does not add up: remove "
            f"it from '{run_dir.root}' to resume an older one"
        )
    return scheduled.end


def _are_rows(table: np.ndarray) -> bool:
    try:
        check_values(rows_of(table))
    except Malformed:
        return False
    return True


def _check_same_work(config: RunConfig, dataset: PackedDataset, found: Checkpoint, before: RunConfig) -> None:
    """Raise UserError where something differs that gives step ids and slices their meaning."""
    _check_same(_work(before), _work(config))
    _check_same(found.meta.data or {}, facts_of_data(dataset))


def _work(config: RunConfig) -> dict[str, Any]:
    """Return name → value of all settings that decide which gradient a step id stands for, and how it is taken in."""
    training, shards = config.training, config.training.sample == OF_WORKER
    return {
        # What others follow from comes first: a recipe of another network has other labels, too.
        "mode.name": config.mode.name,
        **{
            f"model.{name}": value
            for name, value in config.model.model_dump(mode="json", exclude={"precision"}).items()
        },
        "batches of a step": config.batches_per_step,
        "fewer batches in a step": config.mode_kind.takes_fewer_batches(config),
        "training.batch_size_per_worker": training.batch_size_per_worker,
        "training.seed": training.seed,
        "training.sample": training.sample,
        "training.label_smoothing": training.label_smoothing,
        "training.class_weights": training.class_weights,
        **{f"data.{name}": value for name, value in config.data.model_dump(mode="json", exclude={"data_dir"}).items()},
        "schedule.image_scales": config.schedule.model_dump(mode="json")["image_scales"],
        "evaluation.validation_examples": config.evaluation.validation_examples,
        "steps of an update": config.steps_per_update,
        "gradients of an update": config.gradients_per_update,
        "gradients of an update, at most": config.most_gradients_per_update,
        # Each has weights of its own, or a part of the data.
        **({"cluster.workers": config.cluster.workers} if config.mode_kind.shares_steps or shards else {}),
    }


def _check_same(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for name in before:
        was, is_now = text_of(before[name]), text_of(now[name]) if name in now else "nothing"
        if was != is_now:
            raise UserError(f"{name}: got {is_now}, but the checkpoint to resume from was made with {was}")


def check_network(found: Checkpoint, layout: Sequence[str]) -> None:
    """Raise UserError where the variables are others than those of the checkpoint, or lie in another order.

    Args:
      layout: path and shape of each.
    """
    for number, (before, now) in enumerate(zip_longest(found.meta.network or layout, layout, fillvalue="nothing"), 1):
        if before != now:
            raise UserError(
                f"model.name: variable {number} of the network is {now}, but {before} in the checkpoint of step "
                f"{found.step} to resume from: give it the network that it was made with"
            )
