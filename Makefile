# Every target prepares what it needs: on a fresh machine with Python 3.11+ and make, `make demo` and `make test`
# are the whole set-up. `make help` lists the rest.

PYTHON ?= python3
# More than the two processors that `make test` is measured on: half of its tests wait for other processes.
WORKERS ?= 3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
# For those who want to look at the broker alone: no Spark, no tools of development.
CORE := build/core
CORE_READY := $(CORE)/ready

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-core demo-notice quick test check format bench bench-quick bench-start bench-offsets bench-queue-start bench-schedule bench-trace bench-sync bench-rebalance bench-pipeline bench-beside bench-end-to-end bench-replicated bench-takeover sim chaos conformance conformance-clients \
	conformance-librdkafka conformance-list serve clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-22s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY)  ## a virtual environment in .venv with everything in it

# A virtual environment in $(1), or a sentence about what is missing.
define make_environment
	@set -e; found=; \
	for candidate in $(PYTHON) python3.14 python3.13 python3.12 python3.11; do \
	  if command -v $$candidate >/dev/null 2>&1 && \
	     $$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    found=$$candidate; break; \
	  fi; \
	done; \
	if [ -z "$$found" ]; then \
	  echo "Penstock needs Python 3.11 or newer, and neither '$(PYTHON)' nor python3.11 to 3.14 is one: install it, or name it with 'make PYTHON=/path/to/python'." >&2; \
	  exit 1; \
	fi; \
	if [ ! -x $(1)/bin/python ]; then \
	  echo "creating $(1) with $$($$found --version)"; \
	  $$found -m venv $(1) || { rm -rf $(1); \
	    echo "$$found cannot make a virtual environment: its venv module is a package of its own on some systems (python3-venv)." >&2; exit 1; }; \
	fi
endef

# The stamp is newer than both files only if what they ask for is installed.
$(READY): pyproject.toml constraints.txt
	$(call make_environment,$(VENV))
	@echo "installing what pyproject.toml and constraints.txt ask for"
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

$(CORE_READY): pyproject.toml constraints.txt
	@echo "make demo-core: about 95 MB come from PyPI, once, into $(CORE); Spark is not among them"
	@mkdir -p $(CORE)
	$(call make_environment,$(CORE))
	@$(CORE)/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[demo]'
	@touch $@

demo-notice:
	@if [ $(READY) -nt pyproject.toml ] && [ $(READY) -nt constraints.txt ]; then \
	  echo "make demo: everything is installed, nothing is downloaded"; \
	else \
	  echo "make demo: about 810 MB come from PyPI (Spark alone is 460 MB), once, into $(VENV), where they take 1.6 GB;"; \
	  echo "           what an earlier run has installed is not fetched again. 'make demo-core' needs 95 MB and no Spark."; \
	fi

demo: demo-notice $(READY)  ## a node, stock clients, a pipeline on Spark: all of it in a few minutes
	@$(BIN)/python examples/demo.py

demo-core: $(CORE_READY)  ## the same without Spark, which is not even installed: a node, a stock Kafka client, queues
	@$(CORE)/bin/python examples/demo.py --core

# What a mistake breaks first. `heavy` are those whose seconds are better spent before a commit; a simulation tells its
# first stories; the one file of conformance/ is a client of every door on one topic.
QUICK := tests/test_tidy.py tests/test_places.py tests/unit tests/golden tests/sim tests/conformance/test_one_topic_every_way.py
quick: $(READY)  ## at every save: unit, golden, tidy, first seeds of each simulation, a real client at every door
	PENSTOCK_SIM_SEEDS=2 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m 'not slow and not heavy' $(QUICK)

test: $(READY)  ## every quick proof: unit, golden, simulation, real clients, twenty kill -9
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m 'not slow'

check: $(READY)  ## format, lint, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)  ## put every file into the house format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

conformance: conformance-clients conformance-librdkafka  ## other people's clients, broker and tests: everything below

# Apache Kafka itself is started beside the node where Maven Central is in reach (tests/conformance/differential).
conformance-clients: $(READY) build/schemathesis/ready  ## real clients against a real node, the slow cases too, and Kafka's answers beside ours
	$(BIN)/python -m pytest tests/conformance tests/pipeline/test_kafka_connector.py -v

# An environment of its own: its pytest plugin would load in every run of ours.
build/schemathesis/ready: constraints.txt
	@$(BIN)/python -m venv build/schemathesis
	@build/schemathesis/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt schemathesis
	@touch $@

