"""Train the members of an ensemble, each a run with a network, a seed and a part of the data of its own, and join them."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic_core import to_jsonable_python

from ps_cluster.config import LONGEST_SECONDS, RunConfig, build_config, user_code
from ps_cluster.config.objectives import OBJECTIVES
from ps_cluster.config.sections import flat, joined
from ps_cluster.config.user_layers import of_options, settings_of_file
from ps_cluster.data.packed import PackedDataset
from ps_cluster.errors import RunFailed, UserError
from ps_cluster.files import locks
from ps_cluster.files.writing import write_whole
from ps_cluster.files.yaml_files import dump_yaml
from ps_cluster.installation import PROGRAM
from ps_cluster.launch import topology
from ps_cluster.launch.local_run import complete_config, resolve_data
from ps_cluster.quiet_import import without_first_lines
from ps_cluster.report.pages import rendered
from ps_cluster.report.progress import warn_of_generated
from ps_cluster.report.terminal import make_console, print_error, print_line
from ps_cluster.system import environment, network
from ps_cluster.system.environment import StopRequests
from ps_cluster.tools.fleet import EndedJob, Fleet, Job, config_at_once, has_completed, train_at_once
from ps_cluster.tools.sweep.sweep_plan import mode_of

if TYPE_CHECKING:
    from ps_cluster.tools.sweep.joining import ScoreTable

PLAN, NOUN = "ensemble.yaml", "ensemble"
MODEL, SCORES, PAGE, FOLDER = "ensemble.keras", "ensemble.json", "ensemble.html", "members"
MEMBERS, MOST_MEMBERS = 4, 32

# Name → `training.sample` of member i of n.
SPLITS: dict[str, Callable[[int, int], str]] = {
    "all": lambda index, count: "all",
    "shards": lambda index, count: f"shard:{index}/{count}",
    "bootstrap": lambda index, count: f"bootstrap:{index}",
}


@dataclass(frozen=True)
class Ensemble:
    """An ensemble: each of `models` with so many seeds. `settings`: dotted key → value, of all members."""

    models: tuple[str, ...]
    seeds: int
    split: str
    settings: dict[str, Any]

    @property
    def count(self) -> int:
        return len(self.models) * self.seeds

    def content(self) -> dict[str, Any]:
        """Return what the file of the plan has."""
        return {"models": list(self.models), "seeds": self.seeds, "split": self.split, "settings": self.settings}


@dataclass(frozen=True)
class EnsembleMember:
    """A member. `name`: of its run directory."""

    index: int
    name: str
    config: RunConfig

    def root(self, output: Path) -> Path:
        return Path(os.path.realpath(output / FOLDER / self.name))


def read_ensemble(
    file: Path | None, overrides: dict[str, Any], *, models: tuple[str, ...] | None, seeds: int | None, split: str
) -> Ensemble:
    """Return the ensemble of a command line.

    Args:
      file: settings of all members, as of a run. overrides: dotted key → value, over it.
      models: networks; None: the one of the settings. seeds: of each network; None: 1 of several, else `MEMBERS`.
    Raises:
      UserError: the file can't be read, or these don't fit together.
    """
    from_file = flat(settings_of_file(file)) if file else {}
    given = joined([from_file, flat(of_options(overrides).settings)])
    settings = to_jsonable_python({"mode.name": "single", **given})  # a path as text
    if models and "model.name" in settings:
        raise UserError(f"--models: model.name is also set to '{settings['model.name']}': leave one of them out")
    for key in ("training.seed", "training.sample"):
        if key in settings:
            raise UserError(
                f"{key}: got {settings[key]!r:.80}: each member has its own (--members, --split): leave it out"
            )
    named = models or (build_config(None, dict(settings)).model.name,)
    seeds = seeds or (1 if len(named) > 1 else MEMBERS)
    ensemble = Ensemble(named, seeds, split, settings)
    if len(set(named)) < len(named):
        raise UserError(f"--models: got {', '.join(named)}: one comes twice; --members 2 gives each network two seeds")
    if not 2 <= ensemble.count <= MOST_MEMBERS:
        raise UserError(f"--members: {ensemble.count} in all: an ensemble has from 2 to {MOST_MEMBERS}")
    return ensemble


def members_of(ensemble: Ensemble, dataset: PackedDataset | None = None) -> list[EnsembleMember]:
    """Return the members; with a data set their configurations are complete. Raises UserError for what doesn't fit."""
    members = []
    for index in range(ensemble.count):
        model = ensemble.models[index // ensemble.seeds]
        own = {
            "model.name": model,
            "training.seed": index,  # also of two networks: equal seeds would give both the same batches
            "training.sample": SPLITS[ensemble.split](index, ensemble.count),
        }
        config = config_at_once({**ensemble.settings, **own})
        if config.checkpoints.every_seconds == "auto":  # only the last one is used
            config = config.with_values({"checkpoints.every_seconds": LONGEST_SECONDS})
        if dataset is not None:
            config = complete_config(config, dataset.holding_out(config.evaluation.validation_examples))
        short = re.sub(r"[^\w.]+", "_", Path(user_code.short_name(model)).stem)
        members.append(EnsembleMember(index, f"{index}-{short}-seed{index}", config))
    return members


def preview(ensemble: Ensemble, at_once: int) -> Iterator[str]:
    """Yield a line for each member, then what all take. Raises UserError as `members_of`."""
    members = members_of(ensemble)
    for member in members:
        yield f"{member.name}: {member.config.training.sample} of the training examples"
    yield mode_of(ensemble.settings, (), "member")
    expected = topology.expected((member.config for member in members), min(at_once, len(members)))
    yield f"members: {len(members)}, {at_once} at once; memory expected: {expected}; nothing was started"


def run_ensemble(ensemble: Ensemble, output: Path, at_once: int) -> int:
    """Train the members that are not trained yet, and join all. Return the exit code.

    Args:
      output: the caller holds its lock (files/locks.py).
    Raises:
      UserError: a setting does not fit, `output` holds something else, or there is no data.
      RunFailed: a member could not be trained.
    """
    # Errors are found before any file is written.
    locks.check_unclaimed(output, PLAN, NOUN)
    members_of(ensemble)
    config = build_config(None, dict(ensemble.settings))
    dataset = resolve_data(config.data, notify=print_line)
    warn_of_generated(dataset, print_line)
    members = members_of(ensemble, dataset)
    locks.claim(output, PLAN, f"# on {dataset.name} ({dataset.kind})\n{dump_yaml(ensemble.content())}", NOUN)
    network.announce_isolation(config.cluster.isolation, output, print_line)
    print_line(mode_of(ensemble.settings, (), "member"))
    with StopRequests() as requests:
        code = train_members(members, output, Fleet(at_once, print_line), requests)
    if code:
        print_error(f"stopped before all members were trained; the same command goes on: {output}")
        return code
    _join(ensemble, members, dataset, output)
    return 0


def train_members(members: Sequence[EnsembleMember], output: Path, fleet: Fleet, requests: StopRequests) -> int:
    """Train until all members are, or until a stop is requested. Return the exit code. Raises RunFailed for a failure."""
    left = [member for member in members if not has_completed(member.root(output))]

    def start_next() -> bool:
        if not left:
            return False
        member = left.pop(0)
        fleet.start(Job(member.index, f"member {member.name}", member.root(output), member.config))
        print_line(f"member {member.name} begins ({member.config.training.sample} of the training examples)")
        return True

    def ended(one: EndedJob) -> None:
        print_line(f"{one.job.name} is {one.outcome}{f': {one.why}' if one.why else ''}")
        if one.outcome == "failed":
            raise RunFailed(f"{one.job.name} could not be trained: {one.why}")

    return train_at_once(fleet, requests, print_line, start_next=start_next, ended=ended)


def _join(ensemble: Ensemble, members: Sequence[EnsembleMember], dataset: PackedDataset, output: Path) -> None:
    """Write and print how good the members are, and save the model that averages them."""
    os.environ.update(environment.for_tensorflow(os.environ))
    with without_first_lines():
        from ps_cluster.tools.sweep import joining

    print_line(f"joining {len(members)} members, and scoring them on {dataset.test_examples:,} {dataset.spec.unit}")
    models = [joining.load_member(member, member.root(output), dataset) for member in members]
    scores = joining.score(models, dataset)
    joining.save_joined(joining.joined(models, dataset), output / MODEL)
    field = OBJECTIVES[dataset.spec.objective].field
    table = joining.ScoreTable(tuple(member.name for member in members), tuple(scores), field)
    table.write(output / SCORES, ensemble, members, dataset=dataset.name)
    write_ensemble_page(output, ensemble, table, dataset)
    console = make_console()
    table.print_to(console)
    console.print(f"one model: {output / MODEL}", soft_wrap=True)
    console.print(f"the page:  {output / PAGE}", soft_wrap=True)


def write_ensemble_page(output: Path, ensemble: Ensemble, table: ScoreTable, dataset: PackedDataset) -> None:
    """Write the page of an ensemble whole: each member, their mean and the ensemble on the test set."""
    settings = ", ".join(f"{key}={value}" for key, value in ensemble.settings.items())
    page = rendered(
        __package__,
        "ensemble.html",
        is_generated=dataset.kind == "synthetic",
        unit=dataset.spec.unit,
        headline=table.headline,
        headings=table.headings,
        rows=table.rows,
        overview={
            "members": f"{ensemble.count}: {ensemble.seeds} of each of {', '.join(ensemble.models)}",
            "training examples": f"{ensemble.split} of {dataset.train_examples:,} {dataset.spec.unit}",
            "data set": f"{dataset.name} ({dataset.kind}), tested on {dataset.test_examples:,} {dataset.spec.unit}",
            "all members have": settings,
        },
        model=output / MODEL,
        runs_command=f"{PROGRAM} runs {shlex.quote(str(output / FOLDER))}",
    )
    write_whole(output / PAGE, page)
