"""``jobpipe doctor`` and ``jobpipe registry acl`` on a tree that was made before there were users. Case 31."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import ACL, Id

from tests.cli.conftest import Run
from tests.registry.zookeeper.secured import SecuredZooKeeper

pytestmark = pytest.mark.zookeeper

Write = Callable[..., str]
CHECK = "registry ACL"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredZooKeeper]:
    with SecuredZooKeeper(tmp_path_factory.mktemp("zk") / "zk", users={"alice": "canary-3d"}) as made:
        yield made


@pytest.fixture(autouse=True)
def password(tmp_path: Path) -> None:
    """Put alice's password beside the configuration file."""
    (tmp_path / "password").touch(0o600)
    (tmp_path / "password").write_text("canary-3d")


@pytest.fixture
def stranger(server: SecuredZooKeeper) -> Iterator[KazooClient]:
    client = KazooClient(hosts=server.endpoint)
    client.start()
    yield client
    client.stop()
    client.close()


def settings(server: SecuredZooKeeper, namespace: str, **more: Any) -> dict[str, Any]:
    return {
        "jobpipe.registerserver.connect": server.endpoint,
        "jobpipe.registerserver.topic.storage": namespace,
        "jobpipe.ssl.enabled": False,
        "jobpipe.sinkserver.subnet": "127.0.0.0/8",
        **{f"jobpipe.registerserver.{name}": value for name, value in more.items()},
    }


ALICE = {"sasl.mechanism": "DIGEST-MD5", "sasl.username": "alice", "sasl.password": "file:password"}


def findings(run: Run, file: str) -> list[tuple[str, str, str]]:
    result = run("doctor", "--json", file=file)
    assert "canary" not in result.output
    lines = [line for line in json.loads(result.stdout) if line["check"] == CHECK]
    return [(line["status"], line["detail"], line["remedy"]) for line in lines]


@pytest.mark.slow
def test_an_open_tree_is_found_and_closed(
    run: Run, write: Write, server: SecuredZooKeeper, stranger: KazooClient, tmp_path: Path
) -> None:
    stranger.create("/old/topics/orders", b"", makepath=True)
    file = write(settings(server, "/old/topics", **ALICE))
    (listen, change) = findings(run, file)
    assert listen[:2] == (
        "warn",
        "anyone who records the connection to the registry can guess the DIGEST-MD5 password offline",
    )
    assert change == (
        "fail",
        "strangers may change /old, /old/topics, /old/topics/orders",
        "jobpipe registry acl lists them, jobpipe registry acl --fix closes them",
    )
    listed = run("registry", "acl", file=file)
    assert listed.exit_code == 1
    assert [line.split()[:2] for line in listed.stdout.splitlines()[1:]] == [
        [path, "crwda"] for path in ("/old", "/old/topics", "/old/topics/orders")
    ]
    fixed = run("registry", "acl", "--fix", "--json", file=file)
    assert fixed.exit_code == 0
    assert {line["path"]: line["fixed"] for line in json.loads(fixed.stdout)} == {
        "/old": True,
        "/old/topics": True,
        "/old/topics/orders": True,
    }
    with pytest.raises(NoAuthError):
        stranger.set("/old/topics/orders", b"forged")
    assert findings(run, file)[1:] == [("ok", "all nodes of /old/topics are as jobpipe.registerserver.acl says", "")]
    assert run("registry", "acl", file=file).exit_code == 0


def test_a_node_that_we_may_not_change_is_told(run: Run, write: Write, server: SecuredZooKeeper) -> None:
    file = write(settings(server, "/bobs/topics", **ALICE))
    admin = KazooClient(
        hosts=server.endpoint,
        sasl_options={"mechanism": "DIGEST-MD5", "username": "alice", "password": "canary-3d"},
    )
    admin.start()
    try:
        for path in ("/bobs", "/bobs/topics"):
            admin.create(path, b"", acl=[ACL(31, Id("auth", ""))])
        admin.create("/bobs/topics/theirs", b"", acl=[ACL(5, Id("world", "anyone"))])
    finally:
        admin.stop()
        admin.close()
    result = run("registry", "acl", "--fix", "--json", file=file)
    assert result.exit_code == 1
    (line,) = json.loads(result.stdout)
    assert (line["path"], line["permissions"], line["fixed"]) == ("/bobs/topics/theirs", "cr", False)
    assert "no permission (ACL); we are SASL DIGEST-MD5 as 'alice'" in line["error"]


def test_a_registry_that_knows_nobody_is_a_warning(run: Run, write: Write, server: SecuredZooKeeper) -> None:
    ((status, detail, remedy),) = findings(run, write(settings(server, "/open/topics")))
    assert (status, detail) == ("warn", "anyone who can reach the registry can change registrations")
    assert "docs/registry-security.md" in remedy
    assert findings(run, write(settings(server, "/open/topics", acl="open"))) == [
        ("ok", "all nodes of /open/topics are as jobpipe.registerserver.acl says", "")
    ]
