"""Wrong files, each with every problem that it must give: line, key, a part of what is wrong, a part of the remedy."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import dedent

Expected = tuple[int | None, str, str, str]


@dataclass(frozen=True)
class Wrong:
    """A file, and its problems in order; ``W:`` before what is wrong marks a warning."""

    name: str
    text: str
    problems: tuple[Expected, ...]


def whole(name: str, text: str, *problems: Expected) -> Wrong:
    """A whole file."""
    return Wrong(name, dedent(text).lstrip("\n"), problems)


def job(name: str, text: str, *problems: Expected) -> Wrong:
    """A job ``a`` from line 4 on, beside a job that publishes the topic ``orders``; keys below ``jobs.a``."""
    head = (
        "pipeline: {name: shop}\n"
        "jobs:\n  a:\n"
        + "".join(f"    {line}\n" for line in dedent(text).strip("\n").splitlines())
        + "  orders: {source: {type: rate}, sink: {type: jobpipe, topic: orders}}\n"
    )
    told = tuple((line, f"jobs.a.{key}" if key else "jobs.a", what, remedy) for line, key, what, remedy in problems)
    return Wrong(name, head, told)


def pipeline(name: str, line: str, *problems: Expected) -> Wrong:
    """A key of the section ``pipeline``, in line 3."""
    text = f"pipeline:\n  name: shop\n  {line}\njobs: {{a: {{source: {{type: rate}}, sink: {{type: console}}}}}}\n"
    told = tuple((line, f"pipeline.{key}", what, remedy) for line, key, what, remedy in problems)
    return Wrong(name, text, told)


def transform(name: str, stage: str, *problems: Expected) -> Wrong:
    """A transform, in line 5; keys below it."""
    text = f"source: {{type: rate}}\ntransform: [{stage}]\nsink: {{type: console}}"
    told = ((line, f"transform[0]{'.' if key else ''}{key}", what, remedy) for line, key, what, remedy in problems)
    return job(name, text, *told)


RATE = "source: {type: rate}"
CONSOLE = "sink: {type: console}"
ORDERS = "source: {type: jobpipe, subscribe: orders}"
BATCH = "execution.runtime-mode: BATCH"
SECRET = "a reference to a secret, never the secret itself"

WRONG: tuple[Wrong, ...] = (
    # -- the file as a whole
    whole("empty", "", (1, "", "it is empty", "jobpipe pipeline init")),
    whole("comment", "# nothing\n", (1, "", "it is empty", "jobpipe pipeline init")),
    whole("a list", "- a\n- b\n", (1, "", "a section with keys", "begin with pipeline:")),
    whole("a text", "pipeline\n", (1, "", "a section with keys", "begin with pipeline:")),
    whole("a tab", "pipeline:\n\tname: x\n", (2, "", "there is a tab", "indent with spaces")),
    whole("brackets", "pipeline: {name: x\njobs: {}\n", (2, "", "it is not YAML", "brackets")),
    whole("two documents", "pipeline: {name: x}\n---\njobs: {}\n", (2, "", "a second document", "one file is one")),
    whole("undefined alias", "pipeline: {name: *x}\n", (1, "", "undefined alias", "&NAME")),
    whole("nothing but a name", "pipeline: {name: x}\n", (1, "jobs", "there are no jobs", "name at least one")),
    whole(
        "no pipeline",
        "jobs: {a: {source: {type: rate}, sink: {type: console}}}\n",
        (1, "pipeline", "it is missing", "begin the file with pipeline:"),
    ),
    whole(
        "jobs is empty",
        "pipeline: {name: x}\njobs: {}\n",
        (2, "jobs", "there are no jobs", "name at least one"),
    ),
    whole(
        "unknown at the top",
        """
        pipelines: {name: x}
        pipeline: {name: x}
        jobs: {a: {source: {type: rate}, sink: {type: console}}}
        """,
        (1, "pipelines", "no such key", "did you mean pipeline?"),
    ),
    whole(
        "a key twice",
        """
        pipeline:
          name: x
          storage: /a
          storage: /b
        jobs: {a: {source: {type: rate}, sink: {type: console}}}
        """,
        (4, "pipeline.storage", "in line 3 already", "give it once"),
    ),
    whole(
        "dotted and nested",
        """
        pipeline: {name: x}
        jobs:
          a:
            execution: {runtime-mode: STREAMING}
            execution.runtime-mode: STREAMING
            source: {type: rate}
            sink: {type: console}
        """,
        (5, "jobs.a.execution.runtime-mode", "in line 4 already", "dotted or nested"),
    ),
    whole(
        "jobs and one job",
        """
        pipeline: {name: x}
        source: {type: rate}
        jobs: {a: {source: {type: rate}, sink: {type: console}}}
        """,
        (2, "source", "has jobs: as well", "put it into a job"),
    ),
    whole(
        "a tag",
        """
        pipeline: {name: !!python/name:os.system x}
        jobs: {a: {source: {type: rate}, sink: {type: console}}}
        """,
        (1, "pipeline.name", "YAML's tag", "write the plain value"),
    ),
    whole(
        "a key that is a list",
        """
        pipeline: {name: x, [a]: b}
        jobs: {a: {source: {type: rate}, sink: {type: console}}}
        """,
        (1, "pipeline", "a key must be a plain name", "without"),
    ),
    whole(
        "one job, wrong keys",
        """
        pipeline: {name: x, parallelism: 2}
        source: {type: rate}
        transform: [{sourcetable: t, projection: "*"}]
        snik: {type: console}
        """,
        (1, "pipeline.parallelism", "no such key", "spark.sql.shuffle.partitions"),
        (3, "transform[0].sourcetable", "no such key", "did you mean source-table?"),
        (4, "snik", "no such key", "did you mean sink?"),
    ),
    # -- the pipeline
    whole(
        "no name",
        """
        pipeline: {storage: /x}
        jobs: {a: {source: {type: rate}, sink: {type: console}}}
        """,
        (1, "pipeline.name", "it is missing", "Begins the names of its subscriptions"),
    ),
    whole(
        "a name with a dot",
        """
        pipeline: {name: shop.eu}
        jobs: {a: {source: {type: rate}, sink: {type: console}}}
        """,
        (1, "pipeline.name", "'shop.eu' does not fit", "no dot"),
    ),
    pipeline("unknown key", "storge: /x", (3, "storge", "no such key", "did you mean storage?")),
    pipeline("parameters as a list", "parameters: [a]", (3, "parameters", "a list of 1", "a section with keys")),
    pipeline("a parameter that is a list", "parameters: {a: [1]}", (3, "parameters.a", "a list of 1", "a plain value")),
    pipeline(
        "a parameter of parameters",
        'parameters: {a: x, b: "${var.a}/y"}',
        (3, "parameters.b", "cannot name others", "write it out"),
    ),
    pipeline(
        "an unknown parameter",
        'storage: "/x/${var.dat}"',
        (3, "storage", "there is no ${var.dat}", "${"),
    ),
    pipeline("an open reference", 'storage: "/x/${var"', (3, "storage", "${ has no }", "$${ for the characters")),
    pipeline("a run's value", 'storage: "/x/${run.id}"', (3, "storage", "${run.id} has no value here", "of a job")),
    pipeline("a prefix", "topic-prefix: -x", (3, "topic-prefix", "'-x' does not fit", "a text of the form")),
    pipeline(
        "a key without spark.",
        "configuration: {shuffle: 2}",
        (3, "configuration.shuffle", "begin with spark.", "spark.hadoop.shuffle"),
    ),
    pipeline(
        "a key of ours",
        "configuration: {spool.dir: /x}",
        (3, "configuration.spool.dir", "jobpipe's own", "spark.jobpipe.spool.dir"),
    ),
    pipeline(
        "a key of the whole pipeline",
        "configuration: {spark.jobpipe.home: /x, spark.jobpipe.registerserver.connect: a:2181}",
        (3, "configuration.spark.jobpipe.home", "all jobs of the pipeline meet", "JOBPIPE__HOME"),
        (3, "configuration.spark.jobpipe.registerserver.connect", "all jobs", "JOBPIPE__REGISTERSERVER__CONNECT"),
    ),
    pipeline(
        "several of Spark's keys",
        "configuration: {spark.jobpipe: {acks: some, spol.dir: /x}, spark.a.password: hunter2, spark.b: [1]}",
        (3, "configuration.spark.jobpipe.acks", "'some' does not fit", "stored or all"),
        (3, "configuration.spark.jobpipe.spol.dir", "no such key", "did you mean spark.jobpipe.spool.dir?"),
        (3, "configuration.spark.a.password", "*** does not fit", SECRET),
        (3, "configuration.spark.b", "a list of 1", "a plain value"),
    ),
    pipeline(
        "libraries",
        "libraries: [{glob: {include: ../x/**}}]",
        (3, "libraries[0].glob.include", "'../x/**'", "below the folder"),
    ),
    pipeline(
        "an unknown launcher",
        "launcher: {type: locl}",
        (3, "launcher.type", "no launcher of type 'locl'", "did you mean local?"),
    ),
    pipeline(
        "a launcher's options",
        "launcher: {type: local, mastr: x}",
        (3, "launcher.mastr", "no such key", "did you mean master?"),
    ),
    pipeline(
        "a token in clear",
        "launcher: {type: spark-rest, url: 'http://x:1', master: 'spark://y:1', token: abc}",
        (3, "launcher.token", "*** does not fit", SECRET),
    ),
    pipeline(
        "a password in an address",
        "launcher: {type: spark-rest, url: 'http://u:hunter2@x:1', master: 'spark://y:1'}",
        (3, "launcher.url", "*** does not fit", "http://HOST:6066"),
    ),
    pipeline(
        "restart",
        "restart: {policy: sometimes, max-attempts: 0, delay: soon}",
        (3, "restart.policy", "'sometimes' does not fit", "on-failure or never"),
        (3, "restart.max-attempts", "0 does not fit", "at least 1"),
        (3, "restart.delay", "'soon' does not fit", "500ms"),
    ),
    pipeline(
        "delays", "restart: {delay: 1h, max-delay: 1m}", (3, "restart.max-delay", "shorter than delay", "a longer one")
    ),
    pipeline(
        "alerts",
        "alerts: [{type: webhook, url: 'https://example.com/T0KEN', on: [FALED]}]",
        (3, "alerts[0].url", "*** does not fit", SECRET),
        (3, "alerts[0].on[0]", "'FALED' does not fit", "FAILED, LOST, BLOCKED, LAGGING or GAP"),
    ),
    whole(
        "a wrong pipeline hides no job",
        """
        pipeline:
          name: 7
          topic-prefx: a.
          restart: {delay: 1h, max-delay: 1m}
        jobs:
          a: {source: {type: rate}, sink: {type: jobpipe, topic: t}}
          b: {source: {type: rate}, sink: {type: jobpipe, topic: t}, trigger: {available-now: 1, processing-time: 1s}}
          c: {sink: {type: console}}
          d: {source: {type: jobpipe, subscribe: 7.c.dead-letters}, sink: {type: console}}
        """,
        (2, "pipeline.name", "7 does not fit", "no dot"),
        (3, "pipeline.topic-prefx", "no such key", "did you mean topic-prefix?"),
        (4, "pipeline.restart.max-delay", "shorter than delay", "a longer one"),
        (7, "jobs.b.trigger.available-now", "1 does not fit", "true or false"),
        (7, "jobs.b.sink.topic", "topic t has two publishers", "of its own"),
        (8, "jobs.c.source", "it is missing", "give source:"),
    ),
    whole(
        "no pipeline hides no job",
        "jobs: {a: {source: {type: rate}}, b: {sink: {type: console}}}\n",
        (1, "pipeline", "it is missing", "begin the file with pipeline:"),
        (1, "jobs.a.sink", "it is missing", "or sinks"),
        (1, "jobs.b.source", "it is missing", "or sources"),
    ),
    whole(
        "a wrong configuration of a cluster",
        """
        pipeline:
          name: shop
          storage: 7
          configuration: {spark.jobpipe.spool.placement: shared, x: 1}
          launcher: {type: spark-submit, master: yarn}
        jobs: {a: {source: {type: rate}, sink: {type: jobpipe, topic: orders}}}
        """,
        (3, "pipeline.storage", "7 does not fit", "a text"),
        (4, "pipeline.configuration.x", "begin with spark.", "spark.x"),
    ),
    whole(
        "one job, a wrong name",
        "pipeline: {name: shop.eu}\nsource: {type: rate}\nsink: {type: consol}\n",
        (1, "pipeline.name", "'shop.eu' does not fit", "no dot"),
        (3, "sink.type", "no sink of type 'consol'", "did you mean console?"),
    ),
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
        (25, "pipeline.schema.other", "no such key", "possible names"),
        (26, "pipeline.local-time-zone", "no such key", "spark.sql.session.timeZone"),
        (27, "pipeline.route-mode", "no such key", "all routes"),
        (29, "pipeline.operator.uid.prefix", "no such key", "a job by its name"),
        (30, "pipeline.user-defined-function", "no such key", "type: python"),
        (31, "pipeline.model", "no such key", "type: python"),
    ),
    whole(
        "a mode in two places",
        """
        source: {type: rate}
        sink: {type: console}
        execution.runtime-mode: STREAMING
        pipeline:
          name: x
          execution.runtime-mode: BATCH
        """,
        (6, "pipeline.execution", "execution is given in line 3, too", "give it once"),
    ),
    whole(
        "a mode that is misspelt",
        "source: {type: rate}\nsink: {type: console}\npipeline: {name: x, execution: {runtime-mod: BATCH}}\n",
        (3, "pipeline.execution.runtime-mod", "no such key", "did you mean runtime-mode?"),
    ),
    whole(
        "a mode of several jobs",
        "jobs: {a: {source: {type: rate}, sink: {type: console}}}\n"
        "pipeline: {name: x, execution.runtime-mode: BATCH}\n",
        (2, "pipeline.execution", "no such key", "to each job"),
    ),
    whole(
        "a name for people among several jobs",
        """
        pipeline: {name: x}
        jobs: {a: {source: {type: rate, name: My Source}, sink: {type: console, name: My Sink}}}
        """,
        (2, "jobs.a.source.name", "no such key", "PIPELINE.JOB"),
        (2, "jobs.a.sink.name", "no such key", "leave it out"),
    ),
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
        (4, "source.type", "it is missing", "jobpipe plugins list"),
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
        f"source: {{type: jobpipe, subscribe: orders, read: {{timeout: soon}}}}\n{CONSOLE}",
        (4, "source.read.timeout", "'soon' does not fit", "60s"),
    ),
    job(
        "an option dotted and nested",
        f"source: {{type: jobpipe, subscribe: orders, read.timeout: 5s,\n  read: {{timeout: 6s}}}}\n{CONSOLE}",
        (5, "source.read.timeout", "in line 4 already", "give it once, dotted or nested"),
    ),
    job(
        "a sink's option dotted and nested",
        f"{RATE}\nsink: {{type: jobpipe, topic: t, retention: {{time: 2h}}, retention.time: 1h}}",
        (5, "sink.retention.time", "in line 5 already", "give it once, dotted or nested"),
    ),
    job(
        "a transform's option dotted and nested",
        f"{RATE}\n{CONSOLE}\n"
        "transform: [{type: InsertField, static.field: a, static.value: 1, static: {value: 2}}]",
        (6, "transform[0].static.value", "in line 6 already", "give it once, dotted or nested"),
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
        f"source: {{type: rate, options: {{ssl: {{password: hunter2}}}}}}\n{CONSOLE}",
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
        "too many runs at once",
        f"{BATCH}\n{ORDERS}\nsink: {{type: json, path: x}}\nschedule: {{every: day, max-active-runs: 101}}",
        (7, "schedule.max-active-runs", "does not fit", "from 1 to 100"),
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
        (6, "schedule", "the job is STREAMING", "schedule.mode: available-now"),
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
        execution.runtime-mode: BATCH
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
        errors: {dead-letters: bad, max-ratio: 0.1}
        sink: {type: console}
        """,
        (5, "errors.dead-letters", "without tolerance: all there are no dead letters", "errors.tolerance: all"),
        (5, "errors.max-ratio", "without tolerance: all there are no dead letters", "errors.tolerance: all"),
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
        execution.runtime-mode: BATCH
        source: {type: socket, options: {host: localhost}}
        sink: {type: noop}
        """,
        (5, "source.type", "source socket never ends", "leave out execution.runtime-mode"),
        (5, "source.options", "its port is missing", "port: PORT"),
    ),
    # -- between jobs
    whole(
        "two publishers",
        """
        pipeline: {name: shop, topic-prefix: dev.}
        jobs:
          a: {source: {type: rate}, sink: {type: jobpipe, topic: orders}}
          b:
            source: {type: rate}
            sink: {type: jobpipe, topic: orders}
          c:
            type: flow
            source: {type: jobpipe, subscribe: orders}
            function: c:d
            publish: orders
            schema: id bigint
        """,
        (6, "jobs.b.sink.topic", "topic dev.orders has two publishers: job a", "of its own"),
        (11, "jobs.c.publish", "topic dev.orders has two publishers: job a", "of its own"),
        (11, "jobs.c.publish", "the topic that the flow reads", "another"),
        (7, "jobs.c", "W:rows go round in a circle: c → c", "a filter"),
    ),
    whole(
        "a pattern after a prefix",
        """
        pipeline: {name: shop, topic-prefix: dev.}
        jobs:
          a: {source: {type: rate}, sink: {type: jobpipe, topic: raw}}
          b:
            source: {type: jobpipe, subscribePattern: '(?x) (?i)raw.*'}
            sink: {type: console}
          c:
            source: {type: jobpipe, subscribePattern: '(?ix) raw.* # of all'}
            sink: {type: console}
        """,
        (5, "jobs.b.source.subscribePattern", "after topic-prefix dev. it is no regular expression", "(?ix)"),
    ),
    whole(
        "a prefix that makes names too long",
        f"""
        pipeline: {{name: shop, topic-prefix: {60 * "p"}.}}
        jobs:
          a: {{source: {{type: rate}}, sink: {{type: jobpipe, topic: {100 * "t"}}}}}
          b:
            source: {{type: jobpipe, subscribe: {68 * "u"}}}
            sink: {{type: jobpipe, topic: {67 * "u"}}}
            errors: {{tolerance: all, dead-letters: {70 * "d"}}}
          {40 * "j"}:
            source: {{type: jobpipe, assign: {{{67 * "u"}: [1]}}}}
            sink: {{type: jobpipe, topic: t}}
            errors: {{tolerance: all, max-ratio: 0.5}}
        """,
        (3, "jobs.a.sink.topic", "the topic's name has 161 characters", "a shorter name or topic-prefix: 128"),
        (5, "jobs.b.source.subscribe", "the topic's name has 129 characters", "a shorter name or topic-prefix"),
        (7, "jobs.b.errors.dead-letters", "the topic's name has 131 characters", "a shorter name or topic-prefix"),
        (5, "jobs.b.source.subscribe", "W:no job of this file publishes", ""),
    ),
    whole(
        "a prefix that makes the name of dead letters too long",
        f"""
        pipeline: {{name: {40 * "s"}, topic-prefix: {64 * "p"}}}
        jobs:
          {40 * "j"}:
            source: {{type: rate}}
            sink: {{type: jobpipe, topic: t}}
            errors: {{tolerance: all}}
          {39 * "j"}:
            source: {{type: rate}}
            sink: {{type: jobpipe, topic: u}}
            errors: {{tolerance: all, dead-letters: short}}
        """,
        (6, f"jobs.{40 * 'j'}.errors", "the topic's name has 158 characters", "a shorter errors.dead-letters"),
    ),
    whole(
        "a cluster",
        """
        pipeline:
          name: shop
          launcher: {type: spark-submit, master: yarn}
        jobs:
          a:
            source: {type: rate}
            sink: {type: jobpipe, topic: orders}
          b:
            source: {type: rate}
            sink: {type: jobpipe, topic: refunds, spool.placement: shared}
          c:
            source: {type: rate}
            configuration: {spark.jobpipe.spool.placement: host}
            sink: {type: jobpipe, topic: returns}
        """,
        (1, "pipeline.storage", "W:checkpoints are in the home of one host", "every host reaches"),
        (7, "jobs.a.sink.spool.placement", "spool.placement is driver", "shared or host"),
    ),
)
