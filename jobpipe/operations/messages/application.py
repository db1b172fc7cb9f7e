"""Which application publishes or subscribes, as it says itself: for people, and never a reason to allow anything."""

from __future__ import annotations

from typing import Annotated

from jobpipe.operations.messages.checked_values import Text
from jobpipe.operations.messages.message_fields import OMITTED, Fields, message

MAX_NAME = 255
"""Characters of each field, control characters among them: a program's name may have any."""

_Word = Annotated[str, Text(MAX_NAME, printable=False), OMITTED]


@message
class Application(Fields):
    """An application.

    Attributes:
        id: the same for all processes of the application, and for no other one; it begins with host and process id.
        name: Spark's name of the application, or that of the program.
        pipeline, job, run: of which it is an attempt; "" for an application that no pipeline started.
    """

    id: Annotated[str, Text(MAX_NAME, 1, printable=False)]
    name: _Word = ""
    pipeline: _Word = ""
    job: _Word = ""
    run: _Word = ""
