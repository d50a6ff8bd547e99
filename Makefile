.PHONY: setup demo test test-all check test-without-ray test-with-ray test-long test-pythons format bench clean

# Each actor is a process of its own: none of them is to compile every module again.
export PYTHONDONTWRITEBYTECODE :=

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

setup: $(STAMP)

# Touched last, so that an installation that failed half way is repeated.
$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -e '.[spark,dev]'
	touch $(STAMP)

demo: setup
	$(BIN)/pulsar-ray demo

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# Types are checked while those tests run that mostly wait; they take turns on two cores.
test: setup
	$(MAKE) --no-print-directory --jobs 2 check test-without-ray
	$(MAKE) --no-print-directory test-with-ray
	@echo 'not run: tests/nodes (several nodes) and other tests marked "long"; make test-all runs these too'

# `make test`, and then what it leaves out: tests/nodes, on nodes made of namespaces (where the machine refuses these,
# they are skipped and say why), and whatever else is marked `long`: several nodes, a browser, long faults.
test-all: test
	$(MAKE) --no-print-directory test-long

test-without-ray: setup
	$(BIN)/python -m pytest -m 'not long' --numprocesses 5 tests/unit tests/conformance

test-with-ray: setup
	$(BIN)/python -m pytest -m 'not long' --numprocesses 3 --dist loadgroup --no-loadscope-reorder tests/actors tests/docs tests/faults tests/spark

# One at a time: each brings up several Rays.
test-long: setup
	$(BIN)/python -m pytest -m long tests

# The lowest and the highest Python of requires-python, each in an environment of its own.
test-pythons:
	$(MAKE) test PYTHON=python3.10 VENV=.venv-3.10
	$(MAKE) test PYTHON=python3.12 VENV=.venv-3.12

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup
	$(BIN)/python -m benchmarks

clean:
	rm -rf .venv .venv-* .mypy_cache .ruff_cache .pytest_cache .hypothesis dist
