"""The page of rows and its exports over HTTP, with a core in memory."""

from __future__ import annotations

import http.client
import io
import re
from urllib.parse import quote, urlencode

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobpipe.control.rows.rows_query import EXPORT_ROWS, Ended, FoundPlace, RowPlace, RowsFound, RowsQuery
from jobpipe.errors import ConfigError, JobpipeError, TopicAway, TopicNotFound, WaitTimeout
from tests.control_api.kit import DEADLINE, MemoryControl, Reply, Served

pytestmark = pytest.mark.processes

PATH = "/ui/topics/orders/rows"
ROWS = pa.record_batch({"n": [1, 2], "text": ["Berlin", None]})
HOSTILE = "<img src=x onerror=alert(1)>\"'&"


def found(batch: pa.RecordBatch = ROWS, **more: object) -> RowsFound:
    """Return what a read finds."""
    fields = {
        "schema": batch.schema,
        "batches": (batch,),
        "places": [FoundPlace(7, 1, number, 1000.0) for number in range(batch.num_rows)],
        "ended": Ended.LIMIT,
        "looked_rows": batch.num_rows,
        "first": 7,
        "last": 7,
        "there": batch.num_rows,
    }
    return RowsFound(**{**fields, **more})  # type: ignore[arg-type]


@pytest.fixture
def asked(control: MemoryControl) -> list[RowsQuery]:
    """What was asked; two rows are found."""
    queries: list[RowsQuery] = []

    def rows(query: RowsQuery) -> RowsFound:
        queries.append(query)
        return found()

    control.rows_of = rows
    return queries


def get(served: Served, path: str = PATH, **query: str) -> Reply:
    return served.ask("GET", f"{path}?{urlencode(query)}" if query else path, token=served.view)


def text(reply: Reply) -> str:
    return reply.body.decode()


def test_what_is_asked_and_shown(served: Served, asked: list[RowsQuery]) -> None:
    """Without a word the newest rows; then what the form says, which stays in it."""
    reply = get(served)
    assert reply.status == 200
    assert asked[-1] == RowsQuery(topic="orders", place=RowPlace.of("newest"), limit=50)
    assert "2 rows; looked at 2 rows, offset 7" in text(reply)
    assert '<span class="null">null</span>' in text(reply)
    reply = get(served, **{"from": "12-1-0-3", "where": "n > 1", "limit": "100"})
    assert asked[-1] == RowsQuery(topic="orders", place=RowPlace.of("12-1-0-3"), limit=100, where="n > 1")
    assert 'name="where" value="n &gt; 1"' in text(reply)
    assert "<option selected>100</option>" in text(reply)


def test_the_rows_need_the_right_to_look(served: Served, asked: list[RowsQuery]) -> None:
    """Which one who may view has."""
    for path in (PATH, f"{PATH}.csv", f"{PATH}.parquet"):
        assert get(served, path).status == 200
        count = len(asked)
        assert served.ask("GET", path, token=None).status == 401
        assert len(asked) == count


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"from": "yesterday"}, "is no place; expected newest, earliest, an offset"),
        ({"from": "latest"}, "is no place"),
        ({"from": "committed"}, "is no place"),
        ({"limit": "501"}, "is not from 1 to 500"),
        ({"limit": "-1"}, "is not from 1 to 500"),
        ({"where": "n" * 1001}, "more than 1,000 characters"),
    ],
)
def test_what_cannot_be_asked(served: Served, asked: list[RowsQuery], query: dict[str, str], said: str) -> None:
    """It is said next to the form; the others are asked."""
    assert get(served, **{"from": "earliest", "limit": "500", "where": "n" * 1000}).status == 200
    reply = get(served, **query)
    assert (reply.status, len(asked)) == (400, 1)
    assert said in text(reply)
    assert 'role="alert"' in text(reply)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ConfigError("the condition is wrong: no such column: x. Columns: n"), 400),
        (TopicNotFound("nobody has ever published it"), 404),
        (TopicAway("serve it with `jobpipe topics serve orders`"), 503),
        (WaitTimeout("2 others read rows"), 503),
    ],
)
def test_what_cannot_be_read(
    served: Served, control: MemoryControl, asked: list[RowsQuery], error: JobpipeError, status: int
) -> None:
    """The page says why, in the error's words, also instead of a file."""
    assert get(served).status == 200
    control.raises = error
    for path in (PATH, f"{PATH}.csv", f"{PATH}.parquet"):
        reply = get(served, path, where="x")
        assert reply.status == status
        assert reply.headers["content-type"].startswith("text/html")
        assert error.message in text(reply)
        assert 'value="x"' in text(reply)


