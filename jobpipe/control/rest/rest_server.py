"""The REST interface of one core: identities by the address it listens on, authentication, the listener."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from jobpipe.config import Config
from jobpipe.control.control_service import Control
from jobpipe.control.page.browser_sessions import BrowserSessions, sign_in_path
from jobpipe.control.permissions import Right
from jobpipe.control.rest.auth_middleware import App, AuthMiddleware, Identities, Tokens
from jobpipe.control.rest.client_identities import AccessFile, Certificates, read_access_file
from jobpipe.control.rest.http_listener import HttpLimits, HttpListener
from jobpipe.control.server_files import ServerFiles, ServerState
from jobpipe.discovery.configured_tls import credentials
from jobpipe.errors import ConfigError
from jobpipe.jobs.allowed_paths import AllowedPaths
from jobpipe.metrics.metric_samples import LineageSample
from jobpipe.net.address import Endpoint, bind_in_range, is_loopback
from jobpipe.net.tls.certificates import describe
from jobpipe.net.tls.tls_context import Credentials
from jobpipe.net.tls.trusted_files import TrustedFiles


class GuardedServer:
    """Serves an application to those who may ask, from :meth:`start` to :meth:`close`.

    On loopback it takes the tokens of the home, without encryption. Elsewhere TLS and certificates, and no tokens.

    Args:
        app: made before anybody is let in.
        address: host, and the ports of which the first free one is taken.
        config: of the certificates, the access list and the home.
        key: of the configuration that names the ports, for messages.
        failed: called if it ends by itself, from a thread; :attr:`failure` says why.
        has_page: browsers may sign in.

    Attributes:
        url: of the server.
        sessions: of browsers; None where certificates say who asks, or without a page.
        token: the file of the token that may operate; None where certificates say who asks.

    Raises:
        ConfigError: beyond loopback without certificates, or these or the access list cannot be used.
        AddressError: no port is free.
    """

    def __init__(
        self,
        app: App,
        address: tuple[str, tuple[int, int]],
        config: Config,
        *,
        key: str,
        limits: HttpLimits | None = None,
        failed: Callable[[], None] = lambda: None,
        has_page: bool = False,
    ) -> None:
        host, ports = address
        credentials = None if is_loopback(host) else _certificates(config)
        files = ServerFiles.of(config.home)
        files.make()
        sock = bind_in_range(host, ports, key=key)
        try:
            port: int = sock.getsockname()[1]
            names = _names(host) if credentials is None else _served_names(credentials)
            scheme = "http" if credentials is None else "https"
            trusted = None if credentials is None else _trusted(config, credentials)
            identities: Identities
            self.token: Path | None
            self.sessions: BrowserSessions | None = None
            if trusted is None:
                tokens = files.tokens()
                self.sessions = BrowserSessions(tokens, port) if has_page else None
                identities = Tokens(tokens, self.sessions)
                self.token = files.token(Right.OPERATE)
            else:
                identities, self.token = Certificates(trusted), None
            self.url = f"{scheme}://{Endpoint(names[0], port)}"
            open_ui: App | None = None
            if has_page:
                from jobpipe.control.page.sign_in import SignIn  # needs Jinja2, which metrics alone do without

                open_ui = SignIn(self.sessions).app
            guarded_app = AuthMiddleware(
                app,
                identities,
                hosts=_hosts(names, port, scheme),
                scheme=scheme,
                open_ui=open_ui,
            )
            max_age = config.ssl_max_connection_age
            self._listener = HttpListener(guarded_app, sock, tls=trusted, limits=limits, max_age=max_age, failed=failed)
        except BaseException:
            sock.close()
            raise

    @property
    def failure(self) -> Exception | None:
        """Why it has ended by itself; None if it has not."""
        return self._listener.failure

    def start(self) -> None:
        """Serve from now on."""
        self._listener.start()

    def close(self) -> None:
        """End; answers that are on their way are sent."""
        self._listener.close()


class RestServer:
    """Serves REST from :meth:`start` to :meth:`close`; the lock of the home's server is held by the caller.

    Args:
        config_file: that the configuration was read from, for messages; None if there is none.
        failed: called if it ends by itself, from a thread; :attr:`failure` says why.
        lineage: returns how lineage events stand; None where no lineage is reported.

    Attributes:
        state: what ``server.json`` says.

    Raises:
        ConfigError, AddressError: as :class:`GuardedServer`.
    """

    def __init__(
        self,
        control: Control,
        config: Config,
        *,
        limits: HttpLimits | None = None,
        streams: int | None = None,
        config_file: Path | None = None,
        failed: Callable[[], None] = lambda: None,
        lineage: Callable[[], LineageSample] | None = None,
    ) -> None:
        from jobpipe.control.rest.rest_app import Api  # needs Jinja2

        self._files = ServerFiles.of(config.home)
        self._api = Api(control, AllowedPaths.of(config, config_file), namespace=config.namespace, streams=streams)
        try:
            self._server = GuardedServer(
                self._api.app,
                (config.server_host, config.server_port),
                config,
                key="jobpipe.server.port",
                limits=limits,
                failed=failed,
                has_page=True,
            )
        except BaseException:
            self._api.close()
            raise
        self._api.sign_in_with(self._server.sessions)
        self._api.report_lineage(lineage)
        self.state = ServerState.here(self._server.url, self._server.token)

    @property
    def failure(self) -> Exception | None:
        """Why it has ended by itself; None if it has not."""
        return self._server.failure

    def sign_in_path(self) -> str | None:
        """Return a path that signs one browser in, who may operate then; None where certificates say who asks."""
        sessions = self._server.sessions
        return None if sessions is None else sign_in_path(sessions.make_code(Right.OPERATE))

    def start(self) -> None:
        """Serve from now on, and say where."""
        self._server.start()
        self._files.announce(self.state)

    def close(self) -> None:
        """End; answers that are on their way are sent."""
        self._api.end_streams()
        self._server.close()
        self._api.close()


def _certificates(config: Config) -> Credentials:
    if not config.tls:
        raise ConfigError(
            f"jobpipe.server.host is {config.server_host}, and encryption is switched off by jobpipe.ssl.enabled or "
            "security.ssl.enabled: beyond loopback the control server accepts only TLS; switch it on, or listen on "
            "127.0.0.1",
            key="jobpipe.server.host",
        )
    if (files := credentials(config)) is None:
        raise ConfigError("beyond loopback the control server needs ssl.ca, ssl.cert and ssl.key", key="jobpipe.ssl.ca")
    return files


def _hosts(names: Iterable[str], port: int, scheme: str) -> set[str]:
    """Return what Host may be; clients leave the port out if it is the scheme's own."""
    found = {str(Endpoint(name, port)).lower() for name in names}
    if port == (443 if scheme == "https" else 80):
        found |= {host.removesuffix(f":{port}") for host in found}
    return found


def _names(host: str) -> list[str]:
    return list(dict.fromkeys((host, "127.0.0.1", "localhost", "::1")))


def _served_names(files: Credentials) -> list[str]:
    names = [name for name in describe(files.cert).names if "*" not in name and not name.endswith(".jobpipe")]
    if not names:
        raise ConfigError(
            f"{files.cert}: the certificate carries no host name, so clients would refuse the control "
            "server; make one with `jobpipe certs issue NAME --host HOST`",
            file=str(files.cert),
        )
    return names


def _trusted(config: Config, files: Credentials) -> TrustedFiles[AccessFile]:
    return TrustedFiles(files, config.server_access, read_access_file, AccessFile(), renew=lambda: credentials(config))
