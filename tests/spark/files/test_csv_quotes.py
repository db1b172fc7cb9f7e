"""Source csv: each row is as its line has it, or the job says otherwise. Good rows are as Spark reads them."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf

from jobpipe.errors import ConfigError
from jobpipe.pipelines.file.interpolation import RunValues
from jobpipe.pipelines.file.spec import Mode
from jobpipe.pipelines.plugins.api import ORIGIN, REASON, UNPARSED
from jobpipe.pipelines.plugins.job_context import JobContext
from jobpipe.pipelines.sources.csv_lines import QUOTES, require_no_file_functions
from jobpipe.pipelines.sources.format_sources import CsvSource
from tests.spark.files.file_jobs import FileJob
from tests.spark.kit import PATIENCE

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

SCHEMA = "id BIGINT, note STRING"
WORDS = "note STRING"
CUT = {  # schema, a good row, a row that is not as it seems, options that say how it is meant, the row then
    "last value": (SCHEMA, "1,x", '2,"left half\nright half"', {"multiLine": True}, (2, "left half\nright half")),
    "only value": (WORDS, "x", '"left half\nright half"', {"multiLine": True}, ("left half\nright half",)),
    "first value": ("note STRING, id BIGINT", "x,1", '"a\nb",2', {"multiLine": True}, ("a\nb", 2)),
    "as many values": ("a STRING, b STRING", "x,y", '2,"a\nb, c"', {"multiLine": True}, ("2", "a\nb, c")),
    "doubled": (SCHEMA, "1,x", '2,"say ""hi"""', {"escape": '"'}, (2, 'say "hi"')),
    "a folder": (WORDS, "x", '"C:\\dir\\"', {"escape": ""}, ("C:\\dir\\",)),
    "inches": (SCHEMA, "1,x", '2,5"', {"quote": ""}, (2, '5"')),
}


def source(spark: SparkSession, folder: Path, schema: str, *, tolerant: bool = False, **options: Any) -> DataFrame:
    """Return the rows of the source in a BATCH job."""
    run = RunValues("r1")
    job = JobContext(pipeline="p", job="a", mode=Mode.BATCH, storage=str(folder / "state"), folder=folder, run=run)
    made = CsvSource(CsvSource.parse({"path": "in", "schema": schema, "options": options}, folder))
    frame = made.load_tolerant(spark, job) if tolerant else made.load(spark, job)
    assert frame is not None
    return frame


def write(folder: Path, text: str, name: str = "a.csv") -> Path:
    """Write a file of the input."""
    path = folder / "in" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize("case", list(CUT))
def test_a_cut_row_fails_with_file_text_and_remedy(spark: SparkSession, tmp_path: Path, case: str) -> None:
    schema, good, cut, remedy, row = CUT[case]
    write(tmp_path, f"{good}\n")
    assert source(spark, tmp_path, schema).count() == 1
    write(tmp_path, f"{good}\n{cut}\n")
    with pytest.raises(Exception, match=r"file file:.*/in/a\.csv: a row cannot be read: a quote is not") as caught:
        source(spark, tmp_path, schema).collect()
    assert f"{QUOTES}: {cut.splitlines()[0]}" in str(caught.value)
    assert tuple(source(spark, tmp_path, schema, **remedy).collect()[-1]) == row


@pytest.mark.parametrize("case", list(CUT))
def test_each_part_of_a_cut_row_is_a_dead_letter(spark: SparkSession, tmp_path: Path, case: str) -> None:
    schema, good, cut, _, _ = CUT[case]
    file = write(tmp_path, f"{good}\n{cut}\n{good}\n")
    rows = source(spark, tmp_path, schema, tolerant=True).collect()
    assert [row[UNPARSED] for row in rows] == [None, *cut.splitlines(), None]
    assert all(row[ORIGIN].file.endswith(file.name) for row in rows)
    assert rows[1][REASON] == QUOTES


def test_a_stream_with_a_header(spark: SparkSession, tmp_path: Path) -> None:
    job = FileJob(
        spark, tmp_path, {"type": "csv", "path": "in", "schema": "id BIGINT, note STRING", "options": {"header": True}}
    )
    wrong = job.write("a.csv", 'id,note\n1,"a\n')
    job.write("b.csv", "id,note\n2,b\n")
    with pytest.raises(Exception, match="a quote is not closed"):
        job.run()
    wrong.write_text('id,note\n1,"a"\n')
    job.run()
    assert job.ids() == [1, 2]


