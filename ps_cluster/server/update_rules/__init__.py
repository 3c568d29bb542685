"""The optimizer rules, one file for each. `config.optimizer_rules.RULES` finds them in this folder."""
