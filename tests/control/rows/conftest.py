"""Fixtures: topics of one's own, at a coordinator that a module shares."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator

import pytest

from jobpipe.admin import Admin
from jobpipe.config import Config, load
from jobpipe.errors import JobpipeError
from jobpipe.publishing.topic_publisher import Publisher
from tests.control.page.conftest import browser, page, shown  # noqa: F401 - fixtures
from tests.control.rows.rows_kit import RowsTopic
from tests.control_api.conftest import control, limits, served, server_config  # noqa: F401 - fixtures


@pytest.fixture
def bus_config(module_settings: dict[str, str]) -> Config:
    return load(overrides=module_settings, environ={})


@pytest.fixture
def open_topic(bus_config: Config, module_settings: dict[str, str]) -> Iterator[Callable[..., RowsTopic]]:
    """Return a maker of topics, with other settings of its publisher."""
    with contextlib.ExitStack() as stack:
        admin = stack.enter_context(Admin(bus_config))

        def make(**changes: str) -> RowsTopic:
            topic = f"orders-{uuid.uuid4().hex[:8]}"
            config = load(overrides={**module_settings, **changes}, environ={})
            publisher = Publisher(topic, config=config, name="shop", parallelism=2)
            stack.callback(_close, publisher)
            return RowsTopic(topic, bus_config, publisher, admin)

        yield make


def _close(publisher: Publisher) -> None:
    with contextlib.suppress(JobpipeError):  # a test has closed it
        publisher.close()


@pytest.fixture
def orders(open_topic: Callable[..., RowsTopic]) -> RowsTopic:
    """A topic without rows."""
    return open_topic()
