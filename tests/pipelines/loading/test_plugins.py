"""Plug-ins of other distributions: found by their entry points, and told of when they are broken."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import pytest

from jobpipe.errors import ConfigError
from jobpipe.pipelines.plugins.api import Sink, require_columns
from jobpipe.pipelines.plugins.plugin_discovery import BUILT_IN, PlugInError, PlugInKind, Plugins
from jobpipe.pipelines.plugins.plugin_help import explain
from tests.pipelines.conftest import Write, loaded, problems

WEATHER = '''
from datetime import date
from threading import Thread

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

from jobpipe.pipelines.plugins.api import OptionError, PluginOptions, DeliveryGuarantee, Sink, Source, Topics


class Weather(Source):
    """Rows of a weather station."""

    type = "weather"

    class Options(PluginOptions):
        """Which one."""

        station_name: str = Field(description="Its name.")
        every: int = Field(default=5, ge=1, description="Minutes.")
        password: str | None = Field(default=None, description="Of its owner.")
        seed: SecretStr | None = Field(default=None, description="Of its numbers.")
        address: str | None = Field(default=None, description="Where it is.")

    options: Options

    def check(self, mode):
        if self.options.station_name == "nowhere":
            yield OptionError("station-name", "there is no such station", "name another")

    def load(self, spark, job):
        return spark.range(1)

    def topics(self):
        return Topics(("weather",)) if self.options.every == 60 else Topics()


class Broken(Weather):
    """Fails in its constructor."""

    type = "broken"

    def __init__(self, options):
        raise RuntimeError("out of order")


class Ends(Weather):
    """Ends the process."""

    type = "ends"

    def __init__(self, options):
        raise SystemExit(5)


class Says(Weather):
    """Complains in plain text."""

    type = "says"

    def check(self, mode):
        yield "not so"


class Plain(Weather):
    """Takes what it knows, and drops the rest."""

    type = "plain"

    class Options(BaseModel):
        """Which one."""


class Open(Weather):
    """Takes anything."""

    type = "open"

    class Options(PluginOptions):
        """Which one."""

        model_config = ConfigDict(extra="allow")


class Opaque(Weather):
    """Has an option that no schema can tell of."""

    type = "opaque"

    class Options(PluginOptions):
        """Which one."""

        model_config = ConfigDict(arbitrary_types_allowed=True)

        handle: Thread | None = Field(default=None, description="What it holds.")


class Rich(Weather):
    """Has many types of options."""

    type = "rich"

    class Options(PluginOptions):
        """Which one."""

        names: str = Field(default="x", description="Several.")
        count: int = Field(default=1, gt=0, lt=10, description="How many.")
        day: date | None = Field(default=None, description="When.")
        either: int | list[str] | None = Field(default=None, description="A number or names.")
        pair: tuple[int, str] | None = Field(default=None, description="Both.")

        @field_validator("pair")
        @classmethod
        def _not_seven(cls, pair):
            if pair == (7, "x"):
                raise ValueError("it is\\nseven; give\\nanother")
            return pair


class Mail(Sink):
    """Sends mail."""

    type = "mail"
    promise = DeliveryGuarantee(False, "mail cannot be taken back")


class NoPromise(Sink):
    """Says nothing."""

    type = "nopromise"

    def write(self, batch, batch_id, job):
        pass


class Silent(Weather):
    type = "silent"

    __doc__ = ""
'''
FILE = """
pipeline: {name: x}
jobs:
  a:
    source: %s
    sink: {type: console}
"""
Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Return a maker of distributions: a module, and its entry points, on the path of this process."""

    def install(name: str, entries: str, code: str = WEATHER) -> None:
        folder = tmp_path / name
        module = name.replace("-", "_")
        about = folder / f"{module}-1.0.dist-info"
        about.mkdir(parents=True)
        (folder / f"{module}.py").write_text(code)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(dedent(entries))
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.delitem(sys.modules, module, raising=False)

    return install


def source(of: str) -> str:
    return f"[jobpipe.sources]\n{of}\n"


