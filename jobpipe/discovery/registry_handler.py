"""Opens the RegisterServerHandler that the configuration names."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager

from jobpipe.config import Config
from jobpipe.config.home_folder import make_home
from jobpipe.errors import ConfigError, RegistryUnavailable, TopicOwned
from jobpipe_registry import registry_errors as registry_errors
from jobpipe_registry.embedded.embedded_files import MAX_CONNECTIONS
from jobpipe_registry.embedded.embedded_zookeeper import EmbeddedZooKeeper
from jobpipe_registry.handler import RegisterServerHandler


@contextmanager
def map_registry_errors() -> Iterator[None]:
    """Turn errors of the registry package into those of :mod:`jobpipe.errors`."""
    try:
        yield
    except registry_errors.TopicOwned as error:
        owner = error.owner
        raise TopicOwned(
            f"{error}", owner={"name": owner.name, "host": owner.host, "pid": owner.pid} if owner else None
        ) from error
    except registry_errors.Unavailable as error:
        raise RegistryUnavailable(str(error)) from error
    except (registry_errors.InvalidName, registry_errors.TooManyTopics) as error:
        raise ConfigError(str(error)) from error
    except registry_errors.BadOption as error:
        raise ConfigError(f"registry: {error}", key=f"jobpipe.registerserver.{error.option}") from error
    except registry_errors.RegistryError as error:
        raise RegistryUnavailable(f"{type(error).__name__}: {error}") from error


def handler_class(name: str) -> type[RegisterServerHandler]:
    """Return the class behind ``jobpipe.registerserver.handler``: ``zookeeper`` or ``package.module:Class``.

    Raises:
        ConfigError: it cannot be imported, or is no RegisterServerHandler.
    """
    if name == "zookeeper":
        from jobpipe_registry.zookeeper.zookeeper_handler import ZooKeeperRegisterServerHandler

        return ZooKeeperRegisterServerHandler
    module_name, _, class_name = name.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"jobpipe.registerserver.handler={name!r} cannot be loaded: {error}; expected zookeeper or "
            "package.module:Class",
            key="jobpipe.registerserver.handler",
        ) from error
    if not (isinstance(found, type) and issubclass(found, RegisterServerHandler)):
        raise ConfigError(
            f"jobpipe.registerserver.handler={name!r} is not a jobpipe_registry.handler.RegisterServerHandler",
            key="jobpipe.registerserver.handler",
        )
    return found


def open_handler(config: Config) -> RegisterServerHandler:
    """Return a started handler; the embedded ZooKeeper of this home is started first where it is asked for.

    Blocking, at most about ``registerserver.connect.timeout`` (plus the start of the embedded server). The caller
    owns the handler and must call its ``shutdown()``.

    Raises:
        RegistryUnavailable: nothing answered in time.
        ConfigError: the handler cannot be loaded, a file or package that its settings need is missing, or the folder of
            the embedded ZooKeeper cannot be made.
    """
    handler = handler_class(config.registry_handler)()
    if config.embedded:
        make_home(config.home)
    with map_registry_errors():
        where = EmbeddedZooKeeper(config.home).options() if config.embedded else {"connect": config.registry_connect}
        try:
            handler.start({**where, **_options(config)})
        except registry_errors.Unavailable as error:
            if config.embedded and EmbeddedZooKeeper(config.home).is_full():
                raise registry_errors.Unavailable(
                    error.hosts,
                    f"the embedded ZooKeeper is full, with {MAX_CONNECTIONS} connections, one of each job and driver. "
                    "Use a ZooKeeper of your own: set jobpipe.registerserver.connect (docs/deploy.md)",
                ) from error
            raise
    return handler


def _options(config: Config) -> dict[str, str]:
    """Return a handler's options, without what the embedded ZooKeeper says of itself; a password may be in them."""
    values: dict[str, object] = {
        "topic.storage": config.namespace,
        "session.timeout": config.registry_session_timeout,
        "connect.timeout": config.registry_connect_timeout,
        "acl": config.registry_acl,
    }
    identity: dict[str, object] = {
        "sasl.mechanism": config.registry_sasl_mechanism,
        "sasl.username": config.registry_sasl_username,
        "sasl.password": None if config.registry_sasl_password is None else config.registry_sasl_password.reveal(),
        "sasl.principal": config.registry_sasl_principal,
        "sasl.service": config.registry_sasl_service,
        "ssl.enabled": "true" if config.registry_ssl_enabled else "false",
        "ssl.ca": config.registry_ssl_ca,
        "ssl.cert": config.registry_ssl_cert,
        "ssl.key": config.registry_ssl_key,
    }
    if not config.embedded:
        values |= identity
    return {name: str(value) for name, value in values.items() if value is not None}
