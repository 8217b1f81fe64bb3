# Main commands; each target sets up its requirements.
#
#   make demo         a broker, a producer, an `async for` consumer, and their rates; needs Python only
#   make test-quick   the tests that need no Java, on the embedded broker
#   make test         every test, on RocketMQ 4.9.7 and 5.5.0
#   make check        formatting, lint, types, layers, documentation

PYTHON ?= python3
VERSIONS ?= 4.9.7 5.5.0
OTHER_VERSIONS ?= 4.9.3 5.0.0 5.1.4 5.3.3 5.4.0
CHAOS_MINUTES ?= 3
CHAOS_SEED ?= 1
# Of the demo: embedded, or a real broker by jvm, docker or external (ROCKETMQ_NAMESRV).
BACKEND ?= embedded
BIN := .venv/bin
READY := .venv/.ready
# Parallel test processes; each has its own servers, about 1 GB.
PARALLEL ?= 4
BY_FILE := --dist loadfile --no-loadscope-reorder
PYTEST := $(BIN)/pytest -n $(PARALLEL) $(BY_FILE)
UNIT_PYTEST := $(BIN)/pytest -n 4 $(BY_FILE)
# Tests of faults and on the embedded broker mostly wait, and each has its own servers.
WAITING_PYTEST := $(BIN)/pytest -n 8 --dist worksteal
# A Spark session uses two processors, and fails if its Python processes take 10 s to start.
SPARK_PYTEST := $(BIN)/pytest -n 2 $(BY_FILE)
# Read, stream and write; the other Spark tests, and what is rejected before a request, do not
# depend on the version.
SPARK_ON_4 := $(addprefix tests/spark/test_,read.py stream.py write.py) -k "not rejected"
define CHECK_PYTHON
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
  { echo "Python 3.11 or newer is needed: make PYTHON=python3.12 ..."; exit 1; }
@$(PYTHON) -c 'import ensurepip' 2>/dev/null || \
  { echo "The venv module is missing: apt-get install python3-venv"; exit 1; }
endef

# The embedded demo needs four packages instead of all that is developed with.
DEMO := $(if $(and $(filter embedded,$(BACKEND)),$(if $(wildcard $(READY)),,yes)),.venv-demo,.venv)

# Of the broker tests on the embedded broker: in test-quick, and in test-embedded.
QUICK_BROKER_TESTS := tests/broker/test_conformance.py tests/broker/test_examples.py tests/broker/test_transaction_conformance.py
EMBEDDED_TESTS := $(QUICK_BROKER_TESTS) examples/billing $(addprefix tests/broker/test_,admin.py acl.py admin_acl.py embedded_official.py light_queues.py pop.py static_topics.py)
ONLY_EMBEDDED := tests/broker/test_embedded_official.py examples/billing/tests/test_faults.py
# Not conformance: it compares the embedded broker with the versions that it imitates.
CLIENT_TESTS := $(addprefix tests/broker/test_,producer.py push.py pull.py transactions.py pop.py)

# Without compiled files each process that tests start compiles the package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo core test test-quick check check-format check-mypy check-pyright check-layers check-docs test-unit test-core test-faults test-embedded test-broker test-essential-topologies test-topologies test-chaos test-versions test-spark test-containers bench docs format lock clean

demo: $(DEMO)/.ready
	PYTHONPATH=. $(DEMO)/bin/python examples/demo.py --backend $(BACKEND)

# The compiled core, built in place; see docs/design.md.
core: $(READY)
	$(BIN)/python tools/build_hook.py

test: test-unit test-core test-faults test-embedded test-broker test-spark

test-quick: $(READY)
	$(UNIT_PYTEST) -m "not long" -k "not uvloop" tests/unit tests/faults
	$(WAITING_PYTEST) $(QUICK_BROKER_TESTS) examples/billing --rocketmq-backend embedded

test-unit: $(READY)
	$(UNIT_PYTEST) tests/unit

# Builds, and the decoders compiled with sanitizers; needs a C compiler.
test-core: $(READY)
	$(PYTEST) tests/core

