"""The control server as a program: in the foreground until SIGTERM or SIGINT; jobs run on."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from jobpipe.config import Config
from jobpipe.control.control_service import Control
from jobpipe.control.job_alerts import Alerts
from jobpipe.control.process.job_environment import keep_for_children
from jobpipe.control.rest.rest_server import RestServer
from jobpipe.control.server_files import ServerFiles
from jobpipe.errors import ConfigError, JobpipeError
from jobpipe.signal_handlers import stop_event

if TYPE_CHECKING:
    from jobpipe.control.lineage.lineage_reporter import LineageReporter

MakeCore = Callable[[Config, Path | None], AbstractContextManager[Control]]


def _core(config: Config, config_file: Path | None) -> AbstractContextManager[Control]:
    """Return the core; it is loaded here alone, so that clients and tests do without."""
    from jobpipe.control.control_server import ControlServer

    return ControlServer(config, config_file=config_file)


def _lineage(config: Config) -> type[LineageReporter] | None:
    """Return what reports lineage, if the configuration wants it; it is loaded then alone.

    Raises:
        ConfigError: it is not installed.
    """
    if config.server_lineage_url is None and config.server_lineage_file is None:
        return None
    try:
        from jobpipe.control.lineage.lineage_reporter import LineageReporter
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("openlineage", "sqlglot"):
            raise
        raise ConfigError(
            f"server.lineage.url or server.lineage.file is set, and {error.name} is not installed here: "
            "pip install 'openlineage-python>=1.54' 'sqlglot>=30,<31', or leave the key out",
            key="jobpipe.server.lineage.url",
        ) from error
    return LineageReporter


def serve(
    config: Config, config_file: Path | None, tell: Callable[[RestServer], None], *, make_core: MakeCore = _core
) -> None:
    """Run the server until a signal; in the main thread. What jobs must not get leaves this process's environment.

    Args:
        config_file: what the configuration was read from, for the jobs; None: it is found as always.
        tell: is called once it serves.

    Raises:
        ControlConflict: a server of this home runs.
        ConfigError: certificates, access list or files cannot be used; or what lineage needs is not installed.
        AddressError: no port is free.
        RegistryUnavailable: the registry does not answer.
        JobpipeError: REST has failed; without it the server cannot be asked for anything.
    """
    lineage = _lineage(config)
    with ExitStack() as stack:
        stack.enter_context(ServerFiles.of(config.home).locked())
        stopped = stack.enter_context(stop_event())
        secrets = keep_for_children(os.environ, config)
        control = stack.enter_context(make_core(config, config_file))
        alerts = Alerts(control, environ=secrets)
        alerts.start()
        stack.callback(alerts.close)
        reporter = None if lineage is None else lineage(control, config, environ=secrets)
        if reporter is not None:
            reporter.start()
            stack.callback(reporter.close)
        samples = None if reporter is None else reporter.sample
        rest = RestServer(control, config, config_file=config_file, failed=stopped.set, lineage=samples)
        stack.callback(rest.close)
        rest.start()
        tell(rest)
        stopped.wait()
        if rest.failure is not None:
            raise JobpipeError(
                f"the REST interface has failed, so the control server ends ({rest.failure}). Jobs keep running; "
                "start it again"
            ) from rest.failure
