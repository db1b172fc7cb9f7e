"""Doctor's check of what strangers may do in the registry."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from jobpipe.cli.doctor.findings import Finding, fail, ok, warn
from jobpipe.errors import JobpipeError

if TYPE_CHECKING:
    from jobpipe.config import Config

CHECK = "registry ACL"
HOW = "see docs/registry-security.md"
_NAMED = 5  # nodes that a finding names


def permissions(config: Config) -> Iterator[Finding]:
    """The registry knows who we are, and its nodes are closed to strangers. For a registry that answers."""
    from jobpipe.discovery.registry_handler import map_registry_errors, open_handler
    from jobpipe_registry.zookeeper.zookeeper_handler import ZooKeeperRegisterServerHandler

    if config.embedded:
        return  # only who holds the home's certificate gets in
    if config.registry_sasl_mechanism == "DIGEST-MD5" and not config.registry_ssl_enabled:
        detail = "anyone who records the connection to the registry can guess the DIGEST-MD5 password offline"
        yield warn(CHECK, detail, f"set jobpipe.registerserver.ssl.enabled to true; {HOW}")
    if config.registry_sasl_mechanism is None and config.registry_ssl_cert is None and config.registry_acl is None:
        detail = "anyone who can reach the registry can change registrations"
        yield warn(CHECK, detail, f"set jobpipe.registerserver.sasl.mechanism, or registerserver.ssl.cert; {HOW}")
        return
    try:
        handler = open_handler(config)
        try:
            if not isinstance(handler, ZooKeeperRegisterServerHandler):
                return
            with map_registry_errors():
                found = handler.exposed_nodes()
        finally:
            handler.shutdown()
    except JobpipeError as error:
        yield fail(CHECK, error.message, "run `jobpipe doctor` again")
        return
    writable = [node.path for node in found if node.writable]
    readable = [node.path for node in found if not node.writable]
    remedy = "jobpipe registry acl lists them, jobpipe registry acl --fix closes them"
    if writable:
        yield fail(CHECK, f"strangers may change {_some(writable)}", remedy)
    if readable:
        yield warn(CHECK, f"strangers may read {_some(readable)}", remedy)
    if not found:
        yield ok(CHECK, f"all nodes of {config.namespace} are as jobpipe.registerserver.acl says")


def _some(paths: list[str]) -> str:
    more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
    return ", ".join(paths[:_NAMED]) + more