@pytest.mark.parametrize("kind", ["malformed", "quote"])
@pytest.mark.parametrize("header", [True, False])
def test_a_bad_row_fails_also_if_a_filter_or_a_join_leaves_it_out(
    spark: SparkSession, tmp_path: Path, kind: str, header: bool
) -> None:
    """Spark moves filters towards the source, past another filter."""
    bad = {"malformed": "2O,b", "quote": '2,"b'}[kind]
    file = write(tmp_path, f"{'id,note' if header else ''}\n1,a\n{bad}\n3,c\n")
    used: list[Callable[[DataFrame], DataFrame]] = [
        lambda frame: frame.where("id > 0 and note <> 'b'"),
        lambda frame: frame.where("id = 3").groupBy("note").count(),
        lambda frame: frame.join(spark.range(4).withColumnRenamed("id", "n"), frame.id == sf.col("n")),
        lambda frame: frame.select("note").where("note is not null"),
    ]
    for use in used:
        with pytest.raises(Exception, match="a row cannot be read"):
            use(source(spark, tmp_path, SCHEMA, header=header)).collect()
    file.write_text(file.read_text().replace(bad, "2,b"))
    assert [use(source(spark, tmp_path, SCHEMA, header=header)).count() for use in used] == [2, 1, 3, 3]


def test_many_columns_with_a_header(spark: SparkSession, tmp_path: Path) -> None:
    """A parser for each of them would take all memory."""
    names = [f"c{number}" for number in range(400)]
    for number in range(3):
        write(tmp_path, ",".join(names).upper() + "\n" + ",".join(map(str, range(400))) + "\n", f"{number}.csv")
    frame = source(spark, tmp_path, ", ".join(f"{name} INT" for name in names), header=True)
    assert [tuple(row) for row in frame.collect()] == [tuple(range(400))] * 3


def test_a_header_that_names_a_null(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, "id,NA\n1,NA\n")
    assert source(spark, tmp_path, "id BIGINT, NA STRING", header=True, nullValue="NA").collect() == [(1, None)]


def test_a_function_that_would_name_another_file(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv"):
        write(tmp_path, "id,note\n1,a\n", name)
    frame = source(spark, tmp_path, SCHEMA, header=True)
    require_no_file_functions(frame.selectExpr("id", "_metadata.file_name"))
    wide = [f"{number} AS c{number}" for number in range(60)]
    with pytest.raises(ConfigError, match=r"input_file_name\(\) would name another file"):
        require_no_file_functions(frame.selectExpr(*wide, "input_file_name() AS file"))
    require_no_file_functions(source(spark, tmp_path, SCHEMA).selectExpr("input_file_name() AS file"))


def test_a_column_with_a_name_of_ours(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, "1,x\n")
    with pytest.raises(ConfigError, match="column _jobpipe_row begins with _jobpipe_"):
        source(spark, tmp_path, "id BIGINT, _jobpipe_row STRING")
    assert source(spark, tmp_path, "id BIGINT, jobpipe_row STRING").count() == 1


def test_an_end_of_a_cut_row_without_quotes_may_pass(spark: SparkSession, tmp_path: Path) -> None:
    """As docs/files.md says: what lies between the lines with the quotes looks like a row."""
    write(tmp_path, '"left\nmiddle\nright"\n')
    rows = source(spark, tmp_path, WORDS, tolerant=True).collect()
    assert [row[UNPARSED] for row in rows] == ['"left', None, 'right"']


# -- compared with Spark's reader --------------------------------------------------------------------------------------

TYPES = "id INT, note STRING, amount DECIMAL(6,2), day DATE, at TIMESTAMP, yes BOOLEAN, ratio DOUBLE"
OPTIONS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "header": {"header": True},
    "doubled": {"escape": '"', "header": True},
    "other characters": {"sep": ";", "quote": "'", "comment": "#", "header": True},
    "long separator": {"sep": "||"},
    "blanks": {"ignoreLeadingWhiteSpace": True, "ignoreTrailingWhiteSpace": True, "sep": "\\t"},
    "values": {"nullValue": "-", "emptyValue": "none", "nanValue": "nil", "dateFormat": "dd.MM.yyyy"},
    "no quotes": {"quote": ""},
}
VALUES = {
    "id": ["1", "-7", "", "x"],
    "note": [
        "",
        "-",
        " y ",
        '5" d',
        "a\\b",
        "\\",
        "a,b",
        "a;b",
        "a|b",
        "tab\there",
        "#",
        "e\u0301",
        "\u2028",
        "''",
        '""',
    ],
    "amount": ["2.5", "1234.56", "1", "123456.789", ""],
    "day": ["2026-11-28", "28.11.2026", "-"],
    "at": ["2026-11-28 10:00:00", "2026-11-28T10:00:00Z", "then"],
    "yes": ["true", "FALSE", "1"],
    "ratio": ["nil", "NaN", "1e3", "-Infinity", "2,5"],
}