def test_where_to_go_on(served: Served, control: MemoryControl) -> None:
    """The links keep the condition and the limit; there is none where there is nothing more."""
    control.rows_of = lambda _: found(older=RowPlace.of("before 7-1-0-2"), newer=RowPlace.of("9"))
    shown = text(get(served, where="n > 1"))
    assert f'rel="prev" href="{PATH}?from=before+7-1-0-2&amp;where=n+%3E+1&amp;limit=50"' in shown
    assert f'rel="next" href="{PATH}?from=9&amp;where=n+%3E+1&amp;limit=50"' in shown
    control.rows_of = lambda _: found()
    assert "rel=" not in text(get(served)).partition("<main")[2]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            {"ended": Ended.ROWS, "looked_rows": 20_000, "last": 912},
            "20,000 rows, offsets 7 to 912: the search",
        ),
        ({"ended": Ended.SCHEMA}, "have other columns"),
        ({"notes": ("offset 0 was removed; the topic has rows from offset 7 on",)}, "has rows from offset 7 on"),
        ({"masked": ("card", "buyer.iban")}, "card</bdi>, <bdi>buyer.iban"),
        ({"there": 1_234_567}, "only the last 100,000 of 1,234,567 rows"),
    ],
)
def test_what_a_reader_must_know(served: Served, control: MemoryControl, more: dict[str, object], said: str) -> None:
    control.rows_of = lambda _: found()
    assert said not in text(get(served))
    control.rows_of = lambda _: found(**more)  # type: ignore[arg-type]
    assert said in text(get(served))


def test_masked_columns_are_shown_as_dots(served: Served, control: MemoryControl) -> None:
    control.rows_of = lambda _: found(masked=("card", "buyer.iban"))
    assert text(get(served)).count("<td>•••</td>") == 4  # n and text are there; buyer is no column
    control.rows_of = lambda _: found()
    assert "•••" not in text(get(served))


def test_why_nothing_is_shown(served: Served, control: MemoryControl) -> None:
    empty = RowsFound()
    control.rows_of = lambda _: empty
    assert "nothing was published yet" in text(get(served))
    assert "no rows in that direction" in text(get(served, **{"from": "12"}))
    control.rows_of = lambda _: found(ROWS.slice(0, 0), looked_rows=2, places=(), newer=RowPlace.of("9"))
    shown = text(get(served, where="n = 3"))
    assert "holds for none of the rows" in shown
    assert "go on with the links above" in shown
    assert "Export" not in shown


def test_values_stay_text(served: Served, control: MemoryControl) -> None:
    """Markup, ten thousand characters, bytes, right-to-left text: in names, types and values."""
    kind = pa.struct([(HOSTILE, pa.string())])
    columns = [
        pa.array([HOSTILE, "שלום", "x" * 10_000, ""]),
        pa.array([{HOSTILE: HOSTILE}, None, None, None], kind),
        pa.array([b"\x00" * 5000, b"\xff", None, b""]),
    ]
    batch = pa.RecordBatch.from_arrays(columns, names=[HOSTILE, "buyer", "raw"])
    control.rows_of = lambda _: found(batch)
    shown = text(get(served, where=HOSTILE))
    assert "<img" not in shown
    assert "&lt;img src=x" in shown
    assert "<bdi>שלום</bdi>" in shown
    assert "x" * 2000 in shown
    assert "x" * 2001 not in shown
    assert "… of 10,000 characters" in shown
    assert "… of 5,000 bytes" in shown
    assert "0" * 2001 not in shown
    assert not re.search(r"\sstyle=|<script>|<style|\son\w+=(?!alert)", shown.replace("onerror=alert", ""))