def test_a_stranger(install: Install, write: Write) -> None:
    """Declared as the built-in ones are; its options are checked by its own model, with the same words."""
    install("acme-weather", source("weather = acme_weather:Weather"))
    pipeline = loaded(write(FILE % "{type: weather, station-name: Berlin}"))
    plugin = pipeline.jobs["a"].stages[0].plugin
    assert (type(plugin).__module__, plugin.options.station_name, plugin.options.every) == ("acme_weather", "Berlin", 5)
    found = problems(write(FILE % "{type: weather, station: Berlin, every: 0}"))
    assert [(problem.line, problem.key, problem.remedy) for problem in found] == [
        (5, "jobs.a.source.station-name", "give it: Its name."),
        (5, "jobs.a.source.every", "give a number of at least 1"),
        (5, "jobs.a.source.station", "did you mean station-name?"),
    ]
    (problem,) = problems(write(FILE % "{type: weather, station-name: nowhere}"))
    assert (problem.key, problem.remedy) == ("jobs.a.source.station-name", "name another")
    text = explain(Plugins(), "weather")
    assert text.splitlines()[:2] == ["weather (source of acme-weather)", "  Rows of a weather station."]
    assert "  station-name (required)\n      Its name." in text


def test_a_secret_of_a_stranger(install: Install, write: Write) -> None:
    """By its name, its type, or within a URL; references are what the plug-in gets."""
    install("acme-weather", source("weather = acme_weather:Weather"))
    station = "{type: weather, station-name: x, password: %s, seed: %s, address: %s}"
    found = problems(write(FILE % (station % ("hunter2", "hunter2", "'https://u:hunter2@h'"))))
    assert [problem.key.rpartition(".")[2] for problem in found] == ["password", "seed", "address"]
    assert "hunter2" not in "".join(map(str, found))
    loaded(write(FILE % (station % ("env:A", "file:b", "https://u@h"))))


@pytest.mark.parametrize(
    ("entry", "what"),
    [
        ("weather = acme_weather:Nosuch", "cannot be imported: AttributeError"),
        ("weather = acme_nosuch:Weather", "cannot be imported: ModuleNotFoundError"),
        ("weather = acme_weather:Topics", "is not a subclass of Source"),
        ("weather = acme_weather:WEATHER", "cannot be imported"),
        ("weather = acme_weather:Mail", "is not a subclass of Source"),
        ("weather = acme_weather:Broken", "says that its type is 'broken'"),
        ("silent = acme_weather:Silent", "has no docstring"),
        ("broken = acme_weather:Broken", "the plug-in fails: RuntimeError: out of order"),
        ("ends = acme_weather:Ends", "the plug-in fails: SystemExit: 5"),
        ("says = acme_weather:Says", "the plug-in fails: TypeError: check() yields str, and not OptionError"),
        ("plain = acme_weather:Plain", "has Options that are not a subclass of PluginOptions"),
        ("open = acme_weather:Open", "has Options that take unknown keys"),
    ],
)
def test_a_broken_one(install: Install, write: Write, entry: str, what: str) -> None:
    """It is a problem of the file that names it, not a crash."""
    install("acme-weather", source(entry))
    (problem,) = problems(write(FILE % f"{{type: {entry.partition(' ')[0]}, station-name: x}}"))
    assert (problem.line, problem.key) == (5, "jobs.a.source.type")
    assert what in problem.what


def test_a_module_that_ends_the_process(install: Install, write: Write) -> None:
    install("acme-weather", source("weather = acme_weather:Weather"), "raise SystemExit(3)")
    (problem,) = problems(write(FILE % "{type: weather}"))
    assert "cannot be imported: SystemExit" in problem.what


@pytest.mark.parametrize(
    ("options", "key", "said"),
    [
        ("name: y", "name", "there is no such key; did you mean names?"),
        ("count: 0", "count", "0 is not valid; give a number greater than 0"),
        ("count: 10", "count", "10 is not valid; give a number less than 10"),
        ("day: soon", "day", "'soon' is not valid; give a valid date or datetime"),
        ("either: {a: 1}", "either", "an object of 1 is not valid; give a whole number or a list"),
        ("either: [1]", "either[0]", "1 is not valid; give a text"),
        ("pair: [7, x]", "pair", "it is seven; give another"),
    ],
)
def test_options_are_told_in_plain_words(install: Install, write: Write, options: str, key: str, said: str) -> None:
    """Not in pydantic's, each in one line."""
    install("acme-weather", source("rich = acme_weather:Rich"))
    found = [str(problem).partition(": ")[2] for problem in problems(write(FILE % f"{{type: rich, {options}}}"))]
    assert any(line.startswith(f"jobs.a.source.{key}: {said}") for line in found), found


