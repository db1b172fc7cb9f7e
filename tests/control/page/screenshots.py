"""Makes the pictures of docs/page.md, from a core in memory: ``python -m tests.control.page.screenshots [FOLDER]``.

They are looked at by people: light and dark, wide and small.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from jobpipe.config import load
from jobpipe.control.control_service import AttemptView, IntervalView, RunView
from jobpipe.control.history.history import History
from jobpipe.control.history.series import SeriesKey
from jobpipe.control.rest.rest_server import RestServer
from jobpipe.control.server_files import ServerFiles
from jobpipe.operations.messages.ledger_messages import HopCounts, HopLedger, HopMinute, LedgerMinute, RowDifference
from jobpipe.operations.status_operations import LedgerReply, TopicStatus
from jobpipe.pipelines.model.job_states import JobState
from tests.control.page.kit import job_status, put_pipeline, put_topics, topic
from tests.control_api.kit import SCHEDULE, MemoryControl

CHROMIUM = "/usr/bin/chromium"
ERROR = "ValueError: topic orders, partition 3, offset 912: column price: 'n/a' is no number"


@dataclass(frozen=True)
class Picture:
    """A page as it is pictured."""

    name: str
    path: str
    width: int = 1280
    height: int = 720
    dark: bool = False


PICTURES = (
    Picture("graph", "/"),
    Picture("graph-small", "/", 390, 720, dark=True),
    Picture("job", "/ui/jobs/shop/enrich", height=900, dark=True),
    Picture("topic", "/ui/topics/orders", height=900),
    Picture("schedules", "/ui/schedules", height=400),
    Picture("ledger", "/ui/ledger/orders-enriched?subscription=shop.fraud", height=760),
)


def fill(control: MemoryControl, now: float) -> None:
    """Let a shop's jobs run, of which one has failed and one is slow."""
    since = {"since": now - 5400, "known_at": now}
    put_pipeline(
        control,
        job_status("ingest", "shop", publishes=("orders",), rows=1_284_310, **since),
        job_status("enrich", "shop", reads=("orders",), publishes=("orders-enriched",), rows=1_284_002, **since),
        job_status("fraud", "shop", reads=("orders-enriched",), publishes=("alarms",), rows=1_283_990, **since),
        job_status(
            "invoices", "shop", JobState.FAILED, reads=("orders",), publishes=("invoices",), detail=ERROR, **since
        ),
        job_status(
            "totals", "shop", reads=("orders-enriched",), scheduled=True, schedule=SCHEDULE, rows=91_200, **since
        ),
        name="shop",
    )
    _look(control, 0.0)
    attempts = tuple(
        AttemptView(
            number=number,
            state=JobState.RUNNING if number == 2 else JobState.FAILED,
            began=now - 5400 + 900 * number,
            ended=None if number == 2 else now - 3700,
            detail="" if number == 2 else "PySparkException: Python worker exited unexpectedly",
            exit_code=None if number == 2 else 1,
            batches=400 + number,
            rows=600_000 + 42_001 * number,
        )
        for number in (1, 2)
    )
    run = RunView(
        id="20261130T080000Z-5b1c9a2e",
        pipeline="shop",
        job="enrich",
        state=JobState.RUNNING,
        began=now - 5400,
        attempts=attempts,
    )
    control.run_views[run.id] = run
    control.lines = tuple(f"micro-batch {number}: 1,520 rows in 0.41 s" for number in range(300, 340))
    control.schedule_views[("shop", "totals")] = replace(SCHEDULE, pipeline="shop", job="totals", rule="0 2 * * *")
    control.intervals = _intervals  # type: ignore[method-assign]


def _look(control: MemoryControl, seconds: float) -> None:
    """Let the topics stand as they do after so many seconds."""
    at = 100.0 + seconds
    readers = {"shop.enrich": (640, 0.4), "shop.invoices": (412_600 + int(1520 * seconds), 340.0 + seconds)}
    put_topics(
        control,
        _counted(topic("orders", "shop.ingest", readers, absent=["shop.invoices"], **_orders(seconds), at=at)),
        _counted(
            topic(
                "orders-enriched",
                "shop.enrich",
                {"shop.fraud": (120, 0.1), "notebook": (18_200, 12.0)},
                rows=1_284_002 + int(1518 * seconds),
                at=at,
            ),
            control,
        ),
        _counted(topic("alarms", "shop.fraud", {"pager": (0, 0.0)}, rows=312, at=at)),
    )


