.PHONY: setup demo test check format bench clean

# Each actor is a process of its own: none of them is to compile every module again.
export PYTHONDONTWRITEBYTECODE :=

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

setup: $(STAMP)

# Touched last, so that an installation that failed half way is repeated.
$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -e '.[spark,dev]'
	touch $(STAMP)

demo: setup
	$(BIN)/pulsar-ray demo

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

test: setup check
	$(BIN)/python -m pytest --numprocesses 3 tests/unit tests/conformance
	$(BIN)/python -m pytest --numprocesses 2 --dist loadgroup --no-loadscope-reorder tests/actors tests/docs tests/faults tests/spark

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup
	$(BIN)/python -m benchmarks

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis dist
