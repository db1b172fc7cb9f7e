"""What an application may say of itself, and how large that makes the status of a topic."""

from __future__ import annotations

import dataclasses
import json

import pytest

from jobpipe.config import load
from jobpipe.errors import RemoteProtocolError
from jobpipe.operations.messages.application import MAX_ID, MAX_NAME, MAX_RUN, Application
from jobpipe.operations.publisher_operations import OpenRequest
from jobpipe.operations.status_operations import Holder, ReaderProcess, SubscriptionStatus
from jobpipe.wire.frames import CONTROL_LIMIT
from tests.statuses import subscription_status

LARGEST = Application("i" * MAX_ID, "\U0001f4a5" * MAX_NAME, "p" * 40, "j" * 40, "r" * MAX_RUN)


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": ""},
        {"id": "i" * (MAX_ID + 1)},
        {"id": "a b"},
        {"id": "\u00e9"},
        {"name": "n" * (MAX_NAME + 1)},
        {"name": "a\x1b[2J"},
        {"name": "a\u202eb"},
        {"pipeline": "a.b"},
        {"job": "j" * 41},
        {"run": "r" * (MAX_RUN + 1)},
        {"run": "\u2192"},
    ],
)
def test_what_is_refused(wrong: dict[str, str]) -> None:
    right = LARGEST.to_json()
    assert Application.from_json(right) == LARGEST
    with pytest.raises(RemoteProtocolError, match=next(iter(wrong))):
        Application.from_json({**right, **wrong})


def test_as_many_subscriptions_as_a_topic_has_by_default_fit_into_a_reply() -> None:
    """The default of jobpipe.subscription.max, with the longest names, hosts and applications that are accepted."""
    odd = "\U0001f4a5" * 255
    line = SubscriptionStatus(
        **{
            **vars(subscription_status("s" * 128)),
            "application": LARGEST,
            "where": ReaderProcess(odd, 2**31 - 1),
            "holder": Holder(host=odd, pid=2**31 - 1, instance="i" * 128),
        }
    )
    assert load(environ={}).max_subscriptions * len(json.dumps(line.to_json())) < CONTROL_LIMIT * 0.75


def test_processes_of_one_publisher_ask_for_the_same() -> None:
    """One of them may know less of the application. Another parallelism is another request."""
    first = OpenRequest("till", 2, load(environ={}), by=LARGEST, writing="aa", others=("bb",))
    assert first.same_settings(dataclasses.replace(first, by=None, writing="cc", others=()))
    assert not first.same_settings(dataclasses.replace(first, parallelism=3))
