"""The fields of HELLO, as the servers take them."""

from __future__ import annotations

from typing import Annotated

from jobpipe.errors import RemoteProtocolError
from jobpipe.operations.messages.checked_values import CheckedName, Integer, Text
from jobpipe.operations.messages.message_fields import Fields, Name, Secret, message, take
from jobpipe.wire.codec import MAX_ID
from jobpipe.wire.wire_messages import Hello

FIELDS = ("topic", "name", "instance", "epoch", "log", "proof")


@message
class Greeting(Fields):
    """What a client says of itself. Its role, its versions and whether its heart beats are checked with the bytes.

    Attributes:
        topic: what it is about.
        name: of a subscriber, the subscription; of others, for people.
        instance: random, or what its log calls it.
        epoch, log: the highest epoch that it has seen of the topic, and of which log; 0 and None for none.
        proof: of a publisher, that it is the job's own.
    """

    topic: Name
    name: Annotated[str | None, Text(255)] = None
    instance: Annotated[str, Text(128)] = ""
    epoch: Annotated[int, Integer(0, MAX_ID)] = 0
    log: Annotated[str | None, Text(64)] = None
    proof: Secret = ""


def check_hello(hello: Hello) -> None:
    """See that every field of a HELLO is what it may be; before anything is done with it.

    Raises:
        RemoteProtocolError: one is not; names it.
    """
    try:
        Greeting.from_json({name: getattr(hello, name) for name in FIELDS})
        if hello.role == "subscriber":
            take(CheckedName(), "name", hello.name)
    except RemoteProtocolError as error:
        raise RemoteProtocolError(f"HELLO: {error.message}", **{**error.fields, "kind": "HELLO"}) from error
