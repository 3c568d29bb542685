"""Read and validate the configuration of a run. This package does not import TensorFlow."""

from ps_cluster.config.changes import ChangedSetting, changed, distinguishing_settings, rate_origin
from ps_cluster.config.merging import Resolved, build_config, load_config, resolve
from ps_cluster.config.recipe import has_rates, uses_found_rates
from ps_cluster.config.schema import (
    LONGEST_SECONDS,
    MOST_PARAMETER_SERVERS,
    MOST_WORKERS,
    MOST_WORKERS_OF_A_CLUSTER,
    STEPS_IN_TIME,
    RunConfig,
    fitted,
)
from ps_cluster.config.user_settings import parse_assignment

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
    "distinguishing_settings",
    "fitted",
    "has_rates",
    "load_config",
    "parse_assignment",
    "rate_origin",
    "resolve",
    "uses_found_rates",
]
