# Two commands do everything: `make demo` and `make test`. Each makes its own virtual environment in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python

.PHONY: demo test lint types contracts unit spark short-faults faults cluster-test bench chaos clean

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
	$(BIN)/pytest -m "not spark and not slow" --ignore tests/faults --ignore tests/cluster

spark: $(VENV)/.dev
	$(BIN)/pytest -m "spark and not slow"

# Processes killed and stopped, links cut, ZooKeeper away, disks full, hung and restored: at least one test of each class
# of fault; those with Spark are in "spark".
short-faults: $(VENV)/.dev
	$(BIN)/pytest tests/faults -m "not spark and not slow"

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

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(VENV)/bin/python pyproject.toml
	$(BIN)/pip install --quiet --editable '.[demo]'
	touch $@

$(VENV)/.dev: $(VENV)/bin/python pyproject.toml
	$(BIN)/pip install --quiet --editable '.[demo,dev]'
	touch $@ $(VENV)/.demo

clean:
	rm -rf $(VENV) .demo build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
