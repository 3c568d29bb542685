"""Mode elastic, whose parameter servers are lost for good when they die once."""

from ps_cluster.config.tasks import ON_DEATH, PS, OnDeath
from ps_cluster.training.modes.elastic import Elastic


class Impatient(Elastic):
    on_death = {**ON_DEATH, PS: OnDeath(restarts=0, whole_cluster=True, dispensable=True)}
