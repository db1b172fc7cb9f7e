"""Engines of others on a server: found by their entry points, started when needed, told until they understand."""

from __future__ import annotations

import importlib
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from jobpipe.control.scheduler import engine_pool
from jobpipe.control.scheduler.builtin_engine import BuiltinEngine
from jobpipe.control.scheduler.engine_pool import EnginePool
from jobpipe.control.scheduler.external_engine import ExternalEngine
from jobpipe.pipelines.plugins.plugin_discovery import BUILT_IN, PlugInError, PlugInKind, Plugins
from jobpipe.pipelines.plugins.schedule_engine import Schedule
from tests.control_schedules.rules import at, spec
from tests.pipelines.waiting import eventually

DEADLINE = 60.0
QUARTZ = '''
import threading
from pydantic import Field
from jobpipe.pipelines.plugins.schedule_engine import ScheduleEngine
from jobpipe.pipelines.plugins.api import PluginOptions

MADE, SAID, FAILS, GATE = [], [], [], threading.Event()
GATE.set()


class Quartz(ScheduleEngine):
    """Fires by a Quartz of one's own."""

    type = "quartz"

    class Options(PluginOptions):
        url: str = Field(description="Where it is.")

    def __init__(self, options, fire):
        super().__init__(options, fire)
        MADE.append(self)

    @classmethod
    def accept(cls, type_):
        return type_.lower() in ("quartz", "quartz2")

    def _say(self, *what):
        assert GATE.wait(60)
        if FAILS:
            raise ConnectionError(FAILS.pop(0))
        SAID.append((self.options.url, *what))

    def register(self, schedule):
        self._say("register", schedule.id, schedule.spec.every)

    def update(self, schedule):
        self._say("update", schedule.id, schedule.spec.every)

    def unregister(self, id_):
        self._say("unregister", id_)

    def start(self):
        self._say("start")

    def stop(self):
        assert GATE.wait(60)
        SAID.append((self.options.url, "stop"))


class Half(ScheduleEngine):
    """Lacks most."""

    type = "half"

    def start(self):
        pass
'''


