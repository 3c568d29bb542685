"""Wrong parts at the joints of the package. `make lint` shows that mypy finds each of them.

mypy reports a `type: ignore` that silences nothing. So this file passes only while each line below is an error.
"""

from pathlib import Path
from typing import Any

import ps_cluster
from ps_cluster.cli.command_line import OUTPUT, option
from ps_cluster.cli.options import config_options
from ps_cluster.config import RunConfig
from ps_cluster.config.datasets import Contents, DataSet, DataSettings
from ps_cluster.config.equations import Slots, UpdateParts
from ps_cluster.config.keras_schedules import KerasSettings
from ps_cluster.config.modes import Mode
from ps_cluster.config.networks import Network, NetworkSettings
from ps_cluster.config.objectives import ExampleSpec, Objective
from ps_cluster.config.optimizer_rules import OptimizerRule, RuleSettings
from ps_cluster.config.schedules import Schedule, ScheduleSettings
from ps_cluster.config.sections import NETWORK
from ps_cluster.config.staleness_methods import StalenessMethod, StalenessSettings
from ps_cluster.data.table_sets import TableSettings
from ps_cluster.models.heads import ObjectiveHead
from ps_cluster.models.networks.mlp import MlpSettings
from ps_cluster.server.shard import ParameterShard
from ps_cluster.server.staleness.correction import Correction
from ps_cluster.server.staleness.drop import DropCorrection
from ps_cluster.server.update_rules.adagrad import AdagradRows
from ps_cluster.server.update_rules.adam import AdamUpdate
from ps_cluster.server.update_rules.momentum import MomentumSettings
from ps_cluster.server.update_rules.rule import UpdateRule
from ps_cluster.training.modes.base import DefaultMode

wrong_choice: Mode | None = NETWORK.chosen_in({})  # type: ignore[assignment]


class WrongTrainer(DefaultMode):
    def train(self, job: RunConfig) -> None:  # type: ignore[override]
        """Take a configuration, where a `TrainingJob` is given."""


class WrongDispatch(DefaultMode):
    def dispatch(self, store: ParameterShard, compute: Any, config: RunConfig, *, repeats: bool) -> Any:  # type: ignore[override]
        """Take a shard, where a `ParameterStore` is given."""


class WrongShard(DefaultMode):
    shard = UpdateRule  # type: ignore[assignment]
    step_source = ParameterShard  # type: ignore[assignment]


class WrongRule(OptimizerRule[RuleSettings]):
    update = Correction  # type: ignore[assignment]


class WrongEquation(OptimizerRule[RuleSettings]):
    def equation(self, settings: RuleSettings, parts: UpdateParts) -> Slots:
        """Read a setting that the section of this rule does not have."""
        return {"weights": settings.beta_2 * parts.gradient}  # type: ignore[attr-defined]


class WrongMethod(StalenessMethod[StalenessSettings]):
    correction = UpdateRule  # type: ignore[assignment]


class OfAnotherRule(OptimizerRule[MomentumSettings]):
    update = AdamUpdate  # type: ignore[assignment]
    row_update = AdagradRows  # type: ignore[assignment]


class OfAnotherMethod(StalenessMethod[StalenessSettings]):
    correction = DropCorrection  # type: ignore[assignment]


class OfAnotherSchedule(Schedule[ScheduleSettings]):
    def after_warmup(self, settings: KerasSettings, past: Any) -> Any:  # type: ignore[override]
        """Take the settings of another schedule."""


class OfAnotherNetwork(Network[NetworkSettings]):
    def build(self, examples: ExampleSpec, settings: MlpSettings) -> Any:  # type: ignore[override]
        """Take the settings of another network."""


class OfAnotherDataSet(DataSet[DataSettings]):
    def read(self, source: Path | None, settings: TableSettings) -> Contents:  # type: ignore[override]
        """Take the settings of another data set."""
        raise NotImplementedError


class WrongHead(Objective):
    def head(self) -> type[Correction[StalenessSettings]]:  # type: ignore[override]
        """Return a correction, where a head is expected."""
        return Correction

    def results(self) -> type[ObjectiveHead]:  # type: ignore[override]
        """Return a judge, where an analysis is expected."""
        return ObjectiveHead


@option("--name", grop=OUTPUT)  # type: ignore[call-arg]
def misspelt_argument_of_an_option(name: str) -> None:
    """Put the option into a group."""


@config_options("--mode")  # type: ignore[arg-type]
def no_place_for_settings(name: str) -> None:
    """Take no settings, where the given settings are passed."""


def wrong_keywords() -> None:
    """Call the Python API with keywords that it does not have, or with values of other types. No test runs this."""
    ps_cluster.train(wokers=3)  # type: ignore[call-arg]
    ps_cluster.train(workers="3")  # type: ignore[arg-type]
    ps_cluster.train(gpus="all")  # type: ignore[arg-type]
    ps_cluster.fit(None, wokers=3)  # type: ignore[call-arg]
    ps_cluster.compare(wokers=3)  # type: ignore[call-arg]
    ps_cluster.compare(seed=3)  # type: ignore[call-arg]
    ps_cluster.compare(batches=["same"])  # type: ignore[list-item]
