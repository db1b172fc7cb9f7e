"""Wrong files: as a whole, in their section ``pipeline``, and between jobs."""

from __future__ import annotations

from tests.pipelines.wrong import SECRET, Wrong, pipeline, whole

FILES: tuple[Wrong, ...] = (
    # -- the file as a whole
    whole("empty", "", (1, "", "it is empty", "jobpipe pipeline init")),
    whole("comment", "# nothing\n", (1, "", "it is empty", "jobpipe pipeline init")),
    whole("a list", "- a\n- b\n", (1, "", "a section with keys", "begin with pipeline:")),
    whole("a text", "pipeline\n", (1, "", "a section with keys", "begin with pipeline:")),
    whole("a tab", "pipeline:\n\tname: x\n", (2, "", "there is a tab", "indent with spaces")),
    whole("brackets", "pipeline: {name: x\njobs: {}\n", (2, "", "a `{` is not closed", "close it by `}`")),
    whole("a list's brackets", "pipeline: [x\njobs: {}\n", (2, "", "a `[` is not closed", "close it by `]`")),
    whole("two on a line", "pipeline: name: x\n", (1, "", "a second `key:`", "on a line of its own")),
    whole("under a value", "pipeline: x\n  name: x\n", (2, "", "a second `key:`", "as its siblings are")),
    whole("no colon", "pipeline\njobs: {}\n", (2, "", "under a line that has a value or no `:`", "as its siblings")),
    whole("no colon after one", "a: 1\nb\nc: 2\n", (3, "", "neither a `:`", "write `key: value`")),
    whole("too far out", "a:\n    b: 1\n  c: 2\n", (3, "", "the indentation of this line", "as its siblings")),
    whole("not of the list", "a:\n  - b\n  c: 2\n", (3, "", "as the `-` of the list", "begin it with `-`")),
    whole("a quote", "pipeline: 'x\n", (2, "", "a quote is not closed", "close it")),
    whole("an at", "pipeline: @x\n", (1, "", "cannot begin with this character", "in quotes")),
    whole("a list in a line", "pipeline: - x\n", (1, "", "a list cannot begin here", "[a, b]")),
    whole("a directive", "%YAML x\n---\npipeline: x\n", (1, "", "it is not YAML", "check indentation")),
    whole("two documents", "pipeline: {name: x}\n---\njobs: {}\n", (2, "", "a second document", "a file is one")),
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
        "configuration: {spark.jobpipe.acks: some, spark.jobpipe.spol.dir: /x, spark.a.password: hunter2, "
        "spark.b: [1]}",
        (3, "configuration.spark.jobpipe.acks", "'some' does not fit", "stored or all"),
        (3, "configuration.spark.jobpipe.spol.dir", "no such key", "did you mean spark.jobpipe.spool.dir?"),
        (3, "configuration.spark.a.password", "*** does not fit", SECRET),
        (3, "configuration.spark.b", "a list of 1", "a plain value"),
    ),
    pipeline(
        "sections of Spark's keys",
        "configuration: {spark: {sql: {ansi.enabled: true}}, spark.a: {password: hunter2}}",
        (3, "configuration.spark", "it is a section", "as in spark.sql.ansi.enabled: ..."),
        (3, "configuration.spark.a", "it is a section", "as in spark.a.password: ..."),
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
    # -- between jobs
    whole(
        "two sinks with one folder",
        """
        pipeline: {name: shop}
        jobs:
          a: {source: {type: rate}, sink: {type: json, path: out}}
          b: {source: {type: rate}, sink: {type: csv, path: ./out/}}
          c:
            source: {type: rate}
            sinks:
              - {type: json, path: more, at-least-once: true}
              - {type: spark, format: Parquet, path: "file:///more/../srv", at-least-once: true}
              - {type: parquet, path: /srv, at-least-once: true}
          d: {source: {type: csv, path: in}, execution: {runtime-mode: BATCH}, sink: {type: json, path: x/../more}}
          e: {source: {type: csv, path: in}, execution: {runtime-mode: BATCH}, sink: {type: json, path: f}}
          f: {source: {type: csv, path: in}, execution: {runtime-mode: BATCH}, sink: {type: json, path: f}}
        """,
        (4, "jobs.b.sink.path", "job a writes its files to ", "of its own"),
        (10, "jobs.c.sinks[2].path", "another sink of this job writes its files to /srv, too", "of its own"),
        (11, "jobs.d.sink.path", "job c writes its files to ", "of its own"),
    ),
    whole(
        "options that have a place of their own",
        """
        pipeline: {name: shop}
        jobs:
          a:
            source: {type: text, path: in, options: {Path: x}}
            sink: {type: json, path: out, options: {path: x, checkpointLocation: y}}
          b:
            source: {type: spark, format: csv, schema: x int, options: {path: x}}
            sink: {type: spark, format: json, options: {path: x}}
          c: {source: {type: rate}, sink: {type: kafka, options: {kafka.bootstrap.servers: x, CheckpointLocation: y}}}
        """,
        (4, "jobs.a.source.options.Path", "not an option here", "path next to options"),
        (5, "jobs.a.sink.options.path", "not an option here", "path next to options"),
        (5, "jobs.a.sink.options.checkpointLocation", "not an option here", "pipeline.storage"),
        (7, "jobs.b.source.options.path", "not an option here", "path next to options"),
        (8, "jobs.b.sink.options.path", "not an option here", "path next to options"),
        (9, "jobs.c.sink.options.CheckpointLocation", "not an option here", "pipeline.storage"),
    ),
    whole(
        "a source that reads what its sink writes",
        """
        pipeline: {name: shop}
        jobs:
          a: {source: {type: text, path: d}, sink: {type: json, path: d}}
          b: {source: {type: text, path: d/*}, sink: {type: json, path: d/out}}
          c:
            source: {type: text, path: e, options: {recursiveFileLookup: true}}
            sink: {type: json, path: e/out}
          d: {source: {type: text, path: f}, sink: {type: json, path: f/out}}
          e: {source: {type: text, path: f/*.csv}, sink: {type: json, path: f}}
          f: {source: {type: text, path: g/*.txt}, sink: {type: text, path: g}}
          g: {source: {type: text, path: h}, sink: {type: json, path: h}, execution: {runtime-mode: BATCH}}
          h: {source: {type: text, path: i, options: {pathGlobFilter: "*.csv"}}, sink: {type: json, path: i}}
        """,
        (3, "jobs.a.sink.path", "the source reads what the sink writes to", "that the source does not read"),
        (4, "jobs.b.sink.path", "the source reads what the sink writes to", "that the source does not read"),
        (7, "jobs.c.sink.path", "the source reads what the sink writes to", "that the source does not read"),
        (10, "jobs.f.sink.path", "the source reads what the sink writes to", "that the source does not read"),
    ),
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
