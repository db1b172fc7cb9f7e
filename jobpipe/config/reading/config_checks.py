"""Checks of values that are right each by itself and wrong together."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from jobpipe.config.definitions.config_model import KEYS, Config
from jobpipe.config.definitions.definition import ConfigProblem, config_error
from jobpipe.config.reading.registry_checks import REGISTRY_CHECKS

MAKE_CERTIFICATES = """\
certificates with it: jobs on several hosts meet at this registry, so each must prove who it is. \
If the address is right (`jobpipe doctor` tries it), two commands are enough, with the same files on every host:
    jobpipe certs init --dir certs
    export JOBPIPE__SSL__CA="$PWD/certs/ca.crt" JOBPIPE__SSL__CERT="$PWD/certs/node.crt" \
JOBPIPE__SSL__KEY="$PWD/certs/node.key\""""


@dataclass(frozen=True)
class _Check:
    """Blames ``blamed`` with the phrase that ``find`` returns; None means that all is well.

    The check is left out while one of the attributes it ``reads`` has a wrong value of its own.
    """

    blamed: str
    reads: tuple[str, ...]
    find: Callable[[Config], str | None]


def check_together(config: Config, sources: Mapping[str, str], *, ignore: Collection[str] = ()) -> list[ConfigProblem]:
    """Return the problems between values.

    Args:
        sources: where each key, by its full name, was set.
        ignore: attributes whose own values are wrong.
    """
    by_attribute = {about.attribute: about for about in KEYS}
    problems = []
    for check in _CHECKS:
        if any(attribute in ignore for attribute in (check.blamed, *check.reads)):
            continue
        if (expected := check.find(config)) is not None:
            about = by_attribute[check.blamed]
            value = about.show(getattr(config, check.blamed))
            problems.append(ConfigProblem(sources[about.name], about.name, value, expected))
    return problems


def check_files(config: Config, sources: Mapping[str, str]) -> list[ConfigProblem]:
    """Return a problem for each certificate, key, CA or list in use that is not there, or cannot be read, on this host.

    Loading a configuration does not look: another host may have the files.
    """
    used = [name for name, on in _FILE_KEYS.items() if on(config)]
    problems = []
    for about in KEYS:
        if about.attribute not in used or (path := getattr(config, about.attribute)) is None:
            continue
        try:
            with path.open("rb"):
                pass
        except OSError as error:
            expected = f"a readable file ({error.strerror})"
            problems.append(ConfigProblem(sources[about.name], about.name, about.show(path), expected))
    return problems


def depends_on(attribute: str) -> tuple[str, ...]:
    """Return the names of the other keys that decide whether a value of this one is right."""
    names = {about.attribute: about.name for about in KEYS}
    reads = (name for check in _CHECKS if check.blamed == attribute for name in check.reads)
    return tuple(dict.fromkeys(names[name] for name in reads if name != attribute))


def check_acks(config: Config, required_subscribers: Iterable[str] | None, min_subscribers: int | None) -> None:
    """Check that ``acks=all`` has a subscriber to wait for; the sink knows its subscribers, this package does not.

    Raises:
        ConfigError: ``acks=all`` with neither required nor a least number of subscribers.
    """
    if config.acks == "all" and not list(required_subscribers or ()) and not min_subscribers:
        expected = "stored, or required_subscribers or min_subscribers given to the sink"
        raise config_error([ConfigProblem("option", "jobpipe.acks", "all", expected)])


def plaintext_beyond_loopback(config: Config) -> bool:
    """Whether links would leave this host without encryption."""
    return not config.tls and not _listens_on_loopback(config)


def _listens_on_loopback(config: Config) -> bool:
    if config.subnet is not None:
        return ipaddress.ip_network(config.subnet).is_loopback
    return config.embedded


def _acks_and_drop(config: Config) -> str | None:
    if config.acks == "all" and config.on_full == "drop_oldest":
        return "stored while jobpipe.spool.on_full is drop_oldest: a dropped batch can never be committed by all"
    return None