conformance-librdkafka: $(READY)  ## librdkafka's own C tests, fetched and built once (ARGUMENTS='--only 0081')
	PYTHONPATH=tests $(BIN)/python -m conformance.librdkafka $(ARGUMENTS)

conformance-list: $(READY)  ## write docs/conformance/librdkafka.md from the list of tests that do not pass
	PYTHONPATH=tests $(BIN)/python -m conformance.librdkafka --write-list

# One process for each of two processors: a story waits for nothing. A seed that fails prints how to tell it again.
sim: $(READY)  ## two thousand stories of whole nodes on a simulated network, disk and clock: of one node, of a cluster (PENSTOCK_SIM_SEEDS of each)
	PENSTOCK_SIM_SEEDS=$${PENSTOCK_SIM_SEEDS:-1000} $(BIN)/python -m pytest -n 2 tests/sim/test_node_simulation.py tests/sim/test_cluster_simulation.py --timeout 3600

chaos: $(READY)  ## two hundred kill -9 under load, and the other long proofs
	PENSTOCK_SIM_SEEDS=2000 $(BIN)/python -m pytest tests/sim/test_storage_simulation.py --timeout 3600
	PENSTOCK_KILL_CYCLES=200 PENSTOCK_LEADER_KILLS=30 PENSTOCK_EVERY_LOAD_KILLS=30 PENSTOCK_PAUSES_SECONDS=2,6,20 PENSTOCK_QUEUE_KILL_CYCLES=100 PENSTOCK_SCHEDULE_KILL_CYCLES=100 $(BIN)/python -m pytest tests/cluster -v --timeout 3600
	PENSTOCK_SPARK_KILLS=20 $(BIN)/python -m pytest tests/pipeline/test_spark_kills.py -v --timeout 3600
	$(BIN)/python -m pytest tests/pipeline -m slow -v --timeout 3600

bench: $(READY)  ## Penstock's share of what a broker that does nothing achieves
	$(BIN)/python -m bench.run

bench-quick: $(READY)  ## the same with fewer rounds, for a first look; writes no result
	$(BIN)/python -m bench.run --rounds 1 --scale 0.3 --no-save

bench-start: $(READY)  ## an unclean start on 10 GB over 200 partitions
	$(BIN)/python -m bench.unclean_start

bench-offsets: $(READY)  ## a start after kill -9 with a million positions of groups, from the log and from snapshots
	$(BIN)/python -m bench.offsets_start

bench-queue-start: $(READY)  ## a start after kill -9 with a thousand queues and ten million records in their journals
	$(BIN)/python -m bench.queue_start

bench-schedule: $(READY)  ## ten million delayed messages: memory, start, and how late they are at 10,000 a second
	$(BIN)/python -m bench.schedule

bench-trace: $(READY)  ## the journey of one of a hundred million messages, with ten million records about them
	$(BIN)/python -m bench.trace_journeys

bench-sync: $(READY)  ## fdatasync of each file against one syncfs, alone and beside a noisy neighbour
	$(BIN)/python -m bench.sync_ways

bench-rebalance: $(READY)  ## a member leaves, a member is killed: what 98 others over 300 partitions notice
	$(BIN)/python -m bench.rebalance

bench-pipeline: $(READY)  ## rows through Spark's source, sink and archive, beside a source that costs nothing
	$(BIN)/python -m bench.pipeline

bench-end-to-end: $(READY)  ## from produce to consume at 100,000 messages a second, and the event loop's delay
	$(BIN)/python -m bench.end_to_end

bench-replicated: $(READY)  ## three nodes that keep every message three times, beside one node and the disk
	$(BIN)/python -m bench.replicated

bench-takeover: $(READY)  ## a killed leader with a million delays, queue records and positions: when the next one answers
	$(BIN)/python -m bench.takeover

bench-beside: $(READY)  ## another checkout under the same loads, in turn (BESIDE=../other-checkout)
	$(BIN)/python -m bench.beside $(BESIDE)

serve: $(READY)  ## a node on 127.0.0.1:9092, its data in build/data
	@mkdir -p build/data
	$(BIN)/penstock serve --data-dir build/data --kafka 127.0.0.1:9092 --metrics 127.0.0.1:9644

clean:  ## everything that was made, the virtual environment too
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
