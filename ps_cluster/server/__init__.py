"""A parameter server: its shard of the parameters, ledger, optimizer rules and methods against stale gradients."""
