"""Mode elastic, whose parameter servers are lost for good when they die once."""

from dataclasses import replace

from ps_cluster.config.tasks import ON_DEATH, PS, OnDeath
from ps_cluster.training.modes.elastic import Elastic


class Impatient(Elastic):
    cluster = replace(
        Elastic.cluster, on_death={**ON_DEATH, PS: OnDeath(restarts=0, restarts_whole_cluster=True, dispensable=True)}
    )
