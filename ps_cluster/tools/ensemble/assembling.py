"""Train the members of an ensemble, several at once, then join them."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from ps_cluster.config import build_config
from ps_cluster.config.objectives import OBJECTIVES
from ps_cluster.data.packed import PackedDataset
from ps_cluster.errors import RunFailed
from ps_cluster.files import locks
from ps_cluster.files.yaml_files import dump_yaml
from ps_cluster.launch.local_run import resolve_data
from ps_cluster.quiet_import import without_first_lines
from ps_cluster.report.progress import warn_of_generated
from ps_cluster.report.terminal import make_console, print_error, print_line
from ps_cluster.system import environment, isolation
from ps_cluster.system.environment import StopRequests
from ps_cluster.tools.ensemble.plan import Ensemble, Member, members_of
from ps_cluster.tools.fleet import Fleet, Job, Stopping, has_completed

PLAN, NOUN = "ensemble.yaml", "ensemble"
MODEL, SCORES, PAGE, MEMBERS = "ensemble.keras", "ensemble.json", "ensemble.html", "members"
LOOK_EVERY_S = 0.5


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
    isolation.announce(config.cluster.isolation, output, print_line)
    with StopRequests() as requests:
        code = train_members(members, output, Fleet(at_once, print_line), requests)
    if code:
        print_error(f"stopped before all members were trained; the same command goes on: {output}")
        return code
    _join(ensemble, members, dataset, output)
    return 0


def train_members(members: Sequence[Member], output: Path, fleet: Fleet, requests: StopRequests) -> int:
    """Train until all members are, or until a stop is requested. Return the exit code. Raises RunFailed for a failure."""
    stopping = Stopping(fleet, requests, print_line)
    roots = {member.index: _root(output, member) for member in members}
    left = [member for member in members if not has_completed(roots[member.index])]
    try:
        while True:
            for ended in fleet.poll():
                print_line(f"{ended.job.name} is {ended.outcome}{f': {ended.why}' if ended.why else ''}")
                if ended.outcome == "failed":
                    raise RunFailed(f"{ended.job.name} could not be trained: {ended.why}")
            while left and fleet.has_room and not stopping.begun:
                member = left.pop(0)
                fleet.start(Job(member.index, f"member {member.name}", roots[member.index], member.config))
                print_line(f"member {member.name} begins ({member.config.training.sample} of the training examples)")
            if not fleet.jobs or stopping.is_over():
                return stopping.exit_code
            time.sleep(LOOK_EVERY_S)
    finally:
        fleet.end_all()


def _root(output: Path, member: Member) -> Path:
    return Path(os.path.realpath(output / MEMBERS / member.name))


def _join(ensemble: Ensemble, members: Sequence[Member], dataset: PackedDataset, output: Path) -> None:
    """Write and print how good the members are, and save the model that averages them."""
    os.environ.update(environment.for_tensorflow(os.environ))
    with without_first_lines():
        from ps_cluster.tools.ensemble import joining
    from ps_cluster.tools.ensemble.joining import ScoreTable, write_ensemble_page, write_scores

    print_line(f"joining {len(members)} members, and scoring them on {dataset.test_examples:,} {dataset.spec.unit}")
    models = [joining.load_member(member, _root(output, member), dataset) for member in members]
    scores = joining.score(models, dataset)
    joining.save_joined(joining.joined(models, dataset), output / MODEL)
    field = OBJECTIVES[dataset.spec.objective].field
    write_scores(output / SCORES, ensemble, members, scores, field=field, dataset=dataset.name)
    table = ScoreTable(tuple(member.name for member in members), tuple(scores), field)
    write_ensemble_page(output / PAGE, ensemble, table, dataset, model=output / MODEL, members=output / MEMBERS)
    console = make_console()
    table.print_to(console)
    console.print(f"one model: {output / MODEL}", soft_wrap=True)
    console.print(f"the page:  {output / PAGE}", soft_wrap=True)