def csv_line(chance: random.Random, options: dict[str, Any]) -> str:
    """Return a line, mostly well-formed: values as they are, in quotes, or with quotes in wrong places."""
    separator, quote = str(options.get("sep", ",")).replace("\\t", "\t"), str(options.get("quote", '"')) or '"'
    escape, values = str(options.get("escape", "\\")), []
    quoted = 0.4 if options.get("quote", '"') else 0.05  # where they are no quotes such values are wrong
    for kind in VALUES:
        value = chance.choice(VALUES[kind if chance.random() < 0.98 else "note"])
        if chance.random() < quoted or separator in value:
            doubled = value.replace(escape, escape * 2) if escape != quote else value
            value = quote + doubled.replace(quote, escape + quote) + quote
        if chance.random() < 0.02:
            value = chance.choice([value + quote, quote + value, f" {value}", f"{value} ", value[1:], value[:-1]])
        values.append(value)
    if chance.random() < 0.05:
        return chance.choice(["", " ", "#"])
    return separator.join(values if chance.random() < 0.95 else values[: chance.randint(1, 6)] * 2)


@pytest.mark.parametrize("case", list(OPTIONS))
def test_good_rows_are_what_spark_makes_of_them(spark: SparkSession, tmp_path: Path, case: str) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    chance, options = random.Random(seed), OPTIONS[case]
    names = [part.split()[0] for part in TYPES.split(", ")]
    head = str(options.get("sep", ",")).replace("\\t", "\t").join(names)
    lines = [head] if options.get("header") else []
    lines += [csv_line(chance, options) for _ in range(3000)]
    file = write(tmp_path, "\n".join(lines) + "\n")
    words = ", ".join(f"{name} STRING" for name in names)
    for schema in (words, TYPES):
        ours = source(spark, tmp_path, schema, tolerant=True, **options).drop(ORIGIN).collect()
        reader = spark.read.schema(f"{schema}, {UNPARSED} STRING").options(
            **options, mode="PERMISSIVE", columnNameOfCorruptRecord=UNPARSED
        )
        theirs = reader.csv(str(file)).collect()
        assert len(ours) == len(theirs)
        good = 0
        for mine, other in zip(ours, theirs, strict=True):
            if mine[UNPARSED] is None:
                assert other[UNPARSED] is None
                assert repr(mine[: len(names)]) == repr(other[: len(names)])  # NaN is not equal to itself
                good += 1
            else:
                assert mine[REASON] == QUOTES or mine[UNPARSED] == other[UNPARSED]
        assert good > (1000 if schema == words else 2)


def plain(spark: SparkSession, folder: Path, schema: str, **options: Any) -> list[Row]:
    """Return the rows of Spark's own reader, in order."""
    return sorted(spark.read.schema(schema).options(**options).csv(str(folder / "in")).collect())


