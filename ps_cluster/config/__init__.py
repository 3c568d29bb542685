"""The configuration of a run: everything that the user asked for, typed and validated in one place. No TensorFlow."""

from ps_cluster.config.layers import (
    ChangedSetting,
    Resolved,
    build_config,
    changed,
    has_rates,
    load_config,
    parse_assignment,
    rate_origin,
    rates_found,
    resolve,
    telling,
)
from ps_cluster.config.schema import (
    LONGEST_SECONDS,
    MOST_PARAMETER_SERVERS,
    MOST_WORKERS,
    MOST_WORKERS_OF_A_CLUSTER,
    STEPS_IN_TIME,
    RunConfig,
    fitted,
)

__all__ = [
    "LONGEST_SECONDS",
    "MOST_PARAMETER_SERVERS",
    "MOST_WORKERS",
    "MOST_WORKERS_OF_A_CLUSTER",
    "STEPS_IN_TIME",
    "ChangedSetting",
    "Resolved",
    "RunConfig",
    "build_config",
    "changed",
    "fitted",
    "has_rates",
    "load_config",
    "parse_assignment",
    "rate_origin",
    "rates_found",
    "resolve",
    "telling",
]
