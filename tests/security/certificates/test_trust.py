"""Whom a server lets in by default, and that others' configuration changes nothing of it."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobpipe.config import load
from jobpipe.coordinator.handlers.operation_rights import require_operation
from jobpipe.discovery.peer_authentication import PeerAuthentication
from jobpipe.errors import ConfigError, NotAuthorized
from jobpipe.net.servers.access_list import ADMIN, PUBLISH, READ
from jobpipe.net.tls.certificates import describe, issue
from jobpipe.operations.subscriber_operations import PollRequest
from tests.security.kit import World, full, settings

REMOTE = {"registerserver.connect": "zk1:2181"}


def trust(tmp_path: Path, **changes: str) -> PeerAuthentication:
    return PeerAuthentication(load(overrides=full({"home": str(tmp_path / "home"), **changes}), environ={}))


def link(*names: str) -> Any:
    return SimpleNamespace(peer_names=names, peer="127.0.0.1:1", hello=SimpleNamespace(instance="i"))


def test_embedded_with_its_own_ca_lets_all_of_it_in(tmp_path: Path) -> None:
    """The laptop's way needs no certificate commands."""
    mine = trust(tmp_path)
    assert mine.encrypted
    assert all(mine.allows(link("anna.jobpipe"), right, "orders", "x") for right in (PUBLISH, READ, ADMIN))


def test_embedded_with_a_list_goes_by_the_list(tmp_path: Path, world: World) -> None:
    mine = trust(tmp_path, **{"security.access": str(world.access)})
    assert not mine.allows(link("anna.jobpipe"), READ, "orders")
    assert mine.allows(link("billing.subscription.jobpipe"), READ, "orders", "billing")
    assert mine.allows(link("*.topic.jobpipe", "node.jobpipe"), PUBLISH, "orders"), "our own certificate"


@pytest.mark.parametrize("where", [{}, REMOTE])
def test_given_certificates_without_a_list_let_in_only_their_holder(
    tmp_path: Path, world: World, where: dict[str, str]
) -> None:
    mine = trust(tmp_path, **settings(world.orders), **where)
    assert mine.allows(link("orders.topic.jobpipe"), PUBLISH, "orders")
    for names in (
        (),
        ("billing.subscription.jobpipe",),
        ("*.topic.jobpipe",),
        ("orders.topic.jobpipe", "more.jobpipe"),
    ):
        for right in (PUBLISH, READ, ADMIN):
            with pytest.raises(NotAuthorized) as caught:
                mine.require(link(*names), right, "orders")
            assert caught.value.fields == {
                "principal": list(names),
                "right": right,
                "topic": "orders",
                "subscription": None,
            }
            assert "security.access" in caught.value.message


def test_a_part_of_our_names_is_not_us(tmp_path: Path, world: World) -> None:
    """A job of several topics, and one that has a certificate for one of them."""
    both = issue(world.folder, "both", dns=["orders.topic.jobpipe", "payments.topic.jobpipe"], replace=True)
    mine = trust(tmp_path, **settings(both), **REMOTE)
    assert mine.allows(link(*reversed(describe(both.cert).names)), ADMIN, "orders")
    assert not mine.allows(link("orders.topic.jobpipe"), READ, "payments")


def test_plaintext_knows_nobody(tmp_path: Path) -> None:
    mine = trust(tmp_path, **{"ssl.enabled": "false"})
    assert not mine.encrypted
    assert mine.allows(link(), ADMIN, "orders")


def test_a_list_that_cannot_be_read_stops_the_start(tmp_path: Path, world: World) -> None:
    bad = tmp_path / "access.yaml"
    bad.write_text("orders: {raed: []}")
    with pytest.raises(ConfigError, match=r"orders\.raed.*read\?"):
        trust(tmp_path, **settings(world.orders, bad), **REMOTE)


def test_a_changed_list_counts_at_once_and_a_bad_one_not(tmp_path: Path, world: World) -> None:
    file = tmp_path / "access.yaml"
    file.write_text("orders: {read: [billing.subscription.jobpipe]}")
    mine = trust(tmp_path, **settings(world.orders, file), **REMOTE)
    billing, audit = link("billing.subscription.jobpipe"), link("audit.subscription.jobpipe")

    def change(text: str) -> None:
        fresh = tmp_path / "fresh"
        fresh.write_text(text)
        os.replace(fresh, file)
        assert mine.refresh() is False, "no links need to be made anew: rights are asked for with each request"

    assert (mine.allows(billing, READ, "orders", "billing"), mine.allows(audit, READ, "orders", "audit")) == (
        True,
        False,
    )
    for bad in ("orders: [", "orders: {read: ['*']}"):
        change(bad)
        assert mine.allows(billing, READ, "orders", "billing")
    change("orders: {read: [audit.subscription.jobpipe]}")
    assert (mine.allows(billing, READ, "orders", "billing"), mine.allows(audit, READ, "orders", "audit")) == (
        False,
        True,
    )
    file.unlink()
    assert not mine.refresh()
    assert mine.allows(audit, READ, "orders", "audit"), "the last good one counts"


def test_a_flood_of_names_is_forgotten(tmp_path: Path, world: World) -> None:
    mine = trust(tmp_path, **settings(world.orders, world.access), **REMOTE)
    for number in range(10_000):
        assert not mine.allows(link("billing.subscription.jobpipe"), READ, "orders", f"n{number}")
    assert len(mine._decided) <= 4096


def test_a_right_given_a_moment_ago_counts(tmp_path: Path, world: World) -> None:
    """A reader asks control and data process, one after the other; they look at the file at different moments."""
    file = tmp_path / "access.yaml"
    file.write_text("orders: {}")
    mine = trust(tmp_path, **settings(world.orders, file), **REMOTE)
    with pytest.raises(NotAuthorized):
        mine.require(link("audit.subscription.jobpipe"), READ, "orders", "audit")
    file.write_text("orders: {read: [audit.subscription.jobpipe]}")
    mine.require(link("audit.subscription.jobpipe"), READ, "orders", "audit")


@pytest.mark.parametrize(
    ("role", "right"), [("publisher", PUBLISH), ("subscriber", READ), ("reader", READ), ("admin", ADMIN)]
)
def test_a_right_taken_away_counts_for_links_that_are_there(
    tmp_path: Path, world: World, role: str, right: str
) -> None:
    """At the coordinator the role is asked for again with each request, whatever else that needs."""
    file = tmp_path / "access.yaml"
    file.write_text(f"orders: {{{right}: [audit.subscription.jobpipe]}}")
    mine, peer = trust(tmp_path, **settings(world.orders, file), **REMOTE), link("audit.subscription.jobpipe")
    peer.hello = SimpleNamespace(instance="i", topic="orders", role=role, name="audit")
    require_operation(mine, peer, PollRequest())
    file.write_text("orders: {}")
    mine.refresh()
    with pytest.raises(NotAuthorized) as caught:
        require_operation(mine, peer, PollRequest())
    assert caught.value.fields["right"] == right
