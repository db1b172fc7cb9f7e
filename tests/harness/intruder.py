"""A holder of the right to read who sends every operation with random fields, for as long as a block lasts.

Most fields fit, and many are what he has learned: names, logs, positions, grants, and the flows, claims and cursors
that a topic's status shows to each reader. So his requests come as far as what decides about them. What succeeds
without a right to it is noted, and so is an error by which the server itself stumbled.

    with Intruder(config, {"orders": ["intruder-1"]}, seed=7) as intruder:
        ...
    assert intruder.taken == []
"""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from jobpipe.config import Config
from jobpipe.discovery.configured_tls import dial_tls
from jobpipe.discovery.topic_lookup import TopicLocator
from jobpipe.errors import JobpipeError
from jobpipe.net.links.blocking_link import BlockingLink
from jobpipe.net.tls.certificates import init_ca, issue
from jobpipe.net.tls.peer_names import subscription_name, topic_server_name
from jobpipe.net.tls.tls_context import Credentials
from jobpipe.operations.coordinator_operations import CONTROL
from jobpipe.operations.data_operations import DATA
from jobpipe.operations.messages.checked_values import (
    Boolean,
    BoundaryValue,
    Check,
    CheckedName,
    Integer,
    Items,
    Number,
    PositionValue,
    SecretText,
    Text,
)
from jobpipe.operations.messages.message_fields import Fields, Nested, checks
from jobpipe.operations.messages.operation import Operation
from jobpipe.wire import Hello
from jobpipe.wire.wire_messages import ROLES
from tests.operations.hostile import MISSING as LEFT_OUT
from tests.operations.hostile import VALUES, fitting, is_fit

THREADS = 2
PAUSE = 0.01  # seconds between two requests of a thread
REQUESTS = 40  # of one link, at most
WAIT = 0.2  # seconds that he lets a long poll wait, nearly always
TIMEOUT = 25.0
TIDY_SECONDS = 5.0  # between two times that he lets go all that he keeps, so that a topic has room
ODD = 0.03  # share of fields that do not fit
CONSISTENT = 0.7  # share of requests whose fields belong together
ODD_VALUES = [value for what, value in VALUES.items() if value is not LEFT_OUT and what not in ("a long list",)]
OF_FLOWS = frozenset({"begin_flow", "cursors", "claim", "seal_parts"})
OF_NAMES = frozenset({"bind", "follow", "bounds", "seek", "drop", "hold", "release_hold"})
OF_NOBODY = frozenset({"reset_flow", "require", "handover", "drop_lease", "put"})
"""What no right to read allows."""


def admitted(folder: Path, topics: Mapping[str, Sequence[str]]) -> tuple[dict[str, str], Credentials]:
    """Let him read some topics.

    Args:
        folder: for certificates and the access list.
        topics: by topic, the names that he may read under.

    Returns:
        The settings of the job that publishes them, without ``jobpipe.``, and his files.
    """
    init_ca(folder)
    name = subscription_name("intruder")
    access = folder / "access.yaml"
    access.write_text(json.dumps({topic: {"read": {name: list(names)}} for topic, names in topics.items()}))
    job = issue(folder, "job", dns=[topic_server_name(topic) for topic in topics])
    his = issue(folder, "intruder", dns=[name], usages=["client"])
    given = {"ssl.ca": str(job.ca), "ssl.cert": str(job.cert), "ssl.key": str(job.key), "security.access": str(access)}
    return given, his


def as_intruder(config: Config, files: Credentials) -> Config:
    """Return the configuration of a process with his certificate."""
    return replace(config, ssl_ca=files.ca, ssl_cert=files.cert, ssl_key=files.key)