def test_csv_and_parquet(served: Served, control: MemoryControl, asked: list[RowsQuery]) -> None:
    """With the same words; as many rows as there may be, if nothing else is said."""
    reply = get(served, f"{PATH}.csv", **{"from": "7", "where": "n > 0", "limit": str(EXPORT_ROWS)})
    assert asked[-1].limit == EXPORT_ROWS
    assert (asked[-1].place, asked[-1].where) == (RowPlace.of("7"), "n > 0")
    assert reply.headers["content-type"] == "text/csv; charset=utf-8"
    assert reply.headers["content-disposition"] == 'attachment; filename="orders.csv"'
    assert reply.body.decode("utf-8-sig") == '"n","text"\r\n1,"Berlin"\r\n2,\r\n'
    reply = get(served, f"{PATH}.parquet")
    assert reply.headers["content-disposition"] == 'attachment; filename="orders.parquet"'
    table = pq.read_table(io.BytesIO(reply.body))
    assert table.schema.equals(ROWS.schema)
    assert table.to_pylist() == ROWS.to_pylist()
    control.rows_of = lambda _: found(there=9)
    reply = get(served, f"{PATH}.csv")
    assert reply.headers["content-disposition"] == 'attachment; filename="orders-part.csv"'
    assert (reply.headers["x-jobpipe-complete"], reply.headers["x-jobpipe-rows"]) == ("false", "2")
    assert get(served, f"{PATH}.xlsx").status == 404
    assert get(served, f"{PATH}.csv", limit=str(EXPORT_ROWS + 1)).status == 400


def test_many_exports_one_after_another(served: Served, asked: list[RowsQuery]) -> None:
    """Each gives its place back, also one that fails."""
    for _ in range(6):
        assert get(served, f"{PATH}.csv").status == 200
        assert get(served, f"{PATH}.csv", limit="0").status == 400
    assert get(served, f"{PATH}.csv").status == 200


def test_the_page_is_not_live(served: Served, asked: list[RowsQuery]) -> None:
    """Its rows are read once; a browser that asks for changes is told to stop. Other pages are live."""
    shown = text(get(served))
    assert 'data-live="no"' in shown
    assert re.search(r'id="live"[^>]* hidden', shown)
    live = f"/ui/live?address={quote(PATH + '?from=earliest', safe='')}&shape=x"
    connection = http.client.HTTPConnection(served.host, timeout=DEADLINE)
    try:
        connection.request("GET", live, headers={"Authorization": f"Bearer {served.view}"})
        assert (connection.getresponse().status, len(asked)) == (204, 1)  # a stream would not end
    finally:
        connection.close()
    other = text(get(served, "/ui/topics"))
    assert "data-live" not in other
    assert not re.search(r'id="live"[^>]* hidden', other)


def test_a_topic_links_to_its_rows(served: Served, control: MemoryControl, asked: list[RowsQuery]) -> None:
    from tests.control.page.kit import flights

    flights(control)
    (href,) = re.findall(r'<a href="([^"]*)">Rows</a>', text(get(served, "/ui/topics/flights")))
    assert get(served, href).status == 200
    assert asked[-1].topic == "flights"


def test_the_words_of_a_place() -> None:
    """What is written is read again."""
    for word in ("newest", "earliest", "0", "12", "12-1-0-3", "before 12", "before 12-1-0-3", "1795255200000"):
        assert str(RowPlace.of(word)) == word
    assert RowPlace.of("2026-11-21T10:00:00Z") == RowPlace.of("1795255200000")
    assert RowPlace.of("") == RowPlace.of("newest")
    for word in ("latest", "committed", "-1", "before", "before earliest", "1-2", "12-1-0", "x", "9" * 30):
        with pytest.raises(ConfigError, match="is no place"):
            RowPlace.of(word)
