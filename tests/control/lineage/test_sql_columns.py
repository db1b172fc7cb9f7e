"""The columns of Spark's SQL: those that are certain, with how each is used; nothing is guessed."""

from __future__ import annotations

import pytest

from jobpipe.control.lineage.column_frames import Frame, dataset_frame
from jobpipe.control.lineage.dataset_names import DatasetName
from jobpipe.control.lineage.sql_columns import columns_of, filtered_frame, query_frame

D, E = DatasetName("ns", "d"), DatasetName("ns", "e")
OPEN = dataset_frame(D, None)  # whose columns are not known
INPUT = dataset_frame(D, {"id": "bigint", "name": "string", "ts": "timestamp"})
CITIES = dataset_frame(E, {"id": "bigint", "city": "string"})


def made(frame: Frame) -> dict[str, list[str] | None]:
    """Return of what each known column is made, as DATASET.COLUMN USE; None: that is not certain."""
    return {
        each.name: None
        if each.origins is None
        else sorted(f"{one.dataset.name}.{one.column} {one.use}".strip() for one in each.origins)
        for each in frame.columns
    }


def influences(frame: Frame) -> list[str]:
    return sorted(f"{one.dataset.name}.{one.column} {one.use}" for one in frame.influences)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT id, name AS n FROM input", {"id": ["d.id IDENTITY"], "n": ["d.name IDENTITY"]}),
        ("SELECT upper(name) AS n FROM input", {"n": ["d.name TRANSFORMATION"]}),
        ("SELECT ID FROM Input", {"ID": ["d.id IDENTITY"]}),
        ("SELECT cast(id AS string) AS t FROM input", {"t": ["d.id TRANSFORMATION"]}),
        ("SELECT sum(id) AS s, count(*) AS n FROM input", {"s": ["d.id AGGREGATION"], "n": []}),
        ("SELECT upper(max(name)) AS m FROM input", {"m": ["d.name AGGREGATION"]}),
        ("SELECT my_udf(id) AS f FROM input", {"f": ["d.id"]}),
        ("SELECT name.first AS f FROM input", {"f": ["d.name TRANSFORMATION"]}),
        ("SELECT 1 AS one, current_timestamp() AS now FROM input", {"one": [], "now": []}),
        (
            "SELECT CASE WHEN id > 1 THEN name ELSE 'x' END AS c FROM input",
            {"c": ["d.id CONDITIONAL", "d.name TRANSFORMATION"]},
        ),
        ("SELECT if(id > 1, name, 'x') AS c FROM input", {"c": ["d.id CONDITIONAL", "d.name TRANSFORMATION"]}),
        (
            "SELECT sum(id) OVER (PARTITION BY name ORDER BY ts) AS s FROM input",
            {"s": ["d.id AGGREGATION", "d.name WINDOW", "d.ts WINDOW"]},
        ),
        ("SELECT lag(id) OVER (ORDER BY ts) AS l FROM input", {"l": ["d.id TRANSFORMATION", "d.ts WINDOW"]}),
        ("SELECT transform(array(id), x -> x + 1) AS t FROM input", {"t": ["d.id TRANSFORMATION"]}),
        (
            "SELECT t.id, city FROM input t JOIN cities c ON t.id = c.id",
            {"id": ["d.id IDENTITY"], "city": ["e.city IDENTITY"]},
        ),
        ("SELECT id, city FROM input JOIN cities USING (id)", {"id": ["d.id IDENTITY"], "city": ["e.city IDENTITY"]}),
        ("WITH q AS (SELECT id AS k FROM input) SELECT k + 1 AS k FROM q", {"k": ["d.id TRANSFORMATION"]}),
        ("SELECT k FROM (SELECT id AS k FROM input) q", {"k": ["d.id IDENTITY"]}),
        ("SELECT id FROM input UNION ALL SELECT id FROM cities", {"id": ["d.id IDENTITY", "e.id IDENTITY"]}),
        ("SELECT id AS a, a + 1 AS b FROM input", {"a": ["d.id IDENTITY"], "b": ["d.id TRANSFORMATION"]}),
        (
            "SELECT window.start AS s, count(*) AS n FROM input GROUP BY window(ts, '1 minute')",
            {"s": ["d.ts TRANSFORMATION"], "n": []},
        ),
        ("SELECT * EXCEPT (ts) FROM input", {"id": ["d.id IDENTITY"], "name": ["d.name IDENTITY"]}),
        (
            "SELECT c.*, input.id AS k FROM input JOIN cities c ON input.id = c.id",
            {"id": ["e.id IDENTITY"], "city": ["e.city IDENTITY"], "k": ["d.id IDENTITY"]},
        ),
    ],
)
def test_each_column_is_made_of_what_the_query_says(query: str, expected: dict[str, list[str]]) -> None:
    found = query_frame(query, {"input": INPUT, "cities": CITIES})
    assert found.is_complete
    assert made(found) == expected


