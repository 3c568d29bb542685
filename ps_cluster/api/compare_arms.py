"""Compare modes from a script or a notebook: the command `compare` as a function."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Unpack, get_type_hints

from pydantic import BaseModel

from ps_cluster.api import keywords
from ps_cluster.api.data import with_data
from ps_cluster.api.networks import write_network
from ps_cluster.api.program import COMMAND, refuse_within_a_run, run_program
from ps_cluster.api.result import Result
from ps_cluster.api.train import SETTINGS
from ps_cluster.config.networks import NETWORKS
from ps_cluster.config.sections import flat
from ps_cluster.errors import UserError
from ps_cluster.files import untrusted
from ps_cluster.files.json_files import read_json
from ps_cluster.files.values import one_line
from ps_cluster.files.writing import write_whole
from ps_cluster.files.yaml_files import dump_yaml
from ps_cluster.report.terminal import print_line
from ps_cluster.runs.run_dir import CODE
from ps_cluster.tools.compare.comparison_plan import Batch, Comparison, read_comparison, read_plan
from ps_cluster.tools.compare.comparison_run import RUNS, check_unclaimed


class CompareOptions(keywords.SharedOptions, total=False):
    """The keywords of `compare`, which set fields of the comparison or settings of all its runs."""

    epochs: float | None
    steps: int | None
    batch_size: int | None
    seeds: int | None
    stragglers: Sequence[str] | None
    batches: Sequence[Batch] | None
    learning_rate: Literal["linear", "same"] | None
    score_every_epochs: float | None
    target_score: float | None
    seconds: float | None


class _Report(BaseModel):
    """The part of report.json that `Compared` reads."""

    headline: list[str]
    groups: list[dict[str, Any]]


class Compared:
    """A complete comparison of modes. `Compared("comparison")` also opens one that the command `compare` has made.

    Attributes:
      output: the folder of the runs and the report.
      page: the file of the report.
      headline: the findings, one sentence each.
      table: a dictionary for each arm (a mode with its settings): the number of its runs, and the mean, standard
        deviation and 95 % interval of each result.
    """

    def __init__(self, output: str | os.PathLike[str]):
        """Open a comparison. Raises UserError if the folder has no complete comparison."""
        self.output = Path(os.path.realpath(output))
        self.page = self.output / "report.html"
        try:
            report = read_json(self.output / "report.json", _Report)
        except FileNotFoundError as error:
            raise UserError(
                f"comparison '{output}' has no report.json: it is not a comparison, or is not complete"
            ) from error
        self.headline, self.table = report.headline, report.groups

    @property
    def runs(self) -> list[Result]:
        """The runs, in the order in which they were trained."""
        return [Result(self.output / RUNS / name) for name in read_plan(self.output).trained_in_this_order]

    def __repr__(self) -> str:
        return f"Compared('{self.output}': {len(self.table)} arms)"


def compare(
    arms: Sequence[str | Mapping[str, Any]] | None = None,
    model: Any = None,
    data: Any = None,
    *,
    output: str | os.PathLike[str] = "comparison",
    baseline: str | None = None,
    settings: Mapping[str, Any] | None = None,
    command: Sequence[str] = COMMAND,
    **options: Unpack[CompareOptions],
) -> Compared:
    """Train several modes on the same work, as `ps-cluster compare` does, and write a report.

    Args:
      arms: what to compare: names of modes, or {"mode": name, "set": {"section.key": value}}; None: all modes
        in which each worker trains the whole network and takes no local steps.
      model: the network, as for `train`.
      data: the data set, as for `train`.
      output: the folder for the runs and the report; an unfinished comparison in it is continued.
      baseline: the arm with which all other arms are compared; None: sync if it is an arm, else the first arm.
      settings: the settings of all runs, as for `train`.
      command: the words that start the program `ps-cluster`, before its arguments.
      options: the options of the comparison (seeds, stragglers, batches, target_score, …) and of its runs (workers, epochs, …).

    Raises:
      UserError, TrainingFailed, KeyboardInterrupt: as for `train`.
    """
    refuse_within_a_run("compare")
    keywords.check_known(options, get_type_hints(CompareOptions))
    given = {name: value for name, value in options.items() if value is not None}
    fields = {name: keywords.plain(given.pop(name)) for name in Comparison.model_fields if name in given}
    if arms is not None:
        if isinstance(arms, str | Mapping) or not isinstance(arms, Iterable):
            raise UserError(f"arms: got {one_line(repr(arms), 100)}: give a list of them, e.g. ['async', 'sync']")
        fields["arms"] = [{"mode": arm} if isinstance(arm, str) else keywords.plain(arm) for arm in arms]
    values = keywords.values_of(given, settings)
    folder = keywords.new_folder(output, "output").absolute()
    untrusted.check_folder(folder, "folder of the comparison", print_line)
    check_unclaimed(folder)
    with untrusted.owner_only_writes():
        if model is not None:
            values["model.name"] = write_network(model, folder / CODE)
            _check_same_model(folder, values["model.name"])
        values = with_data(values, data, print_line)
        comparison = read_comparison(None, fields, values)
        write_whole(folder / CODE / SETTINGS, dump_yaml(comparison.model_dump(mode="json", exclude_unset=True)))
    chosen = ("--baseline", str(baseline)) if baseline is not None else ()
    run_program(
        (*command, "compare", "--config", str(folder / CODE / SETTINGS), "--output", str(folder), *chosen), folder
    )
    return Compared(folder)


keywords.show_keywords(compare, CompareOptions)


def _check_same_model(folder: Path, name: str) -> None:
    """Raise UserError if an unfinished comparison was begun with another function or Keras model than the caller's."""
    begun = flat(read_plan(folder).settings or {}).get("model.name")
    file = _written_file(name, folder)
    if begun != name and file is not None and _written_file(begun, folder) is not None:
        file.unlink()  # nothing will use it
        raise UserError(
            f"model: the comparison in '{folder}' was begun with another model (a function with other code or other "
            f"values in it, or a Keras model with other weights): give model={begun!r} to continue it, or another "
            "folder as `output`"
        )


def _written_file(name: object, folder: Path) -> Path | None:
    """Return the file with the network's code that `compare` wrote; None if `name` is the name of another network.

    `name`: the value of the setting `model.name`.
    """
    file = NETWORKS.code_of(name) if isinstance(name, str) else None
    return file if file is not None and file.is_relative_to(folder / CODE) else None
