# Two commands do everything: `make demo` and `make test`. Each makes its own virtual environment in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JAVA := jobpipe/spark/java
JAR := $(JAVA)/jobpipe-local-files.jar
ARCHIVE := $(VENV)/spark-classes.jsa
ZOOKEEPER_ARCHIVE := $(VENV)/zookeeper-classes.jsa
# Besides the one in .venv, which is the newest; each has an environment of its own for `make compat`.
OTHER_SPARKS := 3.5 4.0 4.1 4.2
# The Python of each, if it is found, else $(PYTHON) with a warning. PySpark 3.5 imports distutils, which 3.12 has no more.
PYTHON_FOR_3.5 := python3.11
PYTHON_FOR_4.0 := python3.12
PYTHON_FOR_4.1 := python3.13
PYTHON_FOR_4.2 := python3.12
ENVIRONMENT = $(VENV)/compat/$(1)/.done
FOUND = $(or $(shell $(1) -c pass 2>/dev/null && echo $(1)),$(warning $(1) is not found; $(PYTHON) is taken)$(PYTHON))
# Besides that of .venv; those of them that are not found are skipped.
PYTHONS ?= 3.12 3.13
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python

.PHONY: demo demo-cdc test test-all check lint types contracts unit slow short-faults faults spark-core spark quarantined \
	cluster-test compat pythons bench bench-limits bench-kafka chaos fuzz model explore docs java lock audit sbom package clean

demo: $(VENV)/.demo
	$(BIN)/python examples/flights/run.py

# Change data: a shop's PostgreSQL, copied to MariaDB while customers change it. Needs both servers; says what to install.
demo-cdc: $(VENV)/.dev
	$(BIN)/python examples/shop/run.py

# What every change must pass, in ten minutes on two cores; then a summary. See docs/testing.md.
test: lint types contracts $(ZOOKEEPER_ARCHIVE)
	$(PARTS) unit short-faults spark-core

# All tests there are, once before an issue is closed: an hour, and a summary with the minutes of each part.
test-all: lint types contracts package $(ARCHIVE) $(ZOOKEEPER_ARCHIVE) $(call ENVIRONMENT,3.5) $(call ENVIRONMENT,plain) \
		$(VENV)/airflow/.done $(VENV)/python/$(lastword $(PYTHONS))/.done
	COMPAT="3.5 4.3" $(PARTS) unit slow short-faults faults spark-core spark compat cluster explore quarantined \
		unit@$(lastword $(PYTHONS)) spark-core@$(lastword $(PYTHONS))

# Lint, types, contracts, and the unit tests of what changed since BASE, in a minute or so: make check BASE=main
check: lint types contracts
	$(BIN)/python -m tests.changed $(BASE)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

contracts: $(VENV)/.dev
	$(BIN)/lint-imports

# With them the JVMs of "spark" and "cluster" start in some 40 % less time.
$(ARCHIVE): $(VENV)/.dev $(JAR) tests/harness/class_archive.py tests/harness/jvm.py
	$(BIN)/python -m tests.harness.class_archive spark

$(ZOOKEEPER_ARCHIVE): $(VENV)/.dev tests/harness/class_archive.py tests/harness/jvm.py
	$(BIN)/python -m tests.harness.class_archive zookeeper

# The parts of the tests are defined in tests/parts.py.
PARTS = $(BIN)/python -m tests.parts

unit slow short-faults spark-core quarantined: $(VENV)/.dev $(ZOOKEEPER_ARCHIVE)
	$(PARTS) $@

# Processes killed and stopped, links cut, ZooKeeper away, disks full, hung and restored. Those of "short-faults" are one
# of each class; those with Spark are in "spark".
faults: $(VENV)/.dev $(ZOOKEEPER_ARCHIVE)
	$(PARTS) short-faults faults

spark: $(VENV)/.dev $(ARCHIVE) $(ZOOKEEPER_ARCHIVE)
	$(PARTS) spark-core spark

# A Spark cluster of several hosts, made of namespaces: needs root; skipped, with the reason, where that is not allowed.
cluster-test: $(VENV)/.dev $(ARCHIVE)
	$(PARTS) cluster

# All versions of Spark that jobpipe works with, or some: make compat COMPAT="3.5 4.3". And jobpipe without Spark.
COMPAT ?= $(OTHER_SPARKS) 4.3
compat: $(VENV)/.dev $(ZOOKEEPER_ARCHIVE) $(foreach one,$(filter $(OTHER_SPARKS),$(COMPAT)) plain,$(call ENVIRONMENT,$(one)))
	COMPAT="$(COMPAT)" $(PARTS) compat

# The unit tests and the core of Spark's with other versions of Python, or some: make pythons PYTHONS=3.13
pythons: $(VENV)/.dev $(foreach one,$(PYTHONS),$(VENV)/python/$(one)/.done)
	$(PARTS) $(foreach one,$(PYTHONS),unit@$(one) short-faults@$(one) spark-core@$(one))

