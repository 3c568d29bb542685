"""The staleness methods, which `config.staleness_methods.METHODS` finds here: one file for each method or paper."""
