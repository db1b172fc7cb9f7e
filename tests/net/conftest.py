"""A CA made for the session, and the two modes that most tests run in."""

from __future__ import annotations

import pytest

from jobpipe.net.tls.certificates import ensure_home
from jobpipe.net.tls.peer_names import topic_server_name
from tests.net.kit import NAME, Authority, Mode


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Two CAs: ours, and one that nobody trusts."""
    assert topic_server_name("orders") == NAME
    own = ensure_home(tmp_path_factory.mktemp("own"))
    other = ensure_home(tmp_path_factory.mktemp("other"))
    return Authority(own.ca, own.cert, own.key, other.ca, other.cert, other.key)


@pytest.fixture(params=["tcp", "tls"])
def mode(request: pytest.FixtureRequest, authority: Authority) -> Mode:
    """Plain TCP, and TLS with certificates on both sides."""
    return Mode(authority if request.param == "tls" else None)