@pytest.mark.parametrize("text", ["id,note\n", "\n \n# a file\nid,note\n#\n", "\ufeffID,Note\r\n"])
def test_each_file_has_one_header_however_it_is_split(spark: SparkSession, tmp_path: Path, text: str) -> None:
    """Also if one task reads many files, or several one file; a row that looks like a header is one, in the middle."""
    rows = "".join(f"{number},note {number}\n" for number in range(2000))
    for number in range(20):
        write(
            tmp_path,
            text + "id,note\n" * (number == 7) + rows[: number * 100].rpartition("\n")[0] + "\n",
            f"{number}.csv",
        )
    write(tmp_path, text + rows, "big.csv")
    schema, options = "id STRING, note STRING", {"header": True, "comment": "#"}
    expected = plain(spark, tmp_path, schema, **options)
    assert Row(id="id", note="note") in expected
    before = spark.conf.get("spark.sql.files.maxPartitionBytes")
    spark.conf.set("spark.sql.files.minPartitionNum", "1")
    try:
        for size in ("1000", before):
            spark.conf.set("spark.sql.files.maxPartitionBytes", size)
            frame = source(spark, tmp_path, schema, **options)
            assert (frame.rdd.getNumPartitions() > 20) == (size == "1000")
            assert sorted(frame.collect()) == expected
    finally:
        spark.conf.unset("spark.sql.files.minPartitionNum")
        spark.conf.set("spark.sql.files.maxPartitionBytes", before)


@pytest.mark.parametrize(
    "schema", ["id BIGINT, note STRING", "id BIGINT, day STRING, note STRING", "DAY INT, id INT, note STRING"]
)
@pytest.mark.parametrize("header", [True, False])
def test_partitions_come_as_spark_has_them(spark: SparkSession, tmp_path: Path, schema: str, header: bool) -> None:
    for day in ("01", "02"):
        write(tmp_path, ("id,note\n" if header else "") + f"{day},x\n", f"day={day}/a.csv")
    frame = source(spark, tmp_path, schema, header=header)
    other = spark.read.schema(schema).option("header", header).csv(str(tmp_path / "in"))
    assert frame.schema == other.schema
    assert sorted(frame.collect()) == sorted(other.collect())


def test_a_stream_of_partitions(spark: SparkSession, tmp_path: Path) -> None:
    job = FileJob(spark, tmp_path, {"type": "csv", "path": "in", "schema": "id BIGINT, day STRING"})
    job.write("day=01/a.csv", "1\n")
    job.run()
    job.write("day=02/a.csv", "2\n")
    job.run()
    rows = spark.read.schema("id BIGINT, day STRING").json(str(tmp_path / "out")).collect()
    assert sorted((row.id, row.day) for row in rows) == [(1, "01"), (2, "02")]


def test_partitions_that_come_to_a_stream_are_read_by_its_next_start(spark: SparkSession, tmp_path: Path) -> None:
    """Spark's reader of texts knows of no columns but those of partitions that are there when the stream starts."""
    job = FileJob(spark, tmp_path, {"type": "csv", "path": "in", "schema": "id BIGINT, day STRING"})
    pipeline = job.load()
    context, (made,) = job.context(pipeline), pipeline.jobs.values()
    frame = made.sources[None].make(context.run).load(spark, context)
    job.write("day=01/a.csv", "1\n")
    query = made.sinks[0].make(context.run).start(frame, context)
    with pytest.raises(Exception, match="Invalid batch"):
        query.awaitTermination(PATIENCE)
    job.run()
    assert job.ids() == [1]


def test_a_quote_that_is_never_closed_with_multi_line(spark: SparkSession, tmp_path: Path) -> None:
    """As docs/files.md says; the bound is Spark's own, and its error names the file."""
    write(tmp_path, '1,"a\n2,b\n3,c\n')
    assert source(spark, tmp_path, SCHEMA, multiLine=True).collect() == [(1, "a\n2,b\n3,c\n")]
    with pytest.raises(Exception, match=r"in/a\.csv|MALFORMED_CSV_RECORD"):
        source(spark, tmp_path, SCHEMA, multiLine=True, maxCharsPerColumn=5).collect()


@pytest.mark.parametrize(
    "change",
    [
        lambda frame: frame.where("note = 'b'").select("id"),
        lambda frame: frame.selectExpr("id", "_metadata.file_name AS file").where("id = 2").select("file"),
        lambda frame: frame.limit(1).selectExpr("1"),
    ],
    ids=["filter", "file", "limit"],
)
def test_what_follows_sees_the_rows(
    spark: SparkSession, tmp_path: Path, change: Callable[[DataFrame], DataFrame]
) -> None:
    write(tmp_path, "id,note\n1,a\n2,b\n")
    frame, options = source(spark, tmp_path, SCHEMA, header=True), {"header": True}
    other = spark.read.schema(SCHEMA).options(**options).csv(str(tmp_path / "in"))
    assert change(frame).collect() == change(other).collect()
    assert frame.count() == 2
