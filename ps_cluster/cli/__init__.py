"""The commands, one module each. These modules import quickly: a command imports heavy modules only when it runs."""
