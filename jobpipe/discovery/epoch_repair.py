"""Epochs that no takeover can have led to, and what is no recovery point: the errors, and the repair."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jobpipe.config import Config
from jobpipe.discovery.registry_handler import map_registry_errors, open_handler
from jobpipe.errors import ConfigError, RemoteProtocolError, TopicOwned
from jobpipe.store.catalog.epoch_lowering import CatalogEpochs, lower_epochs, read_epochs
from jobpipe.store.catalog.recovery import RecoveryPoint
from jobpipe_registry.names import check_name
from jobpipe_registry.registry_errors import BadRecord
from jobpipe_registry.topic_records import MAX_EPOCH, MAX_STEP, OwnerRecord, parse_epoch
from jobpipe_registry.tree.tree_handler import TreeHandler

MAX_LOG_EPOCH = MAX_EPOCH - MAX_STEP
"""A log above it could soon be taken over no more: the numbers end."""

SHOWN_BYTES = 40


def implausible(topic: str, registered: int | None, known: int | None) -> ConfigError:
    """Return the error for an epoch that is not taken over.

    Args:
        registered: The registry's; None if that cannot be read.
        known: The log's; None if it was not looked at.
    """
    if known is not None and known >= MAX_EPOCH:
        what = f"the epoch of its log is {known}, which is too high (at most {MAX_EPOCH})"
    elif registered is None:
        what = "the epoch that the registry holds is not a valid number"
    else:
        what = f"the registry holds epoch {registered}, its log {known}; a difference above {MAX_STEP} cannot be right"
    return _refusal(topic, what, registered=registered, epoch=known)


def readable_point(topic: str, text: str, known: int) -> RecoveryPoint:
    """Return the recovery point that the registry holds.

    Args:
        known: The log's epoch; 0 for a new one.

    Raises:
        ConfigError: it is none, or one with an epoch that no take-over can have led to.
    """
    point, why = _point(text, known)
    if point is None:
        raise _refusal(topic, f"the recovery point that the registry holds {why}", epoch=known)
    return point


def _refusal(topic: str, what: str, **facts: int | None) -> ConfigError:
    return ConfigError(
        f"topic {topic!r}: {what}. Nothing was taken over. Another program has written to the registry: check who may "
        f"(docs/registry-security.md). Then run `jobpipe registry repair {topic} --dry-run` on the host of the spool "
        "to see what it would change, and without --dry-run to change it",
        topic=topic,
        **facts,
    )


def _point(text: str, known: int) -> tuple[RecoveryPoint | None, str]:
    """Return a recovery point; None, and why, if it is none that can be right."""
    try:
        point = RecoveryPoint.from_text(text)
    except RemoteProtocolError:
        return None, "cannot be read"
    if point.highest_epoch > known + MAX_STEP:
        return None, f"has epoch {point.highest_epoch}, the log {known}; a difference above {MAX_STEP} cannot be right"
    return point, ""


@dataclass(frozen=True)
class EpochRepair:
    """What registry and log hold, and what they should.

    Attributes:
        topic: Its name.
        registered: The registry's epoch; None if it cannot be read.
        data: What the registry's node holds, shortened, for people; None if there is no node.
        catalog: The log's catalog on this host; None if there is none.
        epoch: The log's epoch; None if it is not known.
        owner: Who has claimed the topic; None without a claim.
        to_registered, to_epoch: What they become; None for what is right.
        recovery_point: What is wrong with the recovery point that the registry holds, which is to be removed: a
            publisher that finds no spool begins a new log then. None if it is right, or there is none.
        done: The change was made.
    """

    topic: str
    registered: int | None
    data: str | None
    catalog: Path | None
    epoch: int | None
    owner: str | None
    to_registered: int | None
    to_epoch: int | None
    recovery_point: str | None = None
    done: bool = False

    @property
    def wrong(self) -> bool:
        """Something is, or was, to be changed."""
        return any(each is not None for each in (self.to_registered, self.to_epoch, self.recovery_point))

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {**vars(self), "catalog": None if self.catalog is None else str(self.catalog)}


def repair_epoch(config: Config, topic: str, *, epoch: int | None = None, dry_run: bool = False) -> EpochRepair:
    """Set the registry's epoch, and the log's where it has no room left, to numbers that a take-over can go on from.

    A recovery point that cannot be read, or has an epoch that cannot be right, is removed.

    The next publisher gets a higher epoch than any that sealed a batch, so every earlier publisher stays fenced.

    Args:
        config: Where registry and spool are.
        topic: No publisher may have it.
        epoch: The log's epoch, where its catalog is on another host.
        dry_run: Change nothing.

    Raises:
        ConfigError: there is no catalog on this host, and no ``epoch``; or both, and they differ.
        TopicOwned: a publisher has the topic; nothing is changed.
        SpoolError: the catalog cannot be read, or cannot be mended.
        RegistryUnavailable: the registry does not answer.
    """
    with map_registry_errors():
        check_name(topic)
    directory = config.spool_dir / topic
    found = read_epochs(directory, topic, MAX_LOG_EPOCH)
    known = _known(topic, directory, found, epoch)
    handler = open_handler(config)
    try:
        if not isinstance(handler, TreeHandler):
            raise ConfigError(
                f"jobpipe.registerserver.handler={config.registry_handler!r}: its epochs cannot be repaired from here",
                key="jobpipe.registerserver.handler",
            )
        with map_registry_errors():
            data, owner, claimed = handler.epoch_data(topic), handler.owner(topic), handler.is_claimed(topic)
            point = handler.recovery_point(topic)
        registered = _parsed(data)
        target = known if found is None else found.lowered
        plan = EpochRepair(
            topic=topic,
            registered=registered,
            data=None if data is None else _short_text(data),
            catalog=None if found is None else found.path,
            epoch=known,
            owner=_claimant(owner, claimed),
            to_registered=target if registered is None or registered > target + MAX_STEP else None,
            to_epoch=target if target != known else None,
            recovery_point=None if point is None else _point(point, 0 if found is None else known)[1] or None,
        )
        if dry_run or not plan.wrong:
            return plan
        return _repair(config, handler, directory, plan, point)
    finally:
        handler.shutdown()


def _claimant(owner: OwnerRecord | None, claimed: bool) -> str | None:
    if owner is not None:
        return f"{owner.name!r} (process {owner.pid} on {owner.host}, {owner.endpoint})"
    return "a publisher whose record cannot be read" if claimed else None


def _known(topic: str, directory: Path, found: CatalogEpochs | None, epoch: int | None) -> int:
    if found is None and epoch is None:
        raise ConfigError(
            f"topic {topic!r}: {directory} holds no catalog, so its epoch is not known here. Run this on the host of "
            "the spool; or give --epoch, the highest that `jobpipe topics describe` or a publisher's log ever showed; "
            "if the spool is lost for good, --epoch 0",
            topic=topic,
            file=str(directory),
        )
    if found is not None and epoch is not None and epoch != found.epoch:
        raise ConfigError(
            f"topic {topic!r}: its catalog {found.path} has epoch {found.epoch}, not {epoch}; leave --epoch out",
            topic=topic,
            file=str(found.path),
        )
    if epoch is not None and not 0 <= epoch <= MAX_LOG_EPOCH and found is None:
        raise ConfigError(f"--epoch {epoch}: expected 0 to {MAX_LOG_EPOCH}", topic=topic)
    return found.epoch if found is not None else int(epoch or 0)


def _repair(config: Config, handler: TreeHandler, directory: Path, plan: EpochRepair, point: str | None) -> EpochRepair:
    target = plan.to_registered if plan.to_registered is not None else plan.registered
    if plan.to_epoch is not None:
        # First a number that no publisher can take over from, if it is not there already; the claim is looked at in the
        # same step. So no process can open the log between the two changes, and what is interrupted can be repeated.
        _write(handler, plan, MAX_EPOCH)
        shared = config.spool_placement == "shared"
        lowered = lower_epochs(directory, plan.topic, MAX_LOG_EPOCH, MAX_EPOCH, fsync=config.fsync, shared=shared)
        target = lowered.epoch
    assert target is not None  # noqa: S101 - what cannot be read is to be changed
    _write(handler, plan, target, point if plan.recovery_point is not None else None)
    changed = target if (plan.to_registered, plan.to_epoch) != (None, None) else None
    return replace(plan, to_registered=changed, done=True)


def _write(handler: TreeHandler, plan: EpochRepair, epoch: int, point: str | None = None) -> None:
    try:
        with map_registry_errors():
            handler.repair_epoch(plan.topic, epoch, remove_point=point)
    except TopicOwned as error:
        raise TopicOwned(
            f"{error.message}; its epoch was not changed. Stop that publisher first, then try again: its coordinator "
            "keeps the topic until all subscriptions have read it, at most for coordinator.linger",
            **error.fields,
        ) from error


def _parsed(data: bytes | None) -> int | None:
    try:
        return 0 if data is None else parse_epoch(data)
    except BadRecord:
        return None


def _short_text(data: bytes) -> str:
    text = data[:SHOWN_BYTES].decode("ascii", "backslashreplace")
    return repr(text)[1:-1] + ("…" if len(data) > SHOWN_BYTES else "")