def _counted(status: TopicStatus, control: MemoryControl | None = None) -> TopicStatus:
    """Return a status with accounts: all rows are equal, unless the first subscription's ledger is to be shown."""
    lines = []
    for line in status.subscriptions:
        committed = status.rows - line.lag.rows
        counts = HopCounts(committed=committed, read=committed)
        if control is not None and not lines:
            counts = _different(control, status.topic, line.name, committed)
        lines.append(replace(line, counts=counts))
    return replace(status, subscriptions=tuple(lines))


def _different(control: MemoryControl, topic_name: str, name: str, committed: int) -> HopCounts:
    """Let a row be lost eight minutes ago, and return the counts."""
    minute, rows = int(time.time() // 60), 91_080
    found = RowDifference(
        first=741,
        end=743,
        published=1_520,
        read=1_519,
        partitions=(2,),
        found=60.0 * minute - 478.0,
        reason="counted",
    )
    counts = HopCounts(committed=committed, read=committed - 1, lost=1, differences=1, newest=found)
    minutes = [HopMinute(rows, rows, rows - (age == 8), differs=age == 8) for age in range(14, 0, -1)]
    hop = HopLedger(
        name=name,
        position=812,
        counts=counts,
        minutes=(*minutes, HopMinute(31_878, 31_758, 31_758)),
        differences=(found,),
    )
    listed = tuple(LedgerMinute(minute - age, 810 - 9 * age, 819 - 9 * age, rows) for age in range(14, -1, -1))
    control.ledgers[topic_name] = LedgerReply(topic=topic_name, at=time.time(), minutes=listed, hops=(hop,))
    return counts


def _orders(seconds: float) -> dict[str, int]:
    sizes = {"parallelism": 4, "head": 812, "stored_bytes": 71_000_000, "spool_limit": 8 << 30, "bytes": 104_000_000}
    return {"rows": 1_284_310 + int(1520 * seconds), **sizes}


def _intervals(pipeline: str, job: str, *, limit: int = 100) -> tuple[IntervalView, ...]:
    states = {20: "FAILED", 29: "RUNNING"}
    return tuple(
        IntervalView(
            pipeline=pipeline,
            job=job,
            lower=f"2026-11-{day:02}T02:00:00Z",
            upper=f"2026-11-{day + 1:02}T02:00:00Z",
            state=states.get(day, "SUCCEEDED"),
            since=0.0,
            run="20261121T020000Z-77aa0c1d",
        )
        for day in range(29, 0, -1)
    )


def past(control: MemoryControl, now: float) -> None:
    """Let the last hour have been measured."""
    moment = [0.0]
    control.past = History(lambda: moment[0])
    for step in range(360):
        moment[0] = now - 3600 + 10 * step
        wave = math.sin(step / 25)
        control.history.feed(
            {
                SeriesKey.read("shop", "enrich"): 1500 + 180 * wave + 40 * math.sin(step * 1.7),
                SeriesKey.batch_seconds("shop", "enrich"): 0.42 + 0.08 * wave + 0.05 * math.sin(step * 2.3),
                SeriesKey.published("orders"): 1520 + 160 * wave,
                SeriesKey.lag_seconds("orders", "shop.enrich"): 0.5 + 0.3 * wave,
                SeriesKey.lag_rows("orders", "shop.enrich"): 700 + 400 * wave,
                SeriesKey.lag_seconds("orders", "shop.invoices"): max(0.0, 10.0 * (step - 326)),
                SeriesKey.lag_rows("orders", "shop.invoices"): max(0.0, 12_000.0 * (step - 326)),
            }
        )


def main(folder: Path) -> None:
    """Write all pictures into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    control, now = MemoryControl(), time.time()
    past(control, now)
    fill(control, now)
    with tempfile.TemporaryDirectory() as home, sync_playwright() as playwright:
        config = load(overrides={"home": home, "server.port": "20000-29999"}, environ={})
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=options)
        with ServerFiles.of(config.home).locked():
            server = RestServer(control, config)
            server.start()
            try:
                page = browser.new_page(base_url=server.state.url)
                page.goto(str(server.sign_in_path()))
                page.wait_for_url("**/")
                for picture in PICTURES:
                    _take(page, control, picture, folder)
            finally:
                browser.close()
                server.close()


def _take(page: Page, control: MemoryControl, picture: Picture, folder: Path) -> None:
    page.emulate_media(color_scheme="dark" if picture.dark else "light")
    page.set_viewport_size({"width": picture.width, "height": picture.height})
    page.goto(picture.path)
    page.wait_for_selector("#live[data-state=live]")
    began = time.monotonic()
    while (seconds := time.monotonic() - began) < 5.0:  # so that there are rates
        _look(control, seconds)
        control.tell("look")
        page.wait_for_timeout(500)
    page.screenshot(path=folder / f"{picture.name}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images"))
