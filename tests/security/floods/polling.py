"""A good reader that polls all the time: ``python -m tests.security.floods.polling`` with its order as JSON.

Order: {"control": [host, port], "files": [ca, certificate, key]}. It prints a line when it is connected, ends when its
standard input ends, and prints then by how many seconds each answer was late, as a JSON list.
"""

from __future__ import annotations

import json
import select
import sys
import time
from pathlib import Path
from typing import Any

from jobpipe.net.address import Endpoint
from jobpipe.net.links.blocking_link import BlockingLink
from jobpipe.net.tls.peer_names import topic_server_name
from jobpipe.net.tls.tls_context import Credentials, client_context
from jobpipe.wire import Hello
from tests.security.kit import TIMING, TOPIC

WAIT = 0.2  # seconds that each question may be held without news


def main() -> None:
    """Poll until the standard input ends."""
    order = json.loads(sys.stdin.readline())
    late: list[float] = []
    tls = client_context(Credentials(*map(Path, order["files"])))
    hello = Hello(TOPIC, "reader", None, instance="good")
    name = topic_server_name(TOPIC)
    with BlockingLink.connect(Endpoint(*order["control"]), hello, tls=tls, server_hostname=name, timing=TIMING) as link:
        print("connected", flush=True)
        news: dict[str, Any] = {}
        while not select.select([sys.stdin], [], [], 0)[0]:
            began = time.monotonic()
            waits = WAIT if news else 0.0
            news = link.call("poll", {**news, "wait": waits}, timeout=30.0).result
            late.append(time.monotonic() - began - waits)
    print(json.dumps(late))


if __name__ == "__main__":
    main()