def _cap_holds_a_segment(config: Config) -> str | None:
    if config.spool_max_bytes < config.segment_max_bytes:
        return f"at least jobpipe.segment.max_bytes ({config.segment_max_bytes} bytes), or a smaller segment.max_bytes"
    return None


def _shared_folder(config: Config) -> str | None:
    if config.spool_placement == "shared" and config.spool_dir == config.home / "spool":
        return "a folder that every host of the driver reaches, since jobpipe.spool.placement is shared"
    return None


def _lost_before_the_wait_is_over(config: Config) -> str | None:
    waits = config.spool_placement == "host" and config.acks == "all"
    if waits and config.hostserver_lost_after >= config.acks_timeout:
        return (
            f"less than jobpipe.acks.timeout ({config.acks_timeout:g} s): otherwise acks=all gives up before a host "
            "counts as lost, at each start, and a batch that was lost with it is never written again"
        )
    return None


def _certificates(config: Config) -> str | None:
    lacking = config.tls and not config.embedded and all(getattr(config, name) is None for name in _FILES)
    return MAKE_CERTIFICATES if lacking else None


def _certificate_file(attribute: str) -> Callable[[Config], str | None]:
    def find(config: Config) -> str | None:
        given = [name for name in _FILES if getattr(config, name) is not None]
        if not config.tls or getattr(config, attribute) is not None or not given:
            return None
        listed = " and ".join(name.replace("_", ".") for name in given)
        return (
            f"a file: ssl.ca, ssl.cert and ssl.key go together, and only {listed} was given; "
            "`jobpipe certs init --dir certs` makes all three"
        )

    return find


def _plaintext_said(config: Config) -> str | None:
    if plaintext_beyond_loopback(config) and not config.allow_plaintext:
        return (
            "true: encryption is switched off by jobpipe.ssl.enabled or security.ssl.enabled, and links leave loopback "
            "(jobpipe.sinkserver.subnet=127.0.0.0/8 keeps them there)"
        )
    return None


def _access_without_identities(config: Config) -> str | None:
    if config.access is not None and not config.tls:
        return (
            "null: encryption is switched off by jobpipe.ssl.enabled or security.ssl.enabled, and without certificates "
            "peers cannot be told apart"
        )
    return None


def _one_lineage(config: Config) -> str | None:
    if config.server_lineage_url is not None and config.server_lineage_file is not None:
        return "null, or no jobpipe.server.lineage.url: events go to one of both"
    return None


def _key_of_a_backend(config: Config) -> str | None:
    if config.server_lineage_api_key is not None and config.server_lineage_url is None:
        return "null, or jobpipe.server.lineage.url with it: it is the key of that"
    return None


_FILES = ("ssl_ca", "ssl_cert", "ssl_key")
_FILE_KEYS: dict[str, Callable[[Config], bool]] = {
    **dict.fromkeys((*_FILES, "ssl_crl"), lambda config: config.tls),
    "access": lambda config: True,
    **dict.fromkeys(
        ("registry_ssl_ca", "registry_ssl_cert", "registry_ssl_key"), lambda config: config.registry_ssl_enabled
    ),
}
"""Attributes that name a file, and when that is used."""
_TLS = ("ssl_enabled", "platform_ssl", "registry_connect")
_CHECKS = (
    _Check("acks", ("on_full",), _acks_and_drop),
    _Check("spool_dir", ("spool_placement", "home"), _shared_folder),
    _Check("hostserver_lost_after", ("spool_placement", "acks", "acks_timeout"), _lost_before_the_wait_is_over),
    _Check("spool_max_bytes", ("segment_max_bytes",), _cap_holds_a_segment),
    _Check("registry_connect", (*_TLS, *_FILES), _certificates),
    *(_Check(name, (*_TLS, *_FILES), _certificate_file(name)) for name in _FILES),
    _Check("allow_plaintext", (*_TLS, "subnet"), _plaintext_said),
    *(_Check(*check) for check in REGISTRY_CHECKS),
    _Check("access", ("ssl_enabled", "platform_ssl"), _access_without_identities),
    _Check("server_lineage_file", ("server_lineage_url",), _one_lineage),
    _Check("server_lineage_api_key", ("server_lineage_url",), _key_of_a_backend),
)
