"""The staleness methods, found by `config.staleness_methods.METHODS`. A file has one method, or all methods of a paper."""
