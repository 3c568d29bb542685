"""Asynchronous training whose parameter servers are lost for good when they die once."""

from ps_cluster.catalogue.modes import Mode
from ps_cluster.catalogue.task_types import ON_DEATH, PS, OnDeath


class Impatient(Mode):
    on_death = {**ON_DEATH, PS: OnDeath(restarts=0, whole_cluster=True, dispensable=True)}
