"""Write tickets and tokens: they prove that a task belongs to the job that publishes.

A certificate with the right ``publish`` says that its owner may publish a topic. Only the job that publishes it now may
put files into the present log; it shows that by these.
"""

from __future__ import annotations

import hashlib
import hmac
import re

from jobpipe.errors import NotAuthorized

_TOKEN = re.compile(r"[0-9a-f]{64}")


def write_ticket(secret: str, topic: str, write_id: str) -> str:
    """Return what lets tasks upload the files of one batch to the data process, and nothing else.

    Args:
        secret: the job's.
    """
    return hmac.new(secret.encode(), f"put {topic} {write_id}".encode(), hashlib.sha256).hexdigest()


def check_write_ticket(secret: str, topic: str, write_id: str, shown: str) -> None:
    """See that ``shown`` is the ticket for a batch.

    Raises:
        NotAuthorized: it is not.
    """
    if not hmac.compare_digest(write_ticket(secret, topic, write_id).encode(), shown.encode()):
        raise NotAuthorized(
            f"topic {topic!r}: files are taken only from the tasks of the job that publishes the topic; start a "
            "publisher of your own",
            op="put",
            topic=topic,
        )


def log_place(topic: str, log: str, token: str) -> str:
    """Return the name of the directory in which a host server keeps the files of a log.

    It follows from the log's write token, which its catalog keeps and only its publishers learn: without the token the
    directory cannot be named, so it can be neither listed nor written to. Readers get the name.

    Raises:
        NotAuthorized: that is no token.
    """
    if _TOKEN.fullmatch(token) is None:
        raise NotAuthorized(
            f"topic {topic!r}: a host server writes, lists and removes files only for the log's publisher, which shows "
            "the log's write token",
            topic=topic,
        )
    return f"{log}-{hashlib.sha256(f'keep {topic} {log} {token}'.encode()).hexdigest()[:32]}"
