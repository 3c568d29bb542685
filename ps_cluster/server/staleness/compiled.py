"""The staleness method named `compiled`: a placeholder for the default method of the optimizer in compile()."""

from __future__ import annotations

from ps_cluster.config.setting_types import COMPILED
from ps_cluster.server.staleness.none import NoneMethod


class Compiled(NoneMethod):
    """A placeholder, which another method replaces before any process starts.

    See `launch.config_completion.complete_config`.
    """

    name = COMPILED
    description = "the default method for the optimizer in the network's compile()"
    suits_local_steps = False