@pytest.mark.parametrize(
    ("query", "column"),
    [
        ("SELECT id FROM elsewhere", "id"),
        ("SELECT id FROM input JOIN cities ON input.id = cities.id", "id"),
        ("SELECT nothing FROM input", "nothing"),
        ("SELECT (SELECT max(id) FROM cities) AS m FROM input", "m"),
        ("SELECT to_json(struct(*)) AS w FROM input", "w"),
        ("SELECT struct(input.*) AS w FROM input", "w"),
        ("SELECT id, name AS id FROM input", "id"),
        ("SELECT sum(id) OVER w AS s FROM input WINDOW w AS (PARTITION BY name)", "s"),
        ("SELECT id FROM input LATERAL VIEW explode(names) t AS x", "id"),
        ("SELECT id FROM input NATURAL JOIN cities", "id"),
        ("SELECT id FROM input INTERSECT SELECT id FROM cities", "id"),
        ("SELECT id FROM input PIVOT (sum(id) FOR name IN ('a'))", "id"),
        ("SELECT * EXCEPT (name.id) FROM input", "name"),
        ("SELECT * EXCEPT (name.id) FROM input", "id"),
        ("SELECT concat(name, identifier('id')) AS x FROM input", "x"),
        ("SELECT id AS `window (s)` FROM input", "_window(s)"),
        ("SELECT * FROM input JOIN cities USING (id) JOIN cities c USING (city)", "name"),
        ("SELECT id FROM", "id"),
        ("DROP TABLE input", "id"),
        ("SELECT id FROM input; SELECT id FROM input", "id"),
    ],
)
def test_what_is_not_certain_is_left_out(query: str, column: str) -> None:
    found = query_frame(query, {"input": INPUT, "cities": CITIES}).find(column)
    assert found is None or found.origins is None


def test_of_rows_whose_columns_are_not_known_those_that_are_named_are_certain() -> None:
    found = query_frame("SELECT id, upper(name) AS n FROM input", {"input": OPEN})
    assert found.is_complete
    assert made(found) == {"id": ["d.id IDENTITY"], "n": ["d.name TRANSFORMATION"]}
    every = query_frame("SELECT *, upper(name) AS n FROM input", {"input": OPEN})
    assert not every.is_complete
    assert made(every) == {"n": ["d.name TRANSFORMATION"]}
    passed = every.find("anything")
    assert passed is not None
    assert made(Frame((passed,))) == {"anything": ["d.anything IDENTITY"]}


def test_a_name_that_may_be_an_alias_or_an_unknown_column_is_not_certain() -> None:
    query = "SELECT id AS a, a + 1 AS b FROM input"
    assert made(query_frame(query, {"input": INPUT}))["b"] == ["d.id TRANSFORMATION"]
    assert made(query_frame(query, {"input": OPEN}))["b"] is None