class Known:
    """What he has learned of one topic.

    Attributes:
        names: that he may read under.
        grants: by name.
        flows: as its status shows them.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        self.grants: dict[str, int] = {}
        self.flows: list[dict[str, Any]] = []
        self.positions: deque[dict[str, Any]] = deque(maxlen=64)


class Intruder:
    """Runs in threads of this process. Use it as a context manager.

    Args:
        config: as :func:`as_intruder` makes it.
        topics: by topic, the names that he may read under.
        seed: draws the same requests for the same answers.

    Attributes:
        sent, answered: requests by operation, and those that succeeded.
        refused: by operation and error.
        taken: what succeeded without a right to it.
        stumbled: errors that no operation documents.
    """

    def __init__(self, config: Config, topics: Mapping[str, Sequence[str]], *, seed: int) -> None:
        self._config = config
        self._known = {topic: Known(names) for topic, names in topics.items()}
        self._numbers: deque[int] = deque([0, 1, 2], maxlen=64)
        self._texts: deque[str] = deque(maxlen=64)
        self._secrets = [f"{seed + number:032x}"[-32:] for number in range(4)]
        self._locator = TopicLocator(config)
        self._stopped = threading.Event()
        self._lock = threading.Lock()  # of what follows
        self.sent: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()
        self.refused: Counter[tuple[str, str]] = Counter()
        self.taken: list[str] = []
        self.stumbled: list[str] = []
        chances = [random.Random(seed + number) for number in range(THREADS)]
        self._broken: BaseException | None = None
        works = [partial(self._ask_again, each) for each in chances] + [self._tidy_again]
        self._threads = [threading.Thread(target=self._run, args=(each,), name="intruder") for each in works]

    def __enter__(self) -> Intruder:
        for topic in self._known:
            self._locator.follow(topic)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(60.0)
            assert not thread.is_alive()
        self._locator.close()
        if self._broken is not None and error is None:
            raise self._broken

    def summary(self) -> str:
        """Return how often he asked and was answered, for people."""
        lines = [f"{op} {self.answered[op]}/{times}" for op, times in sorted(self.sent.items())]
        return f"{self.sent.total()} requests (answered/sent): {', '.join(lines)}"

    @property
    def never_sent(self) -> set[str]:
        """Operations of the roles that he was let in as, which he has not sent."""
        known = [*CONTROL.values(), *DATA.values()]
        return {each.name for each in known if set(each.roles) - {"publisher"}} - set(self.sent)

    # -- asking --------------------------------------------------------------------------------------------------------

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._broken = error

    def _ask_again(self, chance: random.Random) -> None:
        while not self._stopped.is_set():
            topic = chance.choice(list(self._known))
            place = self._locator.current(topic)
            if place is None:
                self._stopped.wait(0.1)
                continue
            port = chance.choice(["control", "control", "data"])
            role = chance.choice([*ROLES, "reader", "subscriber"])
            name = self._name(topic, chance) if role == "subscriber" or chance.random() < 0.3 else None
            with contextlib.suppress(JobpipeError, OSError):
                self._talk(chance, topic, port, Hello(topic, role, name, instance=f"intruder-{chance.random()}"))
            self._stopped.wait(PAUSE)

    def _talk(self, chance: random.Random, topic: str, port: str, hello: Hello) -> None:
        """Open a link and ask; raises what ends it."""
        place = self._locator.current(topic)
        if place is None:
            return
        endpoint = getattr(place, port)
        with BlockingLink.connect(endpoint, hello, tls=dial_tls(self._config, endpoint)) as link:
            if hello.role == "publisher":
                self._take(f"HELLO as a publisher of {topic}")
            if hello.role == "subscriber" and hello.name not in self._known[topic].names:
                self._take(f"HELLO as subscription {hello.name} of {topic}")
            table = CONTROL if port == "control" else DATA
            mine = [each for each in table.values() if hello.role in each.roles]
            for _ in range(chance.randrange(1, REQUESTS)):
                if self._stopped.is_set():
                    return
                operation = chance.choice(mine if chance.random() > ODD else list(table.values()))
                self._ask(chance, link, operation)
                time.sleep(PAUSE)

    def _ask(self, chance: random.Random, link: BlockingLink, operation: Operation[Any]) -> None:
        hello, op = link.hello, operation.name
        args = self._arguments(chance, hello, operation)
        with self._lock:
            self.sent[op] += 1
        try:
            if op == "fetch":
                link.start_stream(op, args, timeout=TIMEOUT)
                part = link.next_part()
                reply: dict[str, Any] = {}
                if part is not None:
                    link.abort()  # its bytes follow, and are not read
            else:
                reply = link.call(op, args, timeout=TIMEOUT).result
        except JobpipeError as error:
            with self._lock:
                self.refused[op, type(error).__name__] += 1
                if type(error) is JobpipeError:
                    self.stumbled.append(f"{op} {args}: {error!r}")
            if not link.usable():
                raise
            return
        with self._lock:
            self.answered[op] += 1
        if not self._may(hello, op, args):
            self._take(f"{op} by a {hello.role} called {hello.name}: {args}, answered with {str(reply)[:200]}")
        self._learn(hello, op, reply)

    def _take(self, what: str) -> None:
        with self._lock:
            self.taken.append(what)

    def _may(self, hello: Hello, op: str, args: Mapping[str, Any]) -> bool:
        """Tell whether the right to read, under his names, allows this."""
        names = self._known[hello.topic].names
        if hello.role == "publisher" or op in OF_NOBODY:
            return False
        if op in OF_FLOWS:
            return args["topic"] == hello.topic and args["flow"] in names
        if op in OF_NAMES:
            return not args.get("name") or args["name"] in names
        return hello.role != "subscriber" or hello.name in names

    # -- drawing -------------------------------------------------------------------------------------------------------

    def _name(self, topic: str, chance: random.Random) -> str:
        known = self._known[topic]
        others = [str(line["flow"]) for line in known.flows] + [
            name for each in self._known.values() for name in each.names
        ]
        return chance.choice(known.names if chance.random() < CONSISTENT else others)

    def _arguments(self, chance: random.Random, hello: Hello, operation: Operation[Any]) -> dict[str, Any]:
        args = self._object(chance, hello.topic, operation.request)
        if chance.random() < CONSISTENT:
            args.update(self._belonging(chance, hello, operation))
        for key in ("wait", "head_wait"):
            if key in args and chance.random() < 0.99:
                args[key] = chance.random() * WAIT
        return args

    def _object(self, chance: random.Random, topic: str, kind: type[Fields]) -> dict[str, Any]:
        drawn: dict[str, Any] = {}
        for name, check in checks(kind).items():
            if kind.__dataclass_fields__[name].default is MISSING or chance.random() < 0.6:
                drawn[name] = self._value(chance, topic, check)
        return drawn

    def _value(self, chance: random.Random, topic: str, check: Check) -> Any:
        if chance.random() < ODD:
            return chance.choice(ODD_VALUES)
        match check:
            case Integer(low, high):
                value = chance.choice([low, high, chance.choice(self._numbers), chance.choice(self._numbers) + 1])
                return min(max(value, low), high)
            case Number(low, high):
                return min(max(chance.expovariate(0.2), low), high)
            case Boolean():
                return chance.random() < 0.5
            case CheckedName():
                return self._name(topic, chance) if chance.random() < 0.8 else topic
            case PositionValue():
                return self._position(chance, topic)
            case BoundaryValue():
                return self._boundary(chance, topic)
            case Items(each, most):
                return [self._value(chance, topic, each) for _ in range(chance.randrange(min(most, 3) + 1))]
            case Nested(kind):
                return self._object(chance, topic, kind)
            case SecretText():
                return chance.choice(self._secrets)
            case Text():
                texts = [text for text in list(self._texts) if is_fit(check, text)]
                return chance.choice([*texts, fitting(check)])
        return fitting(check)

    def _boundary(self, chance: random.Random, topic: str) -> dict[str, Any]:
        kind = chance.choice(["earliest", "latest", "committed", "offset", "position", "time"])
        value: Any = None
        if kind == "position":
            value = self._position(chance, topic)
        elif kind in ("offset", "time"):
            value = chance.choice(self._numbers)
        return {"kind": kind, "value": value, "otherwise": chance.choice(["error", "latest"])}

    def _position(self, chance: random.Random, topic: str) -> dict[str, Any]:
        known = list(self._known[topic].positions)
        at: dict[str, Any] = {"log": "0" * 16, "epoch": 0, "n": 0, "r": 0}
        if known:
            at = dict(chance.choice(known))
        if chance.random() < 0.3:
            at[chance.choice(["n", "r", "epoch"])] = abs(at["n"] + chance.randrange(-3, 1000))
        return at

    def _belonging(self, chance: random.Random, hello: Hello, operation: Operation[Any]) -> dict[str, Any]:
        """Return fields that belong together: a name that he holds, with its grant, and what status says of a flow."""
        known, fields = self._known[hello.topic], checks(operation.request)
        name = hello.name if hello.role == "subscriber" and hello.name else chance.choice(known.names)
        found: dict[str, Any] = {"name": name, "flow": name, "grant": known.grants.get(name, 1), "topic": hello.topic}
        if known.positions:
            found["log"] = known.positions[-1]["log"]
        if operation.name in OF_FLOWS and known.flows:
            line = chance.choice(known.flows)
            cursor = chance.choice(line["cursors"])
            start = {"log": line["log"], "epoch": 1, "n": cursor["n"], "r": cursor["r"]}
            part = {
                "partition": cursor["partition"],
                "claim": cursor["claim"],
                "start": start,
                "to": {**start, "n": cursor["n"] + chance.randrange(1, 1000), "r": 0},
                "write_id": f"{chance.randrange(2**64):016x}",
                "segments": 0,
            }
            found |= {key: line[key] for key in ("flow", "topic", "log")}
            found |= {"grant": known.grants.get(line["flow"], 1), "partitions": [cursor["partition"]], "start": start}
            found |= {"parts": [part], "segments": []}
            if operation.name == "begin_flow":
                found["partitions"] = len(line["cursors"])
        return {key: value for key, value in found.items() if key in fields}

    # -- learning ------------------------------------------------------------------------------------------------------

    def _learn(self, hello: Hello, op: str, reply: Mapping[str, Any]) -> None:
        known = self._known[hello.topic]
        if op == "grant" and hello.name:
            known.grants[hello.name] = reply["grant"]
        if op == "status":
            known.flows = [line for line in reply["flows"] if line["cursors"]]
        self._look(known, reply, 3)

    def _look(self, known: Known, value: Any, depth: int) -> None:
        if isinstance(value, dict) and value.keys() == {"log", "epoch", "n", "r"}:
            known.positions.append(value)
        if isinstance(value, (dict, list)) and depth:
            for each in list(value.values() if isinstance(value, dict) else value)[:50]:
                self._look(known, each, depth - 1)
        elif type(value) is int:
            self._numbers.append(value)
        elif isinstance(value, str) and len(value) <= 64:
            self._texts.append(value)

    # -- letting go ----------------------------------------------------------------------------------------------------

    def _tidy_again(self) -> None:
        while not self._stopped.wait(TIDY_SECONDS):
            for topic, known in self._known.items():
                with contextlib.suppress(JobpipeError, OSError):
                    self._tidy(topic, known)

    def _tidy(self, topic: str, known: Known) -> None:
        place = self._locator.current(topic)
        if place is None:
            return
        tls = dial_tls(self._config, place.control)
        with BlockingLink.connect(place.control, Hello(topic, "admin", instance="intruder"), tls=tls) as link:
            for name in known.names:
                for op in ("drop", "release_hold"):
                    with contextlib.suppress(JobpipeError):
                        link.call(op, {"name": name, "dry_run": False}, timeout=TIMEOUT)
        with BlockingLink.connect(place.control, Hello(topic, "reader", instance="intruder"), tls=tls) as link:
            for secret in self._secrets:
                with contextlib.suppress(JobpipeError):
                    link.call("release", {"secret": secret}, timeout=TIMEOUT)
