"""Train the members of an ensemble, several at once, and join them into one model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from ps_cluster.config import build_config
from ps_cluster.data.packed import PackedDataset
from ps_cluster.errors import RunFailed
from ps_cluster.files import claimed_folders
from ps_cluster.files.yaml_files import dump_yaml
from ps_cluster.launch.config_completion import resolve_data
from ps_cluster.quiet_import import without_first_lines
from ps_cluster.report.run_state import warn_of_generated
from ps_cluster.report.terminal import make_console, print_error, print_line
from ps_cluster.system.environment import prepare_for_tensorflow
from ps_cluster.system.private_network import announce_isolation
from ps_cluster.system.stop_signals import StopRequests
from ps_cluster.tools.fleet import EndedJob, Fleet, Job, has_completed, train_at_once
from ps_cluster.tools.sweep.ensemble_plan import FOLDER, Ensemble, members_of
from ps_cluster.tools.sweep.sweep_plan import mode_of

PLAN, NOUN = "ensemble.yaml", "ensemble"
MODEL, SCORES = "ensemble.keras", "ensemble.json"


def run_ensemble(ensemble: Ensemble, output: Path, at_once: int) -> int:
    """Train the members that are not trained yet, and join all members. Return the exit code.

    Args:
      output: the folder of the ensemble; the caller holds its lock (files/locks.py).
    Raises:
      UserError: a setting is invalid, `output` has other files or another ensemble, or there is no data.
      RunFailed: a member could not be trained.
    """
    # Errors are found before any file is written.
    claimed_folders.check_unclaimed(output, PLAN, NOUN)
    members_of(ensemble, output)
    config = build_config(None, dict(ensemble.settings))
    dataset = resolve_data(config.data, notify=print_line)
    warn_of_generated(dataset, print_line)
    members = members_of(ensemble, output, dataset)
    claimed_folders.claim(output, PLAN, f"# on {dataset.name} ({dataset.kind})\n{dump_yaml(asdict(ensemble))}", NOUN)
    announce_isolation(config.cluster.isolation, output, print_line)
    print_line(mode_of(ensemble.settings, (), "member"))
    with StopRequests() as requests:
        code = train_members(members, Fleet(at_once, print_line), requests)
    if code:
        print_error(f"stopped before all members were trained; run the same command again to continue: {output}")
        return code
    _join(ensemble, members, dataset, output)
    return 0


def train_members(members: Sequence[Job], fleet: Fleet, requests: StopRequests) -> int:
    """Train all members, until a stop is requested. Return the exit code. Raises RunFailed if a member fails."""
    left = [member for member in members if not has_completed(member.root)]

    def start_next() -> bool:
        if not left:
            return False
        member = left.pop(0)
        fleet.start(member)
        print_line(f"{member.name} begins (training examples: {member.config.training.sample})")
        return True

    def ended(one: EndedJob) -> None:
        print_line(f"{one.job.name}: {one.outcome}{f': {one.why}' if one.why else ''}")
        if one.outcome == "failed":
            raise RunFailed(f"{one.job.name} could not be trained: {one.why}")

    return train_at_once(fleet, requests, print_line, start_next=start_next, ended=ended)


def _join(ensemble: Ensemble, members: Sequence[Job], dataset: PackedDataset, output: Path) -> None:
    """Score the members and their mean prediction, write and print the scores, and save the model that averages."""
    prepare_for_tensorflow()
    with without_first_lines():
        from ps_cluster.tools.sweep import joining

    print_line(f"joining {len(members)} members, and scoring them on {dataset.test_examples:,} {dataset.spec.unit}")
    models = [joining.load_member(member.config, member.root, dataset) for member in members]
    table = joining.score([member.root.name for member in members], models, dataset)
    joining.save_joined(joining.joined(models, dataset), output / MODEL)
    runs = [
        {
            "run": f"{FOLDER}/{member.root.name}",
            "model": member.config.model.name,
            "seed": member.config.training.seed,
            "sample": member.config.training.sample,
        }
        for member in members
    ]
    table.write(output / SCORES, {"schema": 1, "dataset": dataset.name, **asdict(ensemble)}, runs)
    console = make_console()
    table.print_to(console)
    console.print(f"one model: {output / MODEL}", soft_wrap=True)
