"""A parameter server: its shard of the parameters, its ledger, optimizer rules, and methods against stale gradients."""
