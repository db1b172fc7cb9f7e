"""The environment of the server's jobs: an allow-list, so that what only the server needs is not in its children's."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import fields

from jobpipe.config import Config
from jobpipe.config.types.secrets import KEY_VARIABLE, Secret

# fmt: off
_SYSTEM = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR", "TEMP", "TMP",
    "HOSTNAME", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "KRB5*",
    "JAVA_HOME", "JDK_HOME", "VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "PYTHONHOME", "PYTHONHASHSEED",
    "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE", "PYTHONUTF8", "PYTHONIOENCODING", "PYTHONWARNINGS", "SPARK_HOME",
    "SPARK_CONF_DIR", "SPARK_LOCAL_DIRS", "SPARK_LOCAL_IP", "SPARK_PUBLIC_DNS", "SPARK_DIST_CLASSPATH",
    "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "HADOOP_HOME", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "HIVE_CONF_DIR",
    "KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "JOBPIPE_CONFIG", "JOBPIPE__*",
)
# fmt: on


def kept_variables(environ: Mapping[str, str], config: Config) -> dict[str, str]:
    """Return the variables that jobs get.

    These are those of the system and of Spark, those that ``jobpipe.server.environment`` names, and those to which
    secrets of the configuration refer, but for those of the server alone: a job has the same configuration.
    """
    values = (getattr(config, each.name) for each in fields(config) if not each.name.startswith("server_"))
    secrets = [value.reference for value in values if isinstance(value, Secret)]
    secrets.append(environ.get(KEY_VARIABLE, ""))
    named = [reference.removeprefix("env:") for reference in secrets if reference.startswith("env:")]
    patterns = (*_SYSTEM, KEY_VARIABLE, *named, *(config.server_environment or ()))
    return {name: value for name, value in environ.items() if any(_fits(name, pattern) for pattern in patterns)}


def keep_for_children(environ: MutableMapping[str, str], config: Config) -> dict[str, str]:
    """Remove from this process's environment what jobs do not get; return what it was: the server's own secrets."""
    before = dict(environ)
    kept = kept_variables(before, config)
    for name in before.keys() - kept.keys():
        del environ[name]
    return before


def _fits(name: str, pattern: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern
