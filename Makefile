.PHONY: setup demo test test-all torture check test-without-ray test-with-ray test-long test-lowest test-pythons format bench flows clean

# Each actor is a process of its own: none of them is to compile every module again.
export PYTHONDONTWRITEBYTECODE :=

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
EXTRAS ?= spark,serve,tune,notebook,dev
# A file of versions to install, as pip's --constraint takes it; without, the newest that pyproject.toml allows.
VERSIONS ?=
STAMP := $(VENV)/.installed

# Compiles again only what has changed since the last time.
setup: $(STAMP)
	@$(BIN)/python hatch_build.py

# Touched last, so that an installation that failed half way is repeated.
$(STAMP): pyproject.toml $(VERSIONS)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -e '.[$(EXTRAS)]' $(VERSIONS:%=--constraint %)
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
# they are skipped and say why), and whatever else is marked `long`: a browser, long faults, most of the pages and the
# examples, carriers that few modules need. Before that, unit and conformance tests once more without compiled modules.
test-all: test
	PULSAR_RAY_PURE=1 $(PYTEST) -m 'not long' --numprocesses 6 tests/unit tests/conformance
	$(MAKE) --no-print-directory test-long
	$(MAKE) --no-print-directory test-lowest

# A test that passed in a later try is named at the end, with its failures before.
PYTEST := $(BIN)/python -m pytest --rerun-show-tracebacks

# The rounds of the torture begin, which take longest: all processes then end at about one time.
test-without-ray: setup
	$(PYTEST) -m 'not long' --numprocesses 6 tests/torture tests/unit tests/conformance

test-with-ray: setup
	$(PYTEST) -m 'not long' --numprocesses 4 --dist loadgroup --no-loadscope-reorder tests/actors tests/docs tests/faults $(if $(findstring spark,$(EXTRAS)),tests/spark)

# Those of tests/nodes one at a time: each brings up several Rays.
test-long: setup
	$(PYTEST) -m long --numprocesses 4 --dist loadgroup --no-loadscope-reorder --ignore=tests/nodes tests
	$(PYTEST) -m long tests/nodes

# Rounds of random work under random faults until the time is over, or until a promise is broken. A round is repeated
# with `make torture SEEDS=...`; further arguments: `python -m tests.torture --help`.
SECONDS ?= 600
torture: setup
	$(BIN)/python -m tests.torture --seconds $(SECONDS) $(if $(SEEDS),--seed $(SEEDS))

# The lowest versions of everything, without Ray, where there is that Python.
test-lowest:
	@if python3.10 -c '' 2>/dev/null; then \
		$(MAKE) --no-print-directory test-without-ray \
			VENV=.venv-lowest PYTHON=python3.10 EXTRAS=dev VERSIONS=tests/versions/lowest.txt; \
	else echo 'not run: python3.10 is not on the PATH, so the lowest versions are not tried'; fi

# The ends of what pyproject.toml allows: Ray, pyarrow and the rest in tests/versions/NAME.txt, the Python, the extras.
ENDS := lowest:python3.10:dev lowest-spark:python3.10:spark,dev \
	highest-spark:python3.12:spark,dev highest:python3.13:dev

# Each in an environment of its own. Types are those of the newest versions, so `make check` looks at them alone.
test-pythons:
	@for end in $(ENDS); do set -- $$(echo $$end | tr : ' '); $$2 -c '' || { \
		echo "$$2 does not run: put that Python on the PATH (for instance with pyenv, or uv python install)" >&2; \
		exit 1; }; done
	set -e; for end in $(ENDS); do set -- $$(echo $$end | tr : ' '); \
		$(MAKE) --no-print-directory test-without-ray test-with-ray \
			VENV=.venv-$$1 PYTHON=$$2 EXTRAS=$$3 VERSIONS=tests/versions/$$1.txt; done

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup
	$(BIN)/python -m benchmarks

# How many files and functions of the product a message runs through.
# Interpreted: no tracer sees a compiled function.
flows: setup
	PULSAR_RAY_PURE=1 $(BIN)/python -m benchmarks.flows

clean:
	rm -rf .venv .venv-* .mypy_cache .ruff_cache .pytest_cache .hypothesis dist
