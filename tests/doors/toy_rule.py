"""An optimizer rule that the package knows nothing of: it sets every weight to one value."""

from ps_cluster.config.optimizer_rules import OptimizerRule, RuleSettings
from ps_cluster.server.update_rules.rule import UpdateRule


class Settings(RuleSettings):
    value: float = 0.25


class Levelling(UpdateRule):
    def change(self, gradient):
        return self.weights.assign(0 * gradient.values + self.settings.value, read_value=False)


class Toy(OptimizerRule):
    Settings = Settings
    update = Levelling

    def equation(self, settings, parts):
        """Return the same in numpy, so that the proof can compute updates again."""
        return {"weights": 0 * parts.gradient + settings.value}
