"""Asynchronous training whose parameter servers are lost for good when they die once."""

from ps_cluster.config.modes import ON_DEATH, PS, Mode, OnDeath


class Impatient(Mode):
    on_death = {**ON_DEATH, PS: OnDeath(restarts=0, whole_cluster=True, dispensable=True)}
