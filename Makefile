# Main commands; each target sets up its requirements.
#
#   make demo   a real broker, a producer, an `async for` consumer, and their rates
#   make test   every test, on RocketMQ 4.9.7 and 5.5.0
#   make check  formatting, lint, types, layers, documentation

PYTHON ?= python3
VERSIONS ?= 4.9.7 5.5.0
BIN := .venv/bin
READY := .venv/.ready
# Parallel test processes; each has its own servers, about 1 GB.
PARALLEL ?= 3
PYTEST := $(BIN)/pytest -n $(PARALLEL) --dist loadfile
# A Spark session uses two processors, and fails if its Python processes take 10 s to start.
SPARK_PYTEST := $(BIN)/pytest -n 2 --dist loadfile
# Read, stream and write; the other Spark tests do not depend on the version.
SPARK_ON_4 := tests/spark/test_read.py tests/spark/test_stream.py tests/spark/test_write.py

.PHONY: demo test check test-unit test-faults test-broker test-spark test-containers bench docs format lock clean

demo: $(READY)
	$(BIN)/python examples/demo.py

test: test-unit test-faults test-broker test-spark

test-unit: $(READY)
	$(PYTEST) tests/unit

test-faults: $(READY)
	$(PYTEST) tests/faults

test-broker: $(READY)
	set -e; for version in $(VERSIONS); do \
	  $(PYTEST) tests/broker --rocketmq-version $$version; \
	done

# Local Spark and a standalone cluster, against the same brokers.
test-spark: $(READY)
	set -e; for version in $(VERSIONS); do \
	  case $$version in 4.*) tests="$(SPARK_ON_4)";; *) tests=tests/spark;; esac; \
	  $(SPARK_PYTEST) $$tests --rocketmq-version $$version; \
	done

# Tests against brokers in containers; starts a private engine if none runs (needs root).
test-containers: $(READY)
	ROCKETMQ_VERSIONS="$(VERSIONS)" tools/container_engine.sh sh -c 'set -e; \
	  for version in $(VERSIONS); do \
	    $(BIN)/pytest tests/containers --rocketmq-version $$version; \
	  done'

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pyright
	$(BIN)/lint-imports
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY)
	$(BIN)/python -m benchmarks

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Run after changing dependencies in pyproject.toml (needs uv).
lock:
	uv pip compile --quiet --generate-hashes --no-header --no-emit-index-url --strip-extras \
	  --extra uvloop --extra compression --extra testing --extra cli --extra otel --extra spark --group dev --python-version 3.11 \
	  -o requirements/dev.lock pyproject.toml

clean:
	rm -rf .venv site .mypy_cache .ruff_cache .pytest_cache .hypothesis benchmarks/results

$(READY): requirements/dev.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || \
	  { echo "The venv module is missing: apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $(READY)
