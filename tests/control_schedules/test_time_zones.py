"""Time zones of a host without time zone files, as small containers are (Q12)."""

from __future__ import annotations

import sys
import zoneinfo
from collections.abc import Iterator
from datetime import UTC
from pathlib import Path

import pytest

from jobpipe.errors import ConfigError, PipelineError
from jobpipe.pipelines.file.time_zones import UTC_NAMES, time_zone
from jobpipe.pipelines.loading.loader import load_tree
from jobpipe.pipelines.plugins.plugin_discovery import Plugins
from tests.control_schedules.rules import at, rule

PATHS = zoneinfo.TZPATH


@pytest.fixture
def no_files(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Neither the host's files nor those of the package tzdata."""
    for name in ["tzdata", *(name for name in sys.modules if name.startswith("tzdata."))]:  # other tests import some
        monkeypatch.setitem(sys.modules, name, None)
    zoneinfo.reset_tzpath(to=[])
    zoneinfo.ZoneInfo.clear_cache()
    yield
    zoneinfo.reset_tzpath(to=PATHS)


def scheduled(folder: Path, schedule: dict[str, str]) -> None:
    """Load a file as the server loads the ones it has stored."""
    job = {
        "execution": {"runtime-mode": "BATCH"},
        "source": {"type": "jobpipe", "subscribe": "orders"},
        "sink": {"type": "json", "path": "out/${run.lower}"},
        "schedule": schedule,
    }
    load_tree(
        {"pipeline": {"name": "nightly"}, "jobs": {"daily": job}}, file="p.yaml", folder=folder, plugins=Plugins()
    )


@pytest.mark.parametrize("name", sorted(UTC_NAMES))
def test_every_name_of_utc_is_utc(name: str) -> None:
    assert zoneinfo.ZoneInfo(name).utcoffset(at("2026-07-01 00:00")) == time_zone(name).utcoffset(None)


@pytest.mark.usefixtures("no_files")
@pytest.mark.parametrize("name", [None, "UTC", "GMT", "Etc/UTC"])
@pytest.mark.parametrize("given", ["0 2 * * *", "day", "2 weeks", "hour"])
def test_utc_needs_no_files(given: str, name: str | None, tmp_path: Path) -> None:
    more = {} if name is None else {"timezone": name}
    made = rule(given, **more)
    assert made.zone is UTC
    assert made.times.after(at("2026-10-24 12:00")) == at(
        {"0 2 * * *": "2026-10-25 02:00", "day": "2026-10-25 00:00", "hour": "2026-10-24 13:00"}.get(
            given, "2026-11-02 00:00"
        )
    )
    scheduled(tmp_path, {"crontab" if "*" in given else "every": given, **more})


@pytest.mark.parametrize("given", ["crontab", "every"])
def test_another_zone_says_what_is_missing(given: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """In a file that is read, and of a schedule that was stored before the files were gone."""
    schedule = {given: "0 2 * * *" if given == "crontab" else "day"}
    scheduled(tmp_path, {**schedule, "timezone": "Europe/Berlin"})
    rule(*schedule.values(), timezone="Europe/Berlin")
    request.getfixturevalue("no_files")
    with pytest.raises(PipelineError, match=r"timezone: this host has no time zone files; pip install tzdata, or"):
        scheduled(tmp_path, {**schedule, "timezone": "Europe/Berlin"})
    with pytest.raises(ConfigError, match=r"'Europe/Berlin' cannot be read: .*; pip install tzdata, or give UTC"):
        time_zone("Europe/Berlin")


@pytest.mark.parametrize("name", ["Berlin", "/etc/localtime", "../UTC", "", "utc\0"])
def test_a_wrong_name_is_told_as_one(name: str) -> None:
    with pytest.raises(ConfigError, match="is no time zone of this host; give one such as Europe/Berlin or UTC"):
        time_zone(name)