@pytest.fixture
def quartz(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Install a distribution with two engines on the path of this process; return its module."""
    about = tmp_path / "acme_quartz-1.0.dist-info"
    about.mkdir()
    (tmp_path / "acme_quartz.py").write_text(QUARTZ)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-quartz\nVersion: 1.0\n")
    entries = """\
        [jobpipe.engines]
        quartz = acme_quartz:Quartz
        half = acme_quartz:Half
    """
    (about / "entry_points.txt").write_text(dedent(entries))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "acme_quartz", raising=False)
    return importlib.import_module("acme_quartz")


class Fired:
    """What was fired."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, datetime]] = []

    def __call__(self, id_: str, moment: datetime) -> None:
        self.calls.append((id_, moment))


Open = Callable[[], EnginePool]


@pytest.fixture
def opened(quartz: Any) -> Iterator[Open]:
    """Return what makes pools; they end with the test, with all their threads."""
    before = set(threading.enumerate())
    pools: list[EnginePool] = []

    def make() -> EnginePool:
        pools.append(EnginePool(fired, Plugins()))
        return pools[-1]

    fired = Fired()
    yield make
    quartz.GATE.set()
    quartz.FAILS.clear()
    for pool in pools:
        pool.close()
    assert set(threading.enumerate()) <= before


def by(type_: str, id_: str = "shop.daily", every: str = "hour", **options: Any) -> Schedule:
    return Schedule(id_, spec(every, engine={"type": type_, **options}))


def said(quartz: Any, *what: tuple[str, ...]) -> None:
    """Wait until the engine was told so much, and nothing else."""
    eventually(lambda: len(quartz.SAID) >= len(what))
    assert list(what) == quartz.SAID


def test_an_engine_is_found_by_its_type_or_another_name(quartz: Any, caplog: pytest.LogCaptureFixture) -> None:
    plugins = Plugins()
    assert plugins.find(PlugInKind.ENGINE, "quartz") is quartz.Quartz
    assert plugins.find(PlugInKind.ENGINE, "QUARTZ2") is quartz.Quartz
    assert "plug-in half of acme-quartz (acme_quartz:Half) lacks register, stop, unregister, update" in caplog.text
    with pytest.raises(PlugInError, match=r"no engine of type 'quarts'; did you mean quartz\?"):
        plugins.find(PlugInKind.ENGINE, "quarts")
    with pytest.raises(PlugInError, match="lacks"):
        plugins.find(PlugInKind.ENGINE, "half")


def test_the_engines_that_are_declared() -> None:
    plugins = Plugins()
    found = [each for each in plugins.all() if each.kind is PlugInKind.ENGINE]
    assert [(each.type, each.distribution) for each in found] == [("builtin", BUILT_IN), ("external", BUILT_IN)]
    assert plugins.find(PlugInKind.ENGINE, "builtin") is BuiltinEngine
    assert plugins.find(PlugInKind.ENGINE, "external") is ExternalEngine


def test_an_engine_is_told_of_its_schedules(quartz: Any, opened: Open, tmp_path: Path) -> None:
    """It starts with the first one, hears of changes alone, and stops with the server."""
    pool = opened()
    pool.put(by("quartz", url="a"), tmp_path)
    said(quartz, ("a", "start"), ("a", "register", "shop.daily", "hour"))
    pool.put(by("quartz", url="a"), tmp_path)
    pool.put(by("quartz", "shop.other", url="a"), tmp_path)
    eventually(lambda: ("a", "register", "shop.other", "hour") in quartz.SAID)
    pool.put(by("quartz", every="day", url="a"), tmp_path)
    pool.drop("shop.other")
    eventually(lambda: ("a", "unregister", "shop.other") in quartz.SAID)
    eventually(lambda: ("a", "update", "shop.daily", "day") in quartz.SAID)
    pool.close()
    assert quartz.SAID.count(("a", "start")) == 1
    assert sum(each[1:3] == ("update", "shop.daily") for each in quartz.SAID) == 1
    assert quartz.SAID[-1] == ("a", "stop")
    pool.put(by("quartz", "shop.late", url="a"), tmp_path)  # is not taken any more
    assert len(quartz.MADE) == 1


def test_it_may_fire_from_any_thread(quartz: Any, tmp_path: Path) -> None:
    fired = Fired()
    pool = EnginePool(fired, Plugins())
    pool.put(by("quartz", url="a"), tmp_path)
    said(quartz, ("a", "start"), ("a", "register", "shop.daily", "hour"))
    quartz.MADE[0].fire("shop.daily", at("2026-11-01 09:00"))
    assert fired.calls == [("shop.daily", at("2026-11-01 09:00"))]
    pool.close()


def test_a_schedule_goes_to_another_engine(quartz: Any, opened: Open, tmp_path: Path) -> None:
    """With other options it is another one; the first one, which has none left, stops."""
    pool = opened()
    pool.put(by("quartz", url="a"), tmp_path)
    said(quartz, ("a", "start"), ("a", "register", "shop.daily", "hour"))
    pool.put(by("quartz", url="b"), tmp_path)
    eventually(lambda: ("b", "register", "shop.daily", "hour") in quartz.SAID)
    eventually(lambda: ("a", "unregister", "shop.daily") in quartz.SAID)
    pool.put(by("builtin"), tmp_path)
    eventually(lambda: ("a", "stop") in quartz.SAID)
    eventually(lambda: ("b", "unregister", "shop.daily") in quartz.SAID)
    assert pool.problem("shop.daily") == ""


def test_what_fails_is_tried_again(
    quartz: Any, opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its start, and each schedule; meanwhile that is the schedule's problem."""
    quartz.FAILS += ["no route", "401"]
    monkeypatch.setattr(engine_pool, "RETRY_SECONDS", 3600.0)
    pool = opened()
    pool.put(by("quartz", url="a"), tmp_path)
    eventually(lambda: pool.problem("shop.daily") != "")
    assert pool.problem("shop.daily") == "engine quartz does not start: ConnectionError: no route"
    assert "schedule shop.daily: engine quartz does not start" in caplog.text
    pool.close()

    monkeypatch.setattr(engine_pool, "RETRY_SECONDS", 0.0)
    again = opened()
    with caplog.at_level(logging.WARNING):
        again.put(by("quartz", url="a"), tmp_path)
        failed = [("a", "stop"), ("a", "stop")]  # what they have begun
        said(quartz, *failed, ("a", "start"), ("a", "register", "shop.daily", "hour"))
        eventually(lambda: again.problem("shop.daily") == "")
    assert "does not start: ConnectionError: 401" in caplog.text

    quartz.FAILS += ["403"]
    again.put(by("quartz", "shop.other", url="a"), tmp_path)
    eventually(lambda: ("a", "register", "shop.other", "hour") in quartz.SAID)
    assert "engine quartz does not take the schedule: ConnectionError: 403" in caplog.text


def test_an_engine_with_wrong_options_or_that_is_gone(opened: Open, tmp_path: Path) -> None:
    """They were right when the file was submitted; the plug-in has changed."""
    pool = opened()
    pool.put(by("quartz", "shop.right", url="a"), tmp_path)
    pool.put(by("quartz"), tmp_path)
    pool.put(by("gone", "shop.gone"), tmp_path)
    eventually(lambda: "url" in pool.problem("shop.daily"))
    eventually(lambda: "there is no engine of type 'gone'" in pool.problem("shop.gone"))
    assert pool.problem("shop.right") == ""


def test_an_engine_that_hangs_hinders_no_other(
    quartz: Any, opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(engine_pool, "CLOSE_SECONDS", 0.05)
    quartz.GATE.clear()
    pool = opened()
    pool.put(by("quartz", url="a"), tmp_path)
    eventually(lambda: len(quartz.MADE) == 1)
    pool.put(by("builtin", "shop.quick"), tmp_path)
    builtin = pool._engines[pool._engine_keys["shop.quick"]]
    eventually(lambda: not builtin._wanted["shop.quick"].open)
    pool.close()
    assert "has not stopped within" in caplog.text
    monkeypatch.setattr(engine_pool, "CLOSE_SECONDS", DEADLINE)
    quartz.GATE.set()


def test_engines_are_bounded(quartz: Any, opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options that change often leave no engines; too many different ones are a problem of the schedule."""
    monkeypatch.setattr(engine_pool, "MOST_ENGINES", 3)
    pool = opened()
    for number in range(3):
        pool.put(by("quartz", f"shop.{number}", url=str(number)), tmp_path)
    pool.put(by("quartz", "shop.more", url="3"), tmp_path)
    assert "at most 3 engines" in pool.problem("shop.more")
    pool.put(by("quartz", "shop.more", url="2"), tmp_path)
    pool.drop("shop.0")
    assert "at most 3 engines" not in pool.problem("shop.more")
    pool.put(by("quartz", "shop.late", url="4"), tmp_path)
    pool.put(by("quartz", "shop.later", url="5"), tmp_path)
    assert "at most 3 engines" in pool.problem("shop.later")
    pool.drop("shop.1")
    eventually(lambda: ("5", "register", "shop.later", "hour") in quartz.SAID)  # it was tried again
    assert pool.problem("shop.later") == ""
    assert len(pool._engines) == 3


def test_an_engine_that_cannot_start_goes_with_its_schedule(
    quartz: Any, opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is stopped, since it may have begun something, and not tried for ever."""
    monkeypatch.setattr(engine_pool, "MOST_ENGINES", 2)
    quartz.FAILS += ["no port"]
    pool = opened()
    pool.put(by("quartz", url="a"), tmp_path)
    eventually(lambda: pool.problem("shop.daily") != "")
    assert quartz.SAID == [("a", "stop")]
    before = threading.active_count()
    for number in range(20):
        quartz.FAILS += ["no port"]

        def taken(url: str = str(number)) -> bool:
            pool.put(by("quartz", url=url), tmp_path)
            return "at most" not in pool.problem("shop.daily")

        eventually(taken)
    quartz.FAILS.clear()
    assert threading.active_count() <= before + 1
    pool.drop("shop.daily")
    eventually(lambda: threading.active_count() < before)
    assert pool.problem("shop.daily") == ""


def test_an_engine_begins_when_the_one_before_has_stopped(quartz: Any, opened: Open, tmp_path: Path) -> None:
    """Both may need the same port."""
    pool = opened()
    pool.put(by("quartz", url="a"), tmp_path)
    said(quartz, ("a", "start"), ("a", "register", "shop.daily", "hour"))
    pool.put(by("quartz", url="b"), tmp_path)
    eventually(lambda: ("b", "register", "shop.daily", "hour") in quartz.SAID)
    assert quartz.SAID.index(("a", "stop")) < quartz.SAID.index(("b", "start"))


def test_a_schedule_that_comes_back_before_it_was_forgotten(
    quartz: Any, opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its engine goes on, so that nothing unregisters what is registered again."""
    monkeypatch.setattr(engine_pool, "RETRY_SECONDS", 3600.0)
    pool = opened()
    pool.put(by("quartz", url="a"), tmp_path)
    said(quartz, ("a", "start"), ("a", "register", "shop.daily", "hour"))
    quartz.FAILS += ["away"]
    pool.drop("shop.daily")
    eventually(lambda: quartz.FAILS == [])
    pool.put(by("quartz", url="a"), tmp_path)
    said(quartz, ("a", "start"), *[("a", "register", "shop.daily", "hour")] * 2)
    (engine,) = pool._engines.values()
    engine.give_up()  # as one does that has waited for it since before
    assert not engine.is_ending
    quartz.FAILS += ["away"]
    pool.drop("shop.daily")
    eventually(lambda: quartz.FAILS == [])
    engine.give_up()
    eventually(lambda: quartz.SAID[-1] == ("a", "stop"))
    pool.close()
    assert len(quartz.MADE) == 1


def test_answers_that_are_lost(quartz: Any, opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an engine may have taken is unregistered; what it may have forgotten is registered."""
    monkeypatch.setattr(engine_pool, "RETRY_SECONDS", 3600.0)
    pool = opened()
    pool.put(by("quartz", "shop.other", url="a"), tmp_path)
    eventually(lambda: ("a", "register", "shop.other", "hour") in quartz.SAID)
    quartz.FAILS += ["no answer"]
    pool.put(by("quartz", url="a"), tmp_path)
    eventually(lambda: "no answer" in pool.problem("shop.daily"))
    pool.drop("shop.daily")
    eventually(lambda: ("a", "unregister", "shop.daily") in quartz.SAID)
    quartz.FAILS += ["no answer"]
    pool.put(by("quartz", "shop.other", every="day", url="a"), tmp_path)
    eventually(lambda: "no answer" in pool.problem("shop.other"))
    pool.put(by("quartz", "shop.other", every="week", url="a"), tmp_path)
    eventually(lambda: ("a", "register", "shop.other", "week") in quartz.SAID)


def test_an_engine_that_does_not_forget(
    quartz: Any, opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not told for ever."""
    monkeypatch.setattr(engine_pool, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(engine_pool, "MOST_TRIES", 5)
    pool = opened()
    pool.put(by("quartz", url="a"), tmp_path)
    said(quartz, ("a", "start"), ("a", "register", "shop.daily", "hour"))
    quartz.FAILS += ["away"] * 5
    pool.drop("shop.daily")
    eventually(lambda: quartz.SAID[-1] == ("a", "stop"))
    assert quartz.FAILS == []


def test_an_engine_that_fails_to_say_what_it_accepts(quartz: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(type_: str) -> bool:
        raise ZeroDivisionError

    monkeypatch.setattr(quartz.Quartz, "accept", fails)
    with pytest.raises(PlugInError, match="no engine of type 'other'"):
        Plugins().find(PlugInKind.ENGINE, "other")