# jobpipe, Kafka, files and Spark alone, side by side; then benchmarks/RESULTS.md. A night on a quiet machine with 2 cores,
# 8 GiB of free memory and 30 GiB of disk. RUNS=1 tells within three hours whether all works, in .bench/report/RESULTS.md.
# Parts: benchmarks/README.md.
BENCH = $(BIN)/python -m benchmarks.side_by_side
bench: bench-kafka
	failed=0; \
	for measure in latency throughput alone fanout transport growth flows; do \
		$(BENCH) $$measure --runs $(or $(RUNS),5) || failed=1; \
	done; \
	$(BENCH) report --least $(or $(RUNS),5) $(if $(RUNS),--output .bench/report) && exit $$failed

# jobpipe against limits of its own; each fails above them.
bench-limits: $(VENV)/.dev
	$(BIN)/python benchmarks/backlog.py
	$(BIN)/python benchmarks/catalog.py
	$(BIN)/python benchmarks/transport.py
	$(BIN)/python -m benchmarks.slow_subscriber

# The jars of Apache Kafka, from Maven Central into .bench/jars; needs mvn.
bench-kafka: $(VENV)/.bench
	$(BENCH) fetch

# Random faults for so many seconds; the printed seed draws them again: make chaos SECONDS=600 SEED=1 SHAPE=mixed
# SHAPE is small, large, or, as is the default, one after the other.
chaos: $(VENV)/.dev
	$(BIN)/python -m tests.faults.chaos $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED)) \
		$(if $(SHAPE),--shape $(SHAPE)) $(CHAOS)

# The readers against their model, in so many new worlds of 120 trials each; a failure shows the seed: make model WORLDS=10
model: $(VENV)/.dev
	for world in $$(seq $(or $(WORLDS),10)); do \
		JOBPIPE_SEED=$$(od -An -N3 -tu4 /dev/urandom | tr -d ' ') $(BIN)/pytest -q tests/model || exit 1; \
	done

# Cancelled operations, failing calls, two coordinators, seeded schedules, so many seeds of each; a failure shows how to run
# it again: make explore SEEDS=2000 SEED=1 EXPLORER=cancel MINUTES=60
explore: $(VENV)/.dev
	$(BIN)/python -m tests.explore $(or $(EXPLORER),all) --seeds $(or $(SEEDS),500) --seed $(or $(SEED),0) \
		--minutes $(or $(MINUTES),120)

# A million strange inputs to each parser: make fuzz INPUTS=1000000 SEED=1
fuzz: $(VENV)/.dev
	for target in frames message index described record metadata; do \
		$(BIN)/python -m tests.security.fuzzing.fuzz $$target --inputs $(or $(INPUTS),1000000) --seed $(or $(SEED),1) || exit 1; \
	done
	for mode in wire signed sealed; do \
		$(BIN)/python -m tests.security.fuzzing.segments $$mode --mutants 10000 --seed $(or $(SEED),1) || exit 1; \
	done

# What is made from definitions: the page of options and keys, tables of the protocol, the schema of pipeline files;
# tests compare.
docs: $(VENV)/.dev $(VENV)/site/.done
	$(BIN)/python -m jobpipe.config.options_page > docs/options.md
	$(BIN)/python -m jobpipe.cli.commands_page > $(VENV)/commands && mv $(VENV)/commands docs/commands.md
	$(BIN)/python -m jobpipe.control.rest.openapi docs/rest.md
	$(BIN)/python -m jobpipe.operations.protocol_page docs/protocol.md
	$(BIN)/python -m jobpipe.metrics.metrics_page docs/monitoring.md
	$(BIN)/python -m tests.docs.module_map
	$(BIN)/python -m jobpipe.control.revisions.classes_page docs/pipelines.md
	$(BIN)/python -m jobpipe.pipelines.plugins.json_schema > $(VENV)/schema && mv $(VENV)/schema jobpipe/pipelines/pipeline.schema.json
	NO_MKDOCS_2_WARNING=1 $(VENV)/site/bin/mkdocs build --quiet
	@echo 'the site is in build/site'

