# Two commands do everything: `make demo` and `make test`. Each makes its own virtual environment in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python

.PHONY: demo test lint types contracts unit spark short-faults faults cluster-test bench chaos fuzz lock audit sbom clean

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

unit: $(VENV)/.dev
	$(BIN)/pytest -m "not spark and not slow" --ignore tests/faults --ignore tests/cluster --durations=15

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

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/backlog.py
	$(BIN)/python benchmarks/catalog.py
	$(BIN)/python benchmarks/transport.py
	$(BIN)/python benchmarks/slow_subscriber.py

# Random faults for so many seconds; the printed seed draws them again: make chaos SECONDS=600 SEED=1 SHAPE=mixed
# SHAPE is small, large, or, as is the default, one after the other.
chaos: $(VENV)/.dev
	$(BIN)/python -m tests.faults.chaos $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED)) \
		$(if $(SHAPE),--shape $(SHAPE)) $(CHAOS)

# A million strange inputs to each parser: make fuzz INPUTS=1000000 SEED=1
fuzz: $(VENV)/.dev
	for target in frames message index described record metadata; do \
		$(BIN)/python -m tests.security.fuzz $$target --inputs $(or $(INPUTS),1000000) --seed $(or $(SEED),1) || exit 1; \
	done
	for mode in wire signed sealed; do \
		$(BIN)/python -m tests.security.segments $$mode --mutants 10000 --seed $(or $(SEED),1) || exit 1; \
	done

# After a change of the dependencies in pyproject.toml; UPGRADE=--upgrade takes the newest versions.
COMPILE = $(VENV)/tools/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --custom-compile-command 'make lock' $(UPGRADE)
lock: $(VENV)/.tools
	$(COMPILE) pyproject.toml -o requirements/runtime.txt
	$(COMPILE) --extra demo pyproject.toml -o requirements/demo.txt
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

# Tools for the supply chain, apart from what jobpipe needs.
$(VENV)/.tools: $(VENV)/bin/python requirements/tools.txt
	$(PYTHON) -m venv $(VENV)/tools
	$(VENV)/tools/bin/pip install --quiet --require-hashes -r requirements/tools.txt
	touch $@

clean:
	rm -rf $(VENV) .demo build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