def test_columns_that_a_source_adds_are_none_of_its_dataset() -> None:
    assert made(query_frame("SELECT _jobpipe.topic AS t FROM input", {"input": OPEN})) == {"t": None}


def test_what_decides_which_rows_there_are_is_of_the_whole_dataset() -> None:
    query = """
        SELECT name, sum(input.id) AS s FROM input LEFT JOIN cities c ON input.id = c.id
        WHERE ts > '2026-01-01' GROUP BY 1 HAVING sum(input.id) > 3 ORDER BY name
    """
    found = query_frame(query, {"input": INPUT, "cities": CITIES})
    expected = ["d.id FILTER", "d.id JOIN", "d.name GROUP_BY", "d.name SORT", "d.ts FILTER", "e.id JOIN"]
    assert influences(found) == expected
    filtered = filtered_frame("id > 3 AND name IS NOT NULL", INPUT)
    assert influences(filtered) == ["d.id FILTER", "d.name FILTER"]
    assert influences(query_frame("SELECT id FROM input", {"input": filtered})) == influences(filtered)


def test_a_name_that_may_be_an_alias_or_a_column_of_the_rows_decides_nothing_that_is_certain() -> None:
    """After the SELECT an alias comes first, unlike in it."""
    plain = "SELECT id AS k, max(name) AS name FROM input GROUP BY id HAVING max(ts) > 3 ORDER BY k"
    assert influences(query_frame(plain, {"input": INPUT})) == ["d.id GROUP_BY", "d.id SORT", "d.ts FILTER"]
    assert influences(query_frame("SELECT id AS name FROM input ORDER BY name", {"input": INPUT})) == []
    hidden = "SELECT id AS name, max(id) AS m FROM input GROUP BY id HAVING name > 3"
    assert influences(query_frame(hidden, {"input": INPUT})) == ["d.id GROUP_BY"]


def test_a_place_after_a_star_groups_by_no_certain_column() -> None:
    assert influences(query_frame("SELECT name, id FROM input GROUP BY 1, 2", {"input": INPUT})) == [
        "d.id GROUP_BY",
        "d.name GROUP_BY",
    ]
    assert influences(query_frame("SELECT *, id AS k FROM input GROUP BY 2", {"input": INPUT})) == []


def test_columns_of_using_come_first_which_a_union_by_places_must_know() -> None:
    towns = dataset_frame(E, {"city": "string", "id": "bigint"})
    query = "SELECT * FROM towns JOIN input USING (id)"
    views = {"towns": towns, "input": INPUT}
    assert [each.name for each in query_frame(query, views).columns] == ["id", "city", "name", "ts"]
    both = query_frame(" UNION ALL ".join(["SELECT 1 AS a, 2 AS b, 3 AS c, 4 AS d FROM input", query]), views)
    assert made(both)["a"] == ["e.id IDENTITY"]


def test_a_condition_that_is_too_deep_leaves_the_other_columns_known() -> None:
    long = ["id > 1"] * 3000
    assert query_frame(" AND ".join(["SELECT id FROM input WHERE id > 1", *long]), {"input": INPUT}) == Frame()
    assert filtered_frame(" AND ".join(long), INPUT) == INPUT


def test_types_are_known_where_columns_or_casts_say_them() -> None:
    found = query_frame("SELECT id, cast(name AS date) AS d, id + 1 AS more FROM input", {"input": INPUT})
    assert [each.type for each in found.columns] == ["bigint", "date", None]


def test_columns_are_read_of_what_spark_calls_ddl() -> None:
    ddl = "id BIGINT NOT NULL COMMENT 'x', `a b` STRUCT<x: INT, y: ARRAY<STRING>>, d DECIMAL(10, 2) -- end"
    assert columns_of(ddl) == {"id": "bigint", "a b": "struct<x:int,y:array<string>>", "d": "decimal(10,2)"}
    assert columns_of("no columns at all") is None
    assert columns_of("") is None
