"""Build a user's own network once, in a separate process, before a run starts any other process.

The launcher does not import TensorFlow, so it can't build a network. It starts this file as a program, which does what
the chief will do: it calls the user's function that builds the network, checks the model, and tries the model's loss
and metrics on a batch of zeros. So the user reads about a mistake before the run directory has any content. The program
returns the optimizer of `compile()` as settings.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Literal

from pydantic import JsonValue

from ps_cluster.config import RunConfig
from ps_cluster.config.networks import NETWORKS
from ps_cluster.config.objectives import OBJECTIVES
from ps_cluster.config.optimizer_rules import RULES, WAYS_TO_CLIP
from ps_cluster.config.schedules import CONSTANT
from ps_cluster.config.schema import fitted
from ps_cluster.config.setting_types import COMPILED, PathFromText
from ps_cluster.data.packed import PackedDataset, load_packed
from ps_cluster.errors import UserError
from ps_cluster.files.values import one_line
from ps_cluster.files.writing import write_whole
from ps_cluster.notices import Notify, ignore
from ps_cluster.process_variables import TEMPORARY
from ps_cluster.runs.rows import Row, Text, Word
from ps_cluster.server.update_rules.adam import Adam
from ps_cluster.system import environment
from ps_cluster.system.child_process import how_ended
from ps_cluster.system.lifetime import die_with_launcher

WITHIN_S = 120.0  # each task builds the network again, and training has to begin within `RunLimits.startup_s`
# The section `optimizer` of a network that was not compiled.
WITHOUT_COMPILE: dict[str, JsonValue] = {"rule": Adam.name, "learning_rate": Adam.usual_rate, "weight_decay": 0.0}

_known: dict[tuple[str, str], NetworkFacts] = {}  # the facts found so far; a sweep asks for them in each trial


class NetworkFacts(Row):
    """Facts about a network that was built once.

    Attributes:
      error: why the network can't be trained; None if it can.
      optimizer: the settings of the section `optimizer` that compile() asks for; empty without a compile().
      schedule: the settings of the section `schedule` for that optimizer; empty if its learning rate is constant.
      why_no_rule: why `optimizer` is empty although the network was compiled.
      why_needs_code: why Keras can't load the best model without the user's code; None if it can.
      interpretation: how the network's outputs or the targets are interpreted, in words, if there is a choice.
      metrics: the metrics that are scored besides accuracy, error and loss, by name: "max" if larger values of the
        metric are better, "min" if smaller values are better, None if that is unknown. If `metrics` itself is None, the
        further metrics of the objective are scored.
    """

    error: Text | None = None
    optimizer: dict[str, JsonValue] = {}
    schedule: dict[str, JsonValue] = {}
    why_no_rule: Text | None = None
    why_needs_code: Text | None = None
    interpretation: Text = ""
    metrics: dict[Word, Literal["max", "min"] | None] | None = None


def check_network(config: RunConfig, dataset: PackedDataset, notify: Notify = ignore) -> NetworkFacts:
    """Return the facts about a network. A network of this package is not built: only `interpretation` is set.

    A user's network is built at most once in a process, so a second call costs nothing. `notify` gets a line before a
    network is built, because the import of TensorFlow takes some seconds. Raises UserError if the network can't be
    built, can't be trained here, or is not built within `WITHIN_S`.
    """
    if config.model.name in NETWORKS.own:
        return NetworkFacts(interpretation=OBJECTIVES[dataset.spec.objective].interpretation)
    key = _key(config, dataset)
    if key not in _known:
        notify(f"building the network '{config.model.name}' once, to check it")
        facts = _ask(config, dataset)
        if facts.error:
            raise UserError(facts.error)
        _known[key] = facts
    return _known[key]


def described_objective(dataset: PackedDataset, facts: NetworkFacts) -> str:
    """Return in words what the network has to predict, and how the outputs or the targets are interpreted."""
    described = OBJECTIVES[dataset.spec.objective].described(dataset.spec.outputs)
    return ", ".join(filter(None, (described, facts.interpretation)))


def _key(config: RunConfig, dataset: PackedDataset) -> tuple[str, str]:
    """Return, as text, everything on which a network depends, except its precision, which is chosen later."""
    network = config.model.model_dump_json(exclude={"precision"})
    return f"{network} {config.training.class_weights}", str(dataset.directory)


def with_rule_of_compile(config: RunConfig, facts: NetworkFacts) -> RunConfig:
    """Return `config` with the optimizer rule "compiled" replaced by the optimizer of the network's compile().

    If `optimizer.rule` is not "compiled", return `config` unchanged. A `schedule.kind` "compiled" becomes the schedule
    of that optimizer, and a `staleness.method` "compiled" becomes the usual method of the new rule. Other settings that
    the user has set are kept. Raises UserError if no rule is equivalent to the optimizer of compile(), or if the mode
    can't clip gradients as that optimizer does.
    """
    if config.optimizer.rule != COMPILED:
        return config
    if facts.why_no_rule:
        raise UserError(f"model.name: '{config.model.name}': {facts.why_no_rule}")
    settings = config.optimizer.model_dump(mode="json", exclude={"rule"}, exclude_none=True)
    compiled = facts.optimizer or WITHOUT_COMPILE
    if settings.keys() & WAYS_TO_CLIP:  # only one way to clip may be set, and that of the user wins
        compiled = {name: value for name, value in compiled.items() if name not in WAYS_TO_CLIP}
    changes = {f"optimizer.{name}": value for name, value in (compiled | settings).items()}
    if config.schedule.kind == COMPILED:
        changes |= {"schedule.kind": CONSTANT} | {f"schedule.{name}": value for name, value in facts.schedule.items()}
    if config.staleness.method == COMPILED:
        rule = RULES[str(compiled["rule"])]
        changes["staleness.method"] = rule.staleness_method_of_compile or rule.staleness_method
    try:
        return config.with_values(changes)
    except UserError as error:
        raise UserError(
            f"model.name: '{config.model.name}': the optimizer of its compile() can't be used with the other settings: "
            f"{error}"
        ) from error


class CheckRequest(Row):
    """The request to the process that builds a network: a configuration, and the folder of its packed data set."""

    config: dict[str, JsonValue]
    dataset: PathFromText

    @classmethod
    def of(cls, config: RunConfig, dataset: PackedDataset) -> CheckRequest:
        return cls(config=config.model_dump(mode="json"), dataset=dataset.directory)

    def to_json(self) -> str:
        """Return this request as JSON. Unlike pydantic, `json` can write file names that are not valid Unicode."""
        return json.dumps(self.model_dump(mode="json"))

    @classmethod
    def from_json(cls, text: str) -> CheckRequest:
        return cls.model_validate(json.loads(text))


def _ask(config: RunConfig, dataset: PackedDataset) -> NetworkFacts:
    question = CheckRequest.of(config, dataset).to_json()
    with tempfile.TemporaryDirectory(prefix="ps-cluster-check-") as temporary:
        answer = Path(temporary, "answer.json")
        try:
            ended = subprocess.run(
                (sys.executable, "-m", __name__, str(answer)), input=question.encode(), cwd="/",
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=WITHIN_S,
                env=environment.for_child({**os.environ, TEMPORARY: temporary}),
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            message = f"it was not built within {WITHIN_S:.0f} s: make the function that builds it do less"
            raise UserError(f"model.name: '{config.model.name}': {message}") from None
        if answer.exists():
            return NetworkFacts.model_validate_json(answer.read_bytes())
    last = one_line(ended.stdout.decode(errors="replace").rstrip().rpartition("\n")[2], 300)
    message = f"the process that built it ended with {how_ended(ended.returncode)}: {last or 'no output'}"
    raise UserError(f"model.name: '{config.model.name}': {message}")


def _answer(question: CheckRequest) -> NetworkFacts:
    from ps_cluster.quiet_import import import_tensorflow

    import_tensorflow()
    from ps_cluster.models.best import check_saving
    from ps_cluster.models.build import build
    from ps_cluster.models.compiled import CompiledMetrics
    from ps_cluster.models.compiled_heads import head_of
    from ps_cluster.models.compiled_optimizer import optimizer_settings, schedule_settings
    from ps_cluster.models.objective_metrics import metric_directions

    try:
        config = fitted(question.config)
        dataset = load_packed(question.dataset, check_targets=False)
        model = build(config.model, dataset.spec, seed=config.training.seed)
    except UserError as error:
        return NetworkFacts(error=str(error))
    head = head_of(dataset.spec, model=model)
    metrics = metric_directions(head, CompiledMetrics(model))
    try:
        why_needs_code = check_saving(model, config.model, dataset.spec)
    except ValueError as error:
        return NetworkFacts(error=f"model.name: '{config.model.name}': {error}")
    facts = partial(NetworkFacts, why_needs_code=why_needs_code, interpretation=head.interpretation, metrics=metrics)
    try:
        return facts(optimizer=optimizer_settings(model), schedule=schedule_settings(model))
    except ValueError as error:
        return facts(why_no_rule=str(error))


if __name__ == "__main__":
    die_with_launcher()
    facts = _answer(CheckRequest.from_json(sys.stdin.read()))
    write_whole(Path(sys.argv[1]), facts.model_dump_json())
