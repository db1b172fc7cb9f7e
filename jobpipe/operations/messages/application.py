"""Which application publishes or subscribes, as it says itself: for people, and never a reason to allow anything."""

from __future__ import annotations

from typing import Annotated

from jobpipe.operations.messages.checked_values import Text
from jobpipe.operations.messages.message_fields import OMITTED, Fields, message
from jobpipe_registry.names import JOB_NAME

# Each is short, and all but the name ASCII: the status of a topic has one for each of its subscriptions.
MAX_NAME = 80
MAX_ID = 96
MAX_RUN = 128
_Job = Annotated[str, Text(40, pattern=f"(?:{JOB_NAME.pattern})?", words="the name of a job or pipeline"), OMITTED]


@message
class Application(Fields):
    """An application.

    Attributes:
        id: the same for all processes of the application, and for no other one; it begins with host and process id.
        name: Spark's name of the application, or that of the program.
        pipeline, job, run: of which it is an attempt; "" for an application that no pipeline started.
    """

    id: Annotated[str, Text(MAX_ID, 1, pattern="[!-~]*", words=f"at most {MAX_ID} ASCII characters, no spaces")]
    name: Annotated[str, Text(MAX_NAME), OMITTED] = ""
    pipeline: _Job = ""
    job: _Job = ""
    run: Annotated[
        str, Text(MAX_RUN, pattern="[!-~]*", words=f"at most {MAX_RUN} ASCII characters, no spaces"), OMITTED
    ] = ""
