"""The commands, one module each. Importing one is quick; a command imports heavy modules when it runs."""
