"""Configuration: one definition of every key, and the sources that set them.

This package knows nothing of the network, the registry or Spark; it turns texts into a frozen :class:`Config`.
"""

from jobpipe.config.definitions.config_model import Config
from jobpipe.config.definitions.definition import (
    ConfigProblem,
    Definition,
    Key,
    Option,
    config_error,
    masked_repr,
    unknown,
)
from jobpipe.config.definitions.key_names import suggest
from jobpipe.config.reading.config_checks import check_acks
from jobpipe.config.reading.config_loader import (
    ResolvedConfig,
    config_from_dict,
    load,
    load_given,
    node_settings,
    resolve,
)
from jobpipe.config.show_config import Row, explain, find_key, keys, names, render

__all__ = [
    "Config",
    "ConfigProblem",
    "Definition",
    "Key",
    "Option",
    "ResolvedConfig",
    "Row",
    "check_acks",
    "config_error",
    "config_from_dict",
    "explain",
    "find_key",
    "keys",
    "load",
    "load_given",
    "masked_repr",
    "names",
    "node_settings",
    "render",
    "resolve",
    "suggest",
    "unknown",
]