# The classes for the driver's JVM, after a change of their source; needs a JDK 17. A test compares.
java:
	rm -rf build/classes
	javac --release 17 -Xlint:all -Werror -d build/classes -cp "$$($(BIN)/python -c \
		'from jobpipe_registry.embedded.embedded_zookeeper import find_jars; print(*find_jars().glob("hadoop-client-api-*.jar"))')" \
		$(JAVA)/src/jobpipe/hadoop/*.java
	jar --create --file $(JAR) --date 2026-01-01T00:00:00Z -C build/classes jobpipe

# After a change of the dependencies in pyproject.toml; UPGRADE=--upgrade takes the newest versions.
COMPILE = $(VENV)/tools/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --custom-compile-command 'make lock' $(UPGRADE)
lock: $(VENV)/.tools
	$(COMPILE) pyproject.toml -o requirements/plain.txt
	$(COMPILE) --extra spark pyproject.toml -o requirements/runtime.txt
	$(COMPILE) --extra spark --extra server --extra demo pyproject.toml -o requirements/demo.txt
	$(COMPILE) --extra spark --extra bench pyproject.toml -o requirements/bench.txt
	$(COMPILE) --extra spark --extra demo --extra dev pyproject.toml -o requirements/dev.txt
	for version in $(OTHER_SPARKS); do \
		$(COMPILE) --constraint requirements/plain.txt requirements/spark-$$version.in -o requirements/spark-$$version.txt; done
	$(COMPILE) --allow-unsafe requirements/tools.in -o requirements/tools.txt
	$(COMPILE) requirements/airflow.in -o requirements/airflow.txt
	$(COMPILE) requirements/site.in -o requirements/site.txt

# Known vulnerabilities of what is locked; where the advisories cannot be reached it says so, and that is no failure.
audit: $(VENV)/.tools
	.ci/audit $(VENV)/tools/bin/pip-audit requirements/runtime.txt

# The bill of materials of an installation: build/sbom.json (CycloneDX).
sbom: $(VENV)/.tools
	mkdir -p build
	$(VENV)/tools/bin/cyclonedx-py requirements requirements/runtime.txt --pyproject pyproject.toml \
		--output-reproducible --output-file build/sbom.json

# Wheel and sdist in dist/; checked, installed into an empty environment, and used there, also with the sample plug-in of
# examples/plugin. Needs no network.
package: $(VENV)/.dev $(VENV)/.tools
	rm -rf dist build/plugin
	$(VENV)/tools/bin/python -m build --no-isolation
	$(VENV)/tools/bin/python -m build --no-isolation --wheel --outdir build/plugin examples/plugin
	$(BIN)/pytest tests/package/check_package.py

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)

# Versions and hashes are those of requirements/*.txt; pip refuses all others.
$(VENV)/.demo: $(VENV)/bin/python pyproject.toml requirements/demo.txt
	@echo "Installing jobpipe and PySpark (about 450 MB) into $(VENV): a few minutes, once."
	$(BIN)/pip install --require-hashes -r requirements/demo.txt
	$(BIN)/pip install --quiet --no-deps --editable .
	$(BIN)/pip check
	touch $@

# Compiled modules: the tests start thousands of Python processes, which keep none. With them Spark's Python processes
# start in a third of the time. --collect-only compiles the tests as pytest wants them, once for all its processes.
$(VENV)/.dev: $(VENV)/bin/python pyproject.toml requirements/dev.txt tests/harness/compiled_pyspark.py
	$(BIN)/pip install --quiet --require-hashes -r requirements/dev.txt
	$(BIN)/pip install --quiet --no-deps --editable .
	$(BIN)/pip check
	$(BIN)/python -m compileall -q jobpipe registry tests
	PYTHONDONTWRITEBYTECODE= $(BIN)/pytest --collect-only -qq > /dev/null || true
	$(BIN)/python -m tests.harness.compiled_pyspark
	touch $@ $(VENV)/.demo

$(VENV)/compat/plain/.done: requirements/plain.txt pyproject.toml
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install --quiet --require-hashes -r requirements/plain.txt
	$(@D)/bin/pip install --quiet --no-deps --editable .
	touch $@

$(VENV)/compat/%/.done: requirements/plain.txt requirements/spark-%.txt pyproject.toml
	$(call FOUND,$(PYTHON_FOR_$*)) -m venv $(@D)
	$(@D)/bin/pip install --quiet --require-hashes -r requirements/plain.txt -r requirements/spark-$*.txt
	$(@D)/bin/pip install --quiet --no-deps --editable .
	touch $@

$(VENV)/python/%/.done: requirements/dev.txt pyproject.toml tests/harness/compiled_pyspark.py
	if python$* -c pass; then \
		python$* -m venv $(@D) && \
		$(@D)/bin/pip install --quiet --require-hashes -r requirements/dev.txt && \
		$(@D)/bin/pip install --quiet --no-deps --editable . && \
		$(@D)/bin/python -m tests.harness.compiled_pyspark && \
		touch $@; \
	fi

# Only added to what is there: both locks have the same version of what both hold.
$(VENV)/.bench: $(VENV)/.demo requirements/bench.txt
	$(BIN)/pip install --quiet --require-hashes -r requirements/bench.txt
	$(BIN)/pip check
	touch $@

# The site of docs/.
$(VENV)/site/.done: requirements/site.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install --quiet --require-hashes -r requirements/site.txt
	touch $@

# Airflow, which runs the DAG of examples/schedulers in a test.
$(VENV)/airflow/.done: requirements/airflow.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install --quiet --require-hashes -r requirements/airflow.txt
	touch $@

# Tools for the supply chain, apart from what jobpipe needs.
$(VENV)/.tools: $(VENV)/bin/python requirements/tools.txt
	$(PYTHON) -m venv $(VENV)/tools
	$(VENV)/tools/bin/pip install --quiet --require-hashes -r requirements/tools.txt
	touch $@

clean:
	rm -rf $(VENV) .demo build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
