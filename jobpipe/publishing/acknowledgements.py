"""Waiting, with ``acks=all``, until a batch is committed by those who must have it."""

from __future__ import annotations

from jobpipe.errors import SpoolError, WaitTimeout
from jobpipe.net.retry import Deadline
from jobpipe.operations.publisher_operations import AckedRequest
from jobpipe.publishing.batch_admission import WAIT_SECONDS
from jobpipe.publishing.coordinator_channel import CoordinatorChannel
from jobpipe.publishing.publisher_messages import WaitLogger
from jobpipe.store.catalog.position import Position


def wait_acked(channel: CoordinatorChannel, timeout: float, position: Position, *, stopped: str) -> None:
    """Wait until the required subscriptions have committed the batch before ``position``.

    Raises:
        WaitTimeout: ``timeout`` seconds passed, or the wait ended early, as ``stopped`` says; names the missing ones.
        SpoolError: a host server that keeps some of the batch is lost.
    """
    topic = channel.topic
    deadline, waits = Deadline(timeout), WaitLogger(topic)
    while True:
        reply = channel.call(AckedRequest(position.n, deadline.left(WAIT_SECONDS)))
        missing = list(reply.missing)
        if not missing:
            return
        if reply.gone:
            raise SpoolError(
                f"topic {topic!r}, offset {position.n - 1}: host server {', '.join(reply.gone)}, which keeps "
                f"part of the batch, is lost, and {', '.join(missing)} did not commit it. Publish the batch again, "
                "as a query does when it is started again",
                topic=topic,
                offset=position.n - 1,
                hosts=list(reply.gone),
                missing=missing,
            )
        waits.log(f"acks=all, offset {position.n} is not yet acknowledged by {', '.join(missing)}")
        if not channel.active() or deadline.passed:
            why = stopped if not channel.active() else f"acks.timeout={timeout:g} s passed"
            raise WaitTimeout(
                f"topic {topic!r}, offset {position.n}: {why}; not acknowledged by {', '.join(missing)}",
                topic=topic,
                offset=position.n,
                missing=missing,
            )
