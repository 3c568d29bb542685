"""The optimizer rules, a file for each. `config.optimizer_rules.RULES` finds them here by itself."""