test-faults: $(READY)
	$(WAITING_PYTEST) tests/faults

# The embedded broker: where versions differ, and the official clients.  All broker tests, except
# those that need a real broker, run on it with EMBEDDED_TESTS="tests/broker examples/billing".
test-embedded: $(READY)
	set -e; for version in $(VERSIONS); do \
	  $(WAITING_PYTEST) $(EMBEDDED_TESTS) --rocketmq-backend embedded --rocketmq-version $$version; \
	done

# On 5.x with the essential topologies: first, because they take longest and mostly wait.
test-broker: $(READY)
	failed=; for version in $(VERSIONS); do \
	  case $$version in 4.*) topologies=;; *) topologies=tests/topologies;; esac; \
	  $(PYTEST) $$topologies tests/broker examples/billing -m "essential or not topologies" $(addprefix --ignore=,$(ONLY_EMBEDDED)) --rocketmq-version $$version || failed="$$failed $$version"; \
	done; test -z "$$failed" || { echo "failed on:$$failed"; exit 1; }

# The clients on versions that `make test` does not use; every version runs even if one fails.
test-versions: $(READY)
	failed=; for version in $(OTHER_VERSIONS); do \
	  $(PYTEST) $(CLIENT_TESTS) --rocketmq-backend jvm --rocketmq-version $$version || failed="$$failed $$version"; \
	done; test -z "$$failed" || { echo "failed on:$$failed"; exit 1; }

# Replicas, rolling upgrades, several name servers, proxies; the clusters are large.
test-topologies: $(READY)
	$(PYTEST) tests/topologies $(TOPOLOGY_OPTIONS) --rocketmq-backend jvm --rocketmq-version 5.5.0

# One failover, one rolling upgrade, one backlog that is read from a slave.
test-essential-topologies:
	$(MAKE) test-topologies TOPOLOGY_OPTIONS="-m essential"

# Random clients and faults on real brokers, for CHAOS_MINUTES on each topology; see CONTRIBUTING.md.
test-chaos: $(READY)
	failed=; for topology in one two slaves controller proxies; do \
	  $(BIN)/python -m tests.chaos --topology $$topology --minutes $(CHAOS_MINUTES) --seed $(CHAOS_SEED) || failed="$$failed $$topology"; \
	done; test -z "$$failed" || { echo "failed on:$$failed"; exit 1; }

# Local Spark and a standalone cluster, against the same brokers.
test-spark: $(READY)
	set -e; for version in $(VERSIONS); do \
	  case $$version in 4.*) set -- $(SPARK_ON_4);; *) set -- tests/spark;; esac; \
	  $(SPARK_PYTEST) "$$@" --rocketmq-version $$version; \
	done

# Tests against brokers in containers; starts a private engine if none runs (needs root).
test-containers: $(READY)
	ROCKETMQ_VERSIONS="$(VERSIONS)" tools/container_engine.sh sh -c 'set -e; \
	  for version in $(VERSIONS); do \
	    $(BIN)/pytest tests/containers --rocketmq-version $$version; \
	  done'

check: check-format check-mypy check-pyright check-layers check-docs

check-format: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

check-mypy: $(READY)
	$(BIN)/mypy

check-pyright: $(READY)
	$(BIN)/pyright

check-layers: $(READY)
	$(BIN)/lint-imports

check-docs: $(READY)
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
	uv pip compile --quiet --generate-hashes --no-header --no-emit-index-url --no-annotate \
	  --constraints requirements/dev.lock --python-version 3.11 -o requirements/run.lock pyproject.toml

clean:
	rm -rf .venv .venv-demo site .mypy_cache .ruff_cache .pytest_cache .hypothesis benchmarks/results

$(READY): .venv/.installed rocketmq_aio/_core.c tools/build_hook.py
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $(READY)

.venv/.installed: requirements/dev.lock pyproject.toml
	$(CHECK_PYTHON)
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.lock
	touch $@

.venv-demo/.ready: requirements/run.lock
	$(CHECK_PYTHON)
	$(PYTHON) -m venv .venv-demo
	.venv-demo/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/run.lock
	touch .venv-demo/.ready