def test_a_module_that_prints(install: Install, capfd: pytest.CaptureFixture[str]) -> None:
    """Not into what a command prints: others may read that as JSON."""
    install("acme-weather", source("weather = acme_weather:Weather"), f"print('loaded')\n{WEATHER}")
    Plugins().find(PlugInKind.SOURCE, "weather")
    out, err = capfd.readouterr()
    assert (out, err) == ("", "loaded\n")


def test_options_without_a_schema_are_explained(install: Install) -> None:
    install("acme-weather", source("opaque = acme_weather:Opaque"))
    text = explain(Plugins(), "opaque")
    assert "  handle\n      What it holds." in text


@pytest.mark.parametrize(("name", "what"), [("Mail", "lacks write"), ("NoPromise", "does not say what it promises")])
def test_a_broken_sink(install: Install, name: str, what: str) -> None:
    install("acme-weather", f"[jobpipe.sinks]\n{name.lower()} = acme_weather:{name}\n")
    with pytest.raises(PlugInError, match=what):
        Plugins().find(PlugInKind.SINK, name.lower())


def test_two_of_one_name(install: Install, write: Write) -> None:
    """Both distributions are named; files that do not use it are fine."""
    install("acme-weather", source("weather = acme_weather:Weather"))
    install("other-weather", source("weather = other_weather:Weather"))
    install("my-csv", source("csv = my_csv:Weather"))
    (problem,) = problems(write(FILE % "{type: weather, station-name: x}"))
    assert "acme-weather (acme_weather:Weather)" in problem.what
    assert "other-weather (other_weather:Weather)" in problem.what
    (problem,) = problems(write(FILE % "{type: csv, path: x}"))
    assert "two sources of type csv, of" in problem.what
    assert "jobpipe (jobpipe.pipelines.sources.format_sources:CsvSource)" in problem.what
    loaded(write(FILE % "{type: rate}"))


def test_the_built_in_ones() -> None:
    """All can be loaded, say what they are, and are explained; each option has a description."""
    plugins = Plugins()
    mine = [each for each in plugins.all() if each.distribution == BUILT_IN]
    assert {(each.kind, each.type) for each in mine} >= {
        (PlugInKind.SOURCE, "jobpipe"),
        (PlugInKind.SOURCE, "python"),
        (PlugInKind.TRANSFORM, "Cast"),
        (PlugInKind.TRANSFORM, "sql"),
        (PlugInKind.SINK, "jobpipe"),
        (PlugInKind.LAUNCHER, "local"),
    }
    for each in mine:
        found = each.load()
        schema = found.Options.model_json_schema()
        assert all(field.get("description") or "$ref" in field for field in schema["properties"].values()), each
        assert f"{each.type} ({each.kind} of jobpipe)" in explain(plugins, each.type)
        if each.type == "jobpipe" and each.kind is PlugInKind.SOURCE:
            assert "expected: earliest, latest, committed, or JSON" in explain(plugins, each.type)
        if issubclass(found, Sink):
            assert str(found.promise) in explain(plugins, each.type)


def test_an_unknown_type_is_explained_by_the_nearest() -> None:
    with pytest.raises(PlugInError, match=r"no plug-in of type 'jsonn'; did you mean json\?"):
        explain(Plugins(), "jsonn")


def test_a_missing_column_is_told_with_those_that_are_there() -> None:
    frame: Any = SimpleNamespace(columns=["id", "a.b"])
    require_columns(frame, ["a.b"], "weather")
    with pytest.raises(ConfigError, match=r"^weather: the rows have no column b, c; there are id, a\.b$") as told:
        require_columns(frame, ["id", "b", "c"], "weather")
    assert told.value.fields["columns"] == ["b", "c"]
