"""Wrong transforms, and what Flink CDC has and a pipeline does not."""

from __future__ import annotations

from tests.pipelines.wrong import CONSOLE, RATE, Wrong, job, transform, whole

STAGES: tuple[Wrong, ...] = (
    # -- what Flink CDC has
    whole(
        "a file of Flink CDC",
        """
        source:
          type: jobpipe
          name: My Source
          subscribePattern: app.*
        transform:
          - source-table: app.orders
            projection: \\*, UPPER(name) AS name
            primary-keys: id
            partition-keys: name
            table-options: comment=x
            table-options.delimiter: ;
            converter-after-transform: SOFT_DELETE
            description: project
        route:
          - {source-table: app.orders, sink-table: orders, description: x}
        sink:
          type: jobpipe
          topic: others
          include.schema.changes: [create.table]
        pipeline:
          name: Sync MySQL Database to Doris
          parallelism: 2
          schema.change.behavior: evolve
          schema.operator.uid: x
          schema.other: x
          local-time-zone: UTC
          route-mode: FIRST_MATCH
          execution.runtime-mode: STREAMING
          operator.uid.prefix: x
          user-defined-function: [{name: a, classpath: b}]
          model: [{model-name: a}]
        """,
        (3, "source.name", "no such key", "leave it out"),
        (8, "transform[0].primary-keys", "no such key", "jdbc-upsert"),
        (9, "transform[0].partition-keys", "no such key", "partition-by"),
        (10, "transform[0].table-options", "no such key", "to the sink"),
        (11, "transform[0].table-options.delimiter", "no such key", "to the sink"),
        (12, "transform[0].converter-after-transform", "no such key", "leave it out"),
        (19, "sink.include.schema.changes", "no such key", "schemaEvolution"),
        (21, "pipeline.name", "'Sync MySQL Database to Doris' does not fit", "such as sync-mysql-database-to-doris"),
        (22, "pipeline.parallelism", "no such key", "spark.sql.shuffle.partitions"),
        (23, "pipeline.schema.change.behavior", "no such key", "schemaEvolution"),
        (24, "pipeline.schema.operator.uid", "no such key", "a job by its name"),
        (25, "pipeline.schema.other", "no such key", "to the source or sink"),
        (26, "pipeline.local-time-zone", "no such key", "spark.sql.session.timeZone"),
        (27, "pipeline.route-mode", "no such key", "all routes"),
        (28, "pipeline.execution.runtime-mode", "no such key", "to each job"),
        (29, "pipeline.operator.uid.prefix", "no such key", "a job by its name"),
        (30, "pipeline.user-defined-function", "no such key", "type: python"),
        (31, "pipeline.model", "no such key", "type: python"),
    ),
    whole(
        "a mode of the pipeline",
        "source: {type: rate}\nsink: {type: console}\npipeline: {name: x, execution: {runtime-mode: BATCH}}\n",
        (3, "pipeline.execution", "no such key", "execution: {runtime-mode: ...} to each job"),
    ),
    whole(
        "a name for people",
        """
        pipeline: {name: x}
        jobs: {a: {source: {type: rate, name: My Source}, sink: {type: console, name: My Sink}}}
        """,
        (2, "jobs.a.source.name", "no such key", "PIPELINE.JOB"),
        (2, "jobs.a.sink.name", "no such key", "leave it out"),
    ),
    # -- transforms
    transform(
        "an unknown transform",
        "{type: maskfield}",
        (5, "type", "no transform of type 'maskfield'", "did you mean MaskField?"),
    ),
    transform("nothing to choose", "{type: sql}", (5, "", "it chooses nothing", "projection, filter or query")),
    transform(
        "a query and a filter",
        "{type: sql, query: SELECT 1, filter: x}",
        (5, "query", "given too", "put all of it in the query"),
    ),
    transform("no pairs", "{type: Cast, spec: temp}", (5, "spec", "'temp' does not fit", "temp:double")),
    transform(
        "a type for a whole row",
        "{type: Cast, spec: INT64}",
        (5, "spec", "'INT64' does not fit", "give the column too, as in temp:INT64"),
    ),
    transform(
        "a predicate",
        "{type: Cast, spec: 'a:int', predicate: x}",
        (5, "predicate", "no such key", "Filter, InsertField and MaskField"),
    ),
    transform("no fields", "{type: FromJson, field: value}", (5, "schema", "it is missing", "The fields")),
    transform(
        "a mode",
        "{type: FromJson, field: value, schema: id INT, options: {mode: PERMISSIVE}}",
        (5, "options.mode", "it says what Spark does with texts that do not fit", "leave it out"),
    ),
    transform("no columns", "{type: MaskField}", (5, "fields", "it is missing", "The columns")),
    transform("a column twice", "{type: MaskField, fields: 'a,a'}", (5, "fields", "'a,a' does not fit", "name once")),
    transform("no change", "{type: ReplaceField}", (5, "", "it changes nothing", "include, exclude or renames")),
    transform(
        "one name for two",
        "{type: ReplaceField, renames: 'a:c,b:c'}",
        (5, "renames", "two columns get one name", "its own"),
    ),
    transform("no condition", "{type: Filter}", (5, "predicate", "it is missing", "An SQL condition")),
    transform("no column to insert", "{type: InsertField}", (5, "", "it adds no column", "static.field")),
    transform(
        "a column without a name",
        "{type: InsertField, static.field: '!', static.value: a}",
        (5, "static.field", "'!' does not fit", "a name"),
    ),
    transform(
        "half of a column", "{type: InsertField, static.field: a}", (5, "static.value", "go together", "give both")
    ),
    transform(
        "a text without pattern",
        "{type: TimestampConverter, field: a, target.type: string}",
        (5, "format", "needs its pattern", "yyyy-MM-dd"),
    ),
    transform(
        "a target",
        "{type: TimestampConverter, field: a, target.type: date}",
        (5, "target.type", "'date' does not fit", "Date, Time or Timestamp"),
    ),
    transform("no function", "{type: python}", (5, "", "no function is given", "one of them")),
    transform(
        "rows without columns", "{type: python, row-function: 'a:b'}", (5, "schema", "are not known", "give schema")
    ),
    job(
        "tolerance before state",
        f"{RATE}\ntransform: [{{type: deduplicate, keys: [value]}}]\nsink: {{type: jobpipe, topic: t}}\n"
        "errors: {tolerance: all}",
        (5, "transform[0]", "keeps state", "split the job"),
        (5, "transform[0]", "W:the stream keeps each key for ever", "within-watermark: true after a watermark"),
    ),
    job(
        "dead letters and a sink that may write twice",
        f"{RATE}\n{CONSOLE}\nerrors: {{tolerance: all}}",
        (5, "sink", "would write one twice", "at-least-once: true"),
    ),
    job(
        "a schedule whose runs read by other bounds",
        """
        execution: {runtime-mode: BATCH}
        source: {type: jobpipe, subscribe: orders, startingOffsets: earliest}
        sink: {type: json, path: out}
        schedule: {every: day, start: 2026-11-22T00:00:00Z, end: "2026-11-21T00:00:00Z"}
        """,
        (5, "source.startingOffsets", "not its own interval", "leave out schedule"),
        (7, "schedule.end", "not later than start", "a later one"),
    ),
    job(
        "dead letters that there are not",
        """
        source: {type: rate}
        errors: {dead-letters: bad, max-ratio: 0.1, retention: 1d}
        sink: {type: console}
        """,
        (5, "errors.dead-letters", "without tolerance: all there are no dead letters", "errors: {tolerance: all}"),
        (5, "errors.retention", "without tolerance: all there are no dead letters", "errors: {tolerance: all}"),
        (5, "errors.max-ratio", "without tolerance: all there are no dead letters", "errors: {tolerance: all}"),
    ),
    job(
        "rows that tolerance would not see",
        """
        source: {type: csv, path: in, schema: "id INT, _corrupt_record STRING", options: {Mode: DROPMALFORMED}}
        errors: {tolerance: all}
        sink: {type: jobpipe, topic: t}
        """,
        (4, "source.schema", "column _corrupt_record takes the rows that do not fit", "to the dead letters"),
        (4, "source.options.Mode", "says what Spark does with rows that do not fit", "to the dead letters"),
    ),
    job(
        "rows that tolerance would not see in any format",
        """
        source: {type: spark, format: XML, path: in, options: {columnNameOfCorruptRecord: bad, rowTag: row}}
        errors: {tolerance: all}
        sink: {type: jobpipe, topic: t}
        """,
        (4, "source.schema", "no row is bad", "give schema"),
        (4, "source.options.columnNameOfCorruptRecord", "says what Spark does", "leave out errors.tolerance"),
    ),
    job(
        "rows that tolerance would not see in a run",
        """
        execution: {runtime-mode: BATCH}
        source: {type: csv, path: in}
        errors: {tolerance: all}
        sink: {type: jobpipe, topic: t}
        """,
        (5, "source.schema", "with errors.tolerance: without it Spark makes columns", "give schema"),
    ),
    job(
        "a file that would be a dead letter for each of its rows",
        """
        source: {type: json, path: in, schema: id INT, options: {multiLine: true}}
        errors: {tolerance: all}
        sink: {type: jobpipe, topic: t}
        """,
        (4, "source.options.multiLine", "with the text of its whole file", "jq -c"),
    ),
    job(
        "an option that a flow does not have",
        """
        type: flow
        source: {type: jobpipe, subscribe: orders, maxRowsPerTrigger: 10}
        function: a:b
        """,
        (5, "source.maxRowsPerTrigger", "a flow has no such option", "leave out type: flow"),
    ),
    job(
        "a predicate that is not there",
        """
        source: {type: rate}
        transform:
          - {type: MaskField, fields: [value], negate: true}
          - {type: InsertField, static.field: a, static.value: b, negate: true}
        sink: {type: console}
        """,
        (6, "transform[0].negate", "there is no predicate", "give predicate"),
        (7, "transform[1].negate", "there is no predicate", "give predicate"),
    ),
    job(
        "rows that would go back",
        """
        source: {type: jobpipe, subscribe: [orders, raw]}
        route: [{source-table: '(.*)', sink-table: '$1'}]
        sink: {type: jobpipe, topic: others}
        """,
        (5, "route", "rows of orders would go back to orders", "another sink-table"),
        (5, "route", "rows of raw would go back to raw", "another sink-table"),
        (3, "", "W:rows go round in a circle: a → a", "a filter"),
    ),
    job(
        "a transform of some of the topics",
        """
        source: {type: jobpipe, subscribe: [orders, raw]}
        transform: [{source-table: orders, projection: "*"}, {source-table: .*, filter: a > 1}]
        sink: {type: console}
        """,
        (5, "transform[0].source-table", "the job also reads raw", "a job of its own"),
        (4, "source.subscribe", "W:no job of this file publishes", ""),
    ),
    job(
        "a transform of a table of no topic",
        """
        source: {type: rate}
        transform: [{source-table: app.orders, projection: "*"}]
        sink: {type: console}
        """,
        (5, "transform[0].source-table", "reads no topics", "leave it out"),
    ),
    job(
        "a format without a type of its own",
        "source: {type: mongodb}\nsink: {type: console}",
        (4, "source.type", "no source of type 'mongodb'", "type: spark, with its name as format"),
    ),
    job(
        "a table as a stream",
        """
        source: {type: jdbc, options: {dbtable: a, query: b}}
        sink: {type: jdbc, mode: append, options: {url: "jdbc:derby:x"}}
        """,
        (4, "source.type", "the job is STREAMING", "runtime-mode: BATCH"),
        (4, "source.options", "the database is missing", "url"),
        (4, "source.options", "missing, or given twice", "dbtable"),
        (5, "sink.mode", "a stream appends", "leave it out"),
        (5, "sink.options", "its dbtable is missing", "dbtable: TABLE"),
    ),
    job(
        "a run that never ends",
        """
        execution: {runtime-mode: BATCH}
        source: {type: socket, options: {host: localhost}}
        sink: {type: noop}
        """,
        (5, "source.type", "source socket never ends", "leave out execution.runtime-mode"),
        (5, "source.options", "its port is missing", "port: PORT"),
    ),
)
