"""``jobpipe metrics``: a server for metrics alone, where no control server runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from jobpipe.admin import Admin, TopicLine
from jobpipe.config import Config
from jobpipe.control.rest.rest_server import GuardedServer
from jobpipe.errors import JobpipeError
from jobpipe.metrics.certificate_expiry import certificate_samples
from jobpipe.metrics.metric_samples import MetricSamples
from jobpipe.metrics.openmetrics_text import metrics_text
from jobpipe.metrics.topics_snapshots import TopicsSnapshots
from jobpipe.signal_handlers import stop_event
from jobpipe.status_walk import Answer


class LazyAdmin:
    """Opens the session with the registry when it is first asked, and again if that failed; a context manager."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._stack = ExitStack()
        self._admin: Admin | None = None

    def __enter__(self) -> LazyAdmin:
        return self

    def __exit__(self, *about: object) -> None:
        self._stack.close()

    def topics(self) -> list[TopicLine]:
        """As :meth:`jobpipe.admin.Admin.topics`."""
        return self._opened().topics()

    def answers(self, topics: Sequence[str], timeout: float) -> dict[str, Answer]:
        """As :meth:`jobpipe.admin.Admin.answers`."""
        return self._opened().answers(topics, timeout)

    def _opened(self) -> Admin:
        if self._admin is None:
            self._admin = self._stack.enter_context(Admin(self._config))
        return self._admin


class MetricsApp:
    """The application: ``/metrics``, and ``/health`` for those without a token."""

    def __init__(self, snapshots: TopicsSnapshots, config: Config) -> None:
        self._snapshots = snapshots
        self._config = config
        self.app = Starlette(routes=[Route("/metrics", self._metrics), Route("/health", self._health)])

    async def _metrics(self, request: Request) -> Response:
        accept = request.headers.get("accept", "")
        text, media = await run_in_threadpool(lambda: metrics_text(self._samples(), accept))
        return Response(text, media_type=media)

    async def _health(self, request: Request) -> Response:
        return PlainTextResponse("ok\n")

    def _samples(self) -> MetricSamples:
        return MetricSamples(self._snapshots.newest(), certificates=certificate_samples(self._config))


def serve_metrics(config: Config, host: str, port: int, tell: Callable[[GuardedServer], None]) -> None:
    """Serve the metrics of all topics of the namespace until a signal; in the main thread.

    Args:
        config: of the registry, the certificates and the home, whose tokens are taken on loopback.
        host: to listen at.
        port: to listen on.
        tell: is called once it serves.

    Raises:
        ConfigError: beyond loopback without certificates.
        AddressError: the port is taken.
        JobpipeError: the server has failed.
    """
    with ExitStack() as stack:
        stopped = stack.enter_context(stop_event())
        snapshots = TopicsSnapshots(stack.enter_context(LazyAdmin(config)))
        stack.callback(snapshots.close)
        made = MetricsApp(snapshots, config)
        server = GuardedServer(made.app, (host, (port, port)), config, key="--port", failed=stopped.set)
        stack.callback(server.close)
        server.start()
        tell(server)
        stopped.wait()
        if server.failure is not None:
            raise JobpipeError(f"the server of metrics has failed: {server.failure}") from server.failure
