"""Wrong jobs, flows and schedules."""

from __future__ import annotations

from tests.pipelines.wrong import BATCH, CONSOLE, ORDERS, RATE, SECRET, Wrong, job, whole

JOBS: tuple[Wrong, ...] = (
    # -- jobs
    job(
        "a schema of a table",
        f"{RATE}\nsink: {{type: jdbc-upsert, url: 'postgresql://h/d', table: t, keys: a, schema: x}}",
        (5, "sink.schema", "no such key", "possible names"),
    ),
    job(
        "keys that are no section",
        f"{RATE}\n{CONSOLE}\nconfiguration: 7",
        (6, "configuration", "7 does not fit", "a section with Spark's keys"),
    ),
    whole(
        "too many jobs",
        "pipeline: {name: x}\njobs:\n"
        + "".join(f"  a{number}: {{application: pipeline.yaml}}\n" for number in range(1001)),
        (2, "jobs", "there are 1001 jobs", "at most 1000"),
    ),
    job(
        "a wrong key hides no check",
        f"""
        {RATE}
        sink: {{type: json, path: x, mode: overwrite}}
        schedule: {{every: dayly}}
        trigger: {{available-now: true, processing-time: 1s}}
        route: [{{source-table: x}}]
        """,
        (6, "schedule.every", "'dayly' does not fit", "a text of the form"),
        (8, "route[0].sink-table", "it is missing", "The topic"),
        (4, "source", "knows no bounds", "name the bounds"),
        (5, "sink.mode", "of BATCH jobs", "leave it out"),
        (7, "trigger", "has two triggers", "give available-now or"),
    ),
    job(
        "a wrong stage hides no check",
        f"sources: {{x: {RATE[8:]}, y: {{type: rat}}}}\ntransform: [{{type: sq, query: SELECT 1}}]\n"
        "sink: {type: jobpipe, topic: t}\ntrigger: {available-now: true, processing-time: 1s}",
        (4, "sources.y.type", "no source of type 'rat'", "did you mean rate?"),
        (5, "transform[0].type", "no transform of type 'sq'", "did you mean sql?"),
        (7, "trigger", "has two triggers", "give available-now or"),
    ),
    whole(
        "names of jobs",
        """
        pipeline: {name: x}
        jobs:
          a b: {source: {type: rate}, sink: {type: console}}
          c: 7
        """,
        (3, "jobs.a b", "cannot name a job", "no dot"),
        (4, "jobs.c", "it is not a section", "a source and a sink"),
    ),
    job("an unknown key", f"{RATE}\n{CONSOLE}\nsinc: x", (6, "sinc", "no such key", "did you mean sink?")),
    job("no source", CONSOLE, (3, "source", "it is missing", "give source:")),
    job("no sink", RATE, (3, "sink", "it is missing", "or sinks")),
    job(
        "source and sources",
        f"{RATE}\nsources: {{x: {{type: rate}}}}\n{CONSOLE}",
        (5, "sources", "source is given too", "give all under sources"),
        (5, "sources", "nothing joins them", "query"),
    ),
    job("a source that is a text", f"source: kafka\n{CONSOLE}", (4, "source", "'kafka' does not fit", "a section")),
    job(
        "a source without type",
        f"source: {{path: x}}\n{CONSOLE}",
        (4, "source.type", "it is missing", "jobpipe pipeline plugins list"),
    ),
    job(
        "an unknown source",
        f"source: {{type: jobpip}}\n{CONSOLE}",
        (4, "source.type", "no source of type 'jobpip'", "did you mean jobpipe?"),
    ),
    job(
        "a sink as a source",
        f"source: {{type: console}}\n{CONSOLE}",
        (4, "source.type", "it is the type of a sink", ""),
    ),
    job(
        "several problems in one job",
        """
        source: {type: jobpipe, subscrib: orders, startingOffsets: frist}
        sink: {type: jobpipe, topic: a b, partition_by: x, retention.tiem: 1h}
        trigger: {processing-time: -1}
        errors: {max-ratio: 2}
        """,
        (4, "source.startingOffsets", "'frist' does not fit", "earliest, latest, committed"),
        (4, "source.subscrib", "no such key", "did you mean subscribe?"),
        (5, "sink.topic", "'a b' does not fit", "letters, digits"),
        (5, "sink.partition_by", "no such key", "did you mean partition-by?"),
        (5, "sink.retention.tiem", "no such key", "did you mean retention.time?"),
        (6, "trigger.processing-time", "-1 does not fit", "500ms"),
        (7, "errors.max-ratio", "2 does not fit", "0 to 1"),
    ),
    job(
        "no topic",
        f"source: {{type: jobpipe}}\n{CONSOLE}",
        (4, "source.subscribe", "it is missing", "subscribePattern, or assign"),
    ),
    job(
        "topics twice",
        f"source: {{type: jobpipe, subscribe: orders, subscribePattern: x.*}}\n{CONSOLE}",
        (4, "source.subscribe", "does not go with", "exactly one of"),
        (4, "source.subscribePattern", "does not go with", "exactly one of"),
    ),
    job(
        "a subscription's name",
        f"source: {{type: jobpipe, subscribe: orders, name: x}}\n{CONSOLE}",
        (4, "source.name", "no such key", "PIPELINE.JOB"),
    ),
    job(
        "a key of the configuration",
        f"source: {{type: jobpipe, subscribe: orders, read.timeout: soon}}\n{CONSOLE}",
        (4, "source.read.timeout", "'soon' does not fit", "60s"),
    ),
    job(
        "options with dots as sections",
        f"{RATE}\nsink: {{type: jobpipe, topic: t,\n  retention: {{time: 1h}}, retention.tiem: 1h}}\n"
        "transform: [{type: InsertField, static.field: a, static.value: 1, topic: {field: 2}}]",
        (6, "sink.retention", "no such key", "write retention.time: ..."),
        (6, "sink.retention.tiem", "no such key", "did you mean retention.time?"),
        (7, "transform[0].topic", "no such key", "write topic.field: ..."),
    ),
    job(
        "a dotted key, of what the other checks go by",
        f"execution.runtime-mode: BATCH\n{ORDERS}\nsink: {{type: json, path: '${{run.id}}'}}\nschedule: {{every: day}}",
        (4, "execution.runtime-mode", "no such key", "write execution: {runtime-mode: ...}"),
    ),
    job(
        "Kafka's names of options",
        f"source: {{type: jobpipe, subscribe: orders, maxOffsetsPerTrigger: 5, minOffsetsPerTrigger: 1,\n"
        f"  maxRecordsPerPartition: 1}}\n{CONSOLE}\nerrors: {{deadletterqueue.topic.name: bad}}",
        (4, "source.maxOffsetsPerTrigger", "no such key", "did you mean maxRowsPerTrigger?"),
        (4, "source.minOffsetsPerTrigger", "no such key", "did you mean minRowsPerTrigger?"),
        (5, "source.maxRecordsPerPartition", "no such key", "did you mean maxRowsPerPartition?"),
        (7, "errors.deadletterqueue.topic.name", "no such key", "give dead-letters: TOPIC"),
    ),
    job(
        "a file without columns",
        f"source: {{type: csv, path: x}}\n{CONSOLE}",
        (4, "source.schema", "needs its columns", "file:PATH"),
    ),
    job("a file without path", f"source: {{type: text}}\n{CONSOLE}", (4, "source.path", "it is missing", "A folder")),
    job(
        "Kafka without brokers",
        f"source: {{type: kafka}}\n{CONSOLE}",
        (4, "source.options", "brokers are missing", "kafka.bootstrap.servers"),
        (4, "source.options", "topics are missing", "subscribe: TOPIC"),
    ),
    job(
        "a password in clear",
        f"source: {{type: rate, options: {{ssl.password: hunter2}}}}\n{CONSOLE}",
        (4, "source.options.ssl.password", "*** does not fit", SECRET),
    ),
    job(
        "a watermark",
        f"source: {{type: rate, watermark: {{colum: ts}}}}\n{CONSOLE}",
        (4, "source.watermark.column", "it is missing", "each row's time"),
        (4, "source.watermark.delay", "it is missing", "10 minutes"),
        (4, "source.watermark.colum", "no such key", "did you mean column?"),
    ),
    job(
        "a password of a function",
        f"{RATE}\nsink: {{type: python, foreach-batch: 'a:b', options: {{password: hunter2, x: [1]}}}}",
        (5, "sink.options.password", "*** does not fit", SECRET),
        (5, "sink.options.x", "a list of 1", "a plain value"),
    ),
    job(
        "a function's name",
        f"{RATE}\nsink: {{type: python, foreach-batch: report.Table}}",
        (5, "sink.foreach-batch", "'report.Table' does not fit", "module:name"),
    ),
    job(
        "an output mode",
        f"{RATE}\nsink: {{type: console, output-mode: all}}",
        (5, "sink.output-mode", "'all' does not fit", "append, update or complete"),
    ),
    job(
        "the mode of a batch",
        f"{RATE}\nsink: {{type: json, path: x, mode: overwrite}}",
        (5, "sink.mode", "of BATCH jobs", "leave it out"),
    ),
    job(
        "a partition",
        f"{RATE}\nsink: {{type: jobpipe, topic: x, parallelism: 0}}",
        (5, "sink.parallelism", "0 does not fit", "from 1"),
    ),
    job(
        "what only a flow has", f"{RATE}\n{CONSOLE}\nfunction: a:b", (6, "function", "only a flow has it", "type: flow")
    ),
    job(
        "arguments",
        f"{RATE}\n{CONSOLE}\narguments: [x]",
        (6, "arguments", "of a program of your own", "application: FILE"),
    ),
    job(
        "triggers",
        f"{RATE}\n{CONSOLE}\ntrigger: {{available-now: true, processing-time: 1s}}",
        (6, "trigger", "has two triggers", "give available-now or"),
    ),
    job(
        "routes",
        f"{RATE}\n{CONSOLE}\nroute: [{{source-table: '(', sink-table: x}}]",
        (6, "route[0].source-table", "'(' does not fit", "a Python regular expression"),
    ),
    job(
        "routes to nowhere",
        f"{RATE}\n{CONSOLE}\nroute: [{{source-table: .*, sink-table: x}}]",
        (6, "route", "routes lead to topics", "type: jobpipe"),
        (6, "route", "by the topics of the rows", "subscribePattern"),
    ),
    job(
        "routes of a job that keeps more",
        f"{ORDERS}\ntransform: [{{type: deduplicate, keys: [id]}}, {{query: SELECT 1}}]\n"
        "sink: {type: jobpipe, topic: t}\nroute: [{source-table: .*, sink-table: x}]\nerrors: {tolerance: all}",
        (7, "route", "a job with dead letters has none", "split the job"),
        (5, "transform[0]", "keeps state, and each topic", "split the job"),
        (5, "transform[1]", "W:with routes sql is applied", "no state"),
        (5, "transform[0]", "W:no column with a watermark is among its keys", "the watermark's column"),
        (5, "transform[0]", "keeps state, and dead letters", "split the job"),
        (5, "transform[1]", "W:errors.tolerance does not cover", ""),
    ),
    job(
        "routes by what is not there",
        f"{ORDERS}\nsink: {{type: jobpipe, topic: t}}\nroute:\n"
        "- {source-table: '(.*)', sink-table: 'eu-$2'}\n"
        "- {source-table: '(.*)', sink-table: 'a\\q-$1'}\n"
        "- {source-table: '(.*)', sink-table: 'eu-$1', replace-symbol: <>}",
        (7, "route[0].sink-table", "has 1 groups, and group 2 is named", "in parentheses"),
        (8, "route[1].sink-table", "cannot name a topic", "groups as $1"),
        (9, "route[2].sink-table", "have no meaning with replace-symbol", "leave out one"),
    ),
    job(
        "routes that go round",
        "source: {type: jobpipe, subscribePattern: '(orders|copy).*'}\nsink: {type: jobpipe, topic: orders-others}\n"
        "route: [{source-table: orders, sink-table: copy}]",
        (6, "route[0].sink-table", "subscribePattern matches this topic", "a narrower subscribePattern"),
        (5, "sink.topic", "subscribePattern matches this topic", "a narrower subscribePattern"),
        (3, "", "W:rows go round in a circle", ""),
    ),
    job(
        "several sources that nothing joins",
        f"sources: {{x: {{type: rate}}, y: {{type: rate}}}}\n{CONSOLE}",
        (4, "sources", "nothing joins them", "type: sql, query:"),
    ),
    job(
        "a list of sources",
        f"sources: [{{name: orders, type: rate}}, {{name: customers, type: rate}}]\n"
        f"transform: [{{query: SELECT 1}}]\n{CONSOLE}",
        (4, "sources", "it is a list", "give them by name: sources: {orders: {...}, customers: {...}}"),
    ),
    whole(
        "a list of jobs",
        """
        pipeline: {name: x}
        jobs:
          - {name: a, source: {type: rate}, sink: {type: console}}
          - {source: {type: rate}, sink: {type: console}}
        """,
        (2, "jobs", "it is a list", "give them by name: jobs: {a: {...}, NAME2: {...}}"),
    ),
    job(
        "a section of sinks",
        f"{RATE}\nsinks: {{x: {{type: console}}, y: {{type: console}}}}",
        (5, "sinks", "it is a section", "give a list, without names: sinks: [{...}, {...}]"),
    ),
    job(
        "a list of sources without names",
        f"sources: [{{type: rate}}, {{type: rate}}]\n{CONSOLE}",
        (4, "sources", "it is a list", "give them by name: sources: {NAME1: {...}, NAME2: {...}}"),
    ),
    job(
        "names of views",
        "sources:\n  orders: {type: rate}\n  Orders: {type: rate}\n  order-lines: {type: rate}\n  12L: {type: rate}\n"
        f"  Input: {{type: rate}}\n  1a: {{type: rate}}\ntransform: [{{query: SELECT 1}}]\n{CONSOLE}",
        (6, "sources.Orders", "the same view as source orders", "a name of its own"),
        (7, "sources.order-lines", "Spark takes no view of this name", "letters, digits and _"),
        (8, "sources.12L", "Spark takes no view of this name", "not digits alone"),
        (9, "sources.Input", "input is the view of the rows", "another name"),
    ),
    job(
        "several sinks",
        f"{RATE}\nsinks: [{{type: jobpipe, topic: x}}, {{type: json, path: y}}]",
        (5, "sinks[1]", "sink json would write it twice", "at-least-once: true"),
    ),
    job(
        "an application with a source",
        f"application: own.py\n{RATE}",
        (4, "application", "W:there is no file 'own.py' here", "from the folder of this file"),
        (5, "source", "does its own reading", "leave out one"),
    ),
    # -- flows
    job(
        "a flow",
        """
        type: flow
        source: {type: jobpipe, subscribePattern: order.*}
        publish: alerts
        transform: []
        """,
        (3, "function", "a flow needs it", "module:name"),
        (5, "source", "a flow reads one topic", "subscribe: TOPIC"),
        (3, "schema", "publish and schema go together", "the columns"),
        (7, "transform", "a flow has none", "leave it out"),
    ),
    job(
        "a flow of another source",
        f"type: flow\n{RATE}\nfunction: a:b",
        (5, "source", "a flow reads one topic", "jobpipe"),
    ),
    job(
        "a watermark of a flow",
        "type: flow\nfunction: a:b\n"
        "source: {type: jobpipe, subscribe: orders, watermark: {column: at, delay: 1 minute}}",
        (6, "source.watermark", "a flow has none", "leave out type: flow"),
    ),
    job(
        "partitions of nothing",
        f"type: flow\n{ORDERS}\nfunction: a:b\npartitions: 2",
        (7, "partitions", "that the flow publishes", "publish and schema"),
    ),
    job(
        "acks of a flow",
        "type: flow\nsource: {type: jobpipe, subscribe: orders, acks: all}\nfunction: a:b\n"
        "publish: alerts\nschema: id INT",
        (5, "source.acks", "a flow publishes with acks: stored", "acks: stored"),
    ),
    job(
        "acks of a flow in its configuration",
        f"type: flow\n{ORDERS}\nfunction: a:b\npublish: alerts\nschema: id INT\n"
        "configuration: {spark.jobpipe.acks: all}",
        (9, "configuration.spark.jobpipe.acks", "a flow publishes with acks: stored", "acks: stored"),
    ),
    job("another type", f"type: flwo\n{RATE}\n{CONSOLE}", (4, "type", "'flwo' does not fit", "flow")),
    # -- bounded runs and schedules
    job(
        "a stream's sink in a run",
        f"{BATCH}\n{ORDERS}\n{CONSOLE}\ntrigger: {{available-now: true}}",
        (6, "sink", "for streams, and the job is BATCH", "another sink"),
        (7, "trigger", "a BATCH job has none", "leave it out"),
    ),
    job(
        "rate in a run",
        f"{BATCH}\n{RATE}\nsink: {{type: json, path: x}}",
        (5, "source.type", "never ends", "leave out"),
    ),
    job(
        "bounds in a stream",
        f'{RATE}\nsink: {{type: json, path: "x/${{run.lower}}"}}',
        (5, "sink", "${run.lower} has no value in a STREAMING job", "BATCH"),
    ),
    job(
        "a run's format",
        f'{BATCH}\n{ORDERS}\nsink: {{type: json, path: "x/${{run.lower:yyyy}}"}}',
        (6, "sink.path", "'yyyy' is not a time format", "%Y-%m-%d"),
    ),
    job(
        "an unknown value of a run",
        f'{BATCH}\n{ORDERS}\nsink: {{type: json, path: "x/${{run.lowr}}"}}',
        (6, "sink.path", "there is no ${run.lowr}", "did you mean ${run.lower}?"),
    ),
    job(
        "a schedule",
        f"""
        {BATCH}
        {ORDERS}
        sink: {{type: json, path: x}}
        schedule: {{crontab: 61 * * * *, timezone: Berlin, catchup: some, selfDepend: true}}
        """,
        (7, "schedule.crontab", "does not fit", "0 to 59 as the minute"),
        (7, "schedule.timezone", "'Berlin' does not fit", "Europe/Berlin"),
        (7, "schedule.catchup", "'some' does not fit", "all, latest or none"),
        (7, "schedule.selfDepend", "no such key", "did you mean self-depend?"),
    ),
    job(
        "an engine of schedules that is not there",
        f"{BATCH}\n{ORDERS}\nsink: {{type: json, path: x}}\nschedule: {{every: day, engine: {{type: quartz}}}}",
        (7, "schedule.engine.type", "there is no engine of type 'quartz'", "builtin, external"),
    ),
    job(
        "an engine of schedules without its section",
        f"{BATCH}\n{ORDERS}\nsink: {{type: json, path: x}}\nschedule: {{every: day, engine: external}}",
        (7, "schedule.engine", "'external' does not fit", "a section"),
    ),
    job(
        "a crontab of six fields",
        f"{BATCH}\n{ORDERS}\nsink: {{type: json, path: x}}\nschedule: {{crontab: '0 */5 * * * ?'}}",
        (7, "schedule.crontab", "does not fit", "five fields"),
    ),
    job(
        "no rule",
        f"{BATCH}\n{ORDERS}\nsink: {{type: json, path: x}}\nschedule: {{delay: 1m}}",
        (7, "schedule", "needs one rule", "crontab or every"),
    ),
    job(
        "two rules",
        f"{BATCH}\n{ORDERS}\nsink: {{type: json, path: x}}\nschedule: {{every: hour, crontab: 0 * * * *}}",
        (7, "schedule", "needs one rule", "crontab or every"),
    ),
    job(
        "a start without zone",
        f"{BATCH}\n{ORDERS}\nsink: {{type: json, path: x}}\nschedule: {{every: day, start: 2026-11-21}}",
        (7, "schedule.start", "'2026-11-21' is not a time", "with its zone"),
    ),
    job(
        "a schedule of a stream",
        f"{ORDERS}\nsink: {{type: json, path: x}}\nschedule: {{every: day}}",
        (6, "schedule", "the job is STREAMING", "schedule: {mode: available-now}"),
    ),
    job(
        "available-now of a run",
        f"{BATCH}\n{ORDERS}\nsink: {{type: json, path: x}}\nschedule: {{every: day, mode: available-now}}",
        (7, "schedule.mode", "the job is BATCH", "leave out"),
    ),
    job(
        "offsets and catchup",
        f"{BATCH}\n{ORDERS}\nsink: {{type: json, path: x}}\nschedule: {{every: day, boundaryType: OFFSET}}",
        (7, "schedule.catchup", "cannot be known afterwards", "catchup: latest"),
    ),
    job(
        "a source without bounds",
        f"{BATCH}\nsource: {{type: parquet, path: x}}\nsink: {{type: json, path: y}}\nschedule: {{every: day}}",
        (5, "source", "knows no bounds", "${run.lower:%Y-%m-%d}"),
    ),
)
