# Two commands do everything: `make demo` and `make test`. Each makes its own virtual environment in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python

.PHONY: demo test lint types contracts unit spark short-faults faults cluster-test bench bench-limits bench-kafka chaos fuzz \
	model explore docs lock audit sbom clean

demo: $(VENV)/.demo
	$(BIN)/jobpipe demo

test: lint types contracts unit short-faults spark

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

contracts: $(VENV)/.dev
	$(BIN)/lint-imports

# Most of these wait for sockets and processes: two at a time take little more than half the time.
unit: $(VENV)/.dev
	$(BIN)/pytest -n 2 --dist loadfile -m "not spark and not slow" --ignore tests/faults --ignore tests/cluster \
		--durations=15

spark: $(VENV)/.dev
	$(BIN)/pytest -m "spark and not slow" --durations=15

# Processes killed and stopped, links cut, ZooKeeper away, disks full, hung and restored: at least one test of each class
# of fault; those with Spark are in "spark".
short-faults: $(VENV)/.dev
	$(BIN)/pytest tests/faults -m "not spark and not slow" --durations=15

# All of them.
faults: $(VENV)/.dev
	$(BIN)/pytest tests/faults

# A Spark cluster of several hosts, made of namespaces: needs root; skipped, with the reason, where that is not allowed.
cluster-test: $(VENV)/.dev
	$(BIN)/pytest tests/cluster --durations=0

# jobpipe, Kafka, files and Spark alone, side by side; then benchmarks/RESULTS.md. Some four hours on a quiet machine with
# 2 cores, 8 GiB of free memory and 30 GiB of disk. RUNS=1 tells within one whether all works, in .bench/report/RESULTS.md.
# Parts: benchmarks/README.md.
BENCH = $(BIN)/python -m benchmarks.side_by_side
bench: bench-kafka
	failed=0; \
	for measure in latency throughput alone fanout transport growth; do \
		$(BENCH) $$measure --runs $(or $(RUNS),5) || failed=1; \
	done; \
	$(BENCH) report --least $(or $(RUNS),5) $(if $(RUNS),--output .bench/report) && exit $$failed

# jobpipe against limits of its own; each fails above them.
bench-limits: $(VENV)/.dev
	$(BIN)/python benchmarks/backlog.py
	$(BIN)/python benchmarks/catalog.py
	$(BIN)/python benchmarks/transport.py
	$(BIN)/python benchmarks/slow_subscriber.py

# The jars of Apache Kafka, from Maven Central into .bench/jars; needs mvn.
bench-kafka: $(VENV)/.bench
	$(BENCH) fetch

# Random faults for so many seconds; the printed seed draws them again: make chaos SECONDS=600 SEED=1 SHAPE=mixed
# SHAPE is small, large, or, as is the default, one after the other.
chaos: $(VENV)/.dev
	$(BIN)/python -m tests.faults.chaos $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED)) \
		$(if $(SHAPE),--shape $(SHAPE)) $(CHAOS)

# The readers against their model, in so many new worlds of 200 trials each; a failure shows the seed: make model WORLDS=10
model: $(VENV)/.dev
	for world in $$(seq $(or $(WORLDS),10)); do \
		JOBPIPE_SEED=$$(od -An -N3 -tu4 /dev/urandom | tr -d ' ') $(BIN)/pytest -q tests/model || exit 1; \
	done

# Cancelled operations, failing calls, two coordinators, seeded schedules, so many seeds of each; a failure shows how to run
# it again: make explore SEEDS=2000 SEED=1 EXPLORER=cancel
explore: $(VENV)/.dev
	$(BIN)/python -m tests.explore $(or $(EXPLORER),all) --seeds $(or $(SEEDS),500) --seed $(or $(SEED),0)

# A million strange inputs to each parser: make fuzz INPUTS=1000000 SEED=1
fuzz: $(VENV)/.dev
	for target in frames message index described record metadata; do \
		$(BIN)/python -m tests.security.fuzz $$target --inputs $(or $(INPUTS),1000000) --seed $(or $(SEED),1) || exit 1; \
	done
	for mode in wire signed sealed; do \
		$(BIN)/python -m tests.security.segments $$mode --mutants 10000 --seed $(or $(SEED),1) || exit 1; \
	done

# The page that is made from the definitions of options and keys; a test compares.
docs: $(VENV)/.dev
	$(BIN)/python -m jobpipe.config.page > docs/options.md

# After a change of the dependencies in pyproject.toml; UPGRADE=--upgrade takes the newest versions.
COMPILE = $(VENV)/tools/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --custom-compile-command 'make lock' $(UPGRADE)
lock: $(VENV)/.tools
	$(COMPILE) pyproject.toml -o requirements/runtime.txt
	$(COMPILE) --extra demo pyproject.toml -o requirements/demo.txt
	$(COMPILE) --extra bench pyproject.toml -o requirements/bench.txt
	$(COMPILE) --extra demo --extra dev pyproject.toml -o requirements/dev.txt
	$(COMPILE) --allow-unsafe requirements/tools.in -o requirements/tools.txt

# Known vulnerabilities of what is locked; where the advisories cannot be reached it says so, and that is no failure.
audit: $(VENV)/.tools
	.ci/audit $(VENV)/tools/bin/pip-audit requirements/runtime.txt

# The bill of materials of an installation: build/sbom.json (CycloneDX).
sbom: $(VENV)/.tools
	mkdir -p build
	$(VENV)/tools/bin/cyclonedx-py requirements requirements/runtime.txt --pyproject pyproject.toml \
		--output-reproducible --output-file build/sbom.json

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)

# Versions and hashes are those of requirements/*.txt; pip refuses all others.
$(VENV)/.demo: $(VENV)/bin/python pyproject.toml requirements/demo.txt
	$(BIN)/pip install --quiet --require-hashes -r requirements/demo.txt
	$(BIN)/pip install --quiet --no-deps --editable .
	$(BIN)/pip check
	touch $@

$(VENV)/.dev: $(VENV)/bin/python pyproject.toml requirements/dev.txt
	$(BIN)/pip install --quiet --require-hashes -r requirements/dev.txt
	$(BIN)/pip install --quiet --no-deps --editable .
	$(BIN)/pip check
	touch $@ $(VENV)/.demo

# Only added to what is there: both locks have the same version of what both hold.
$(VENV)/.bench: $(VENV)/.demo requirements/bench.txt
	$(BIN)/pip install --quiet --require-hashes -r requirements/bench.txt
	$(BIN)/pip check
	touch $@

# Tools for the supply chain, apart from what jobpipe needs.
$(VENV)/.tools: $(VENV)/bin/python requirements/tools.txt
	$(PYTHON) -m venv $(VENV)/tools
	$(VENV)/tools/bin/pip install --quiet --require-hashes -r requirements/tools.txt
	touch $@

clean:
	rm -rf $(VENV) .demo build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
