# Every target prepares what it needs: on a fresh machine with Python 3.11+ and make, `make demo` and `make test`
# are the whole set-up. `make help` lists the rest.

PYTHON ?= python3
WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready

.DEFAULT_GOAL := help
.PHONY: help setup demo test check format bench bench-quick bench-start bench-offsets bench-queue-start bench-schedule bench-trace bench-sync bench-rebalance chaos conformance conformance-clients \
	conformance-librdkafka conformance-list serve clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-22s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY)  ## a virtual environment in .venv with everything in it

# The stamp is newer than both files only if what they ask for is installed.
$(READY): pyproject.toml constraints.txt
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
	if [ ! -x $(BIN)/python ]; then \
	  echo "creating $(VENV) with $$($$found --version)"; \
	  $$found -m venv $(VENV) || { rm -rf $(VENV); \
	    echo "$$found cannot make a virtual environment: its venv module is a package of its own on some systems (python3-venv)." >&2; exit 1; }; \
	fi
	@echo "installing what pyproject.toml and constraints.txt ask for"
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(READY)  ## a node, a stock Kafka client, and what they achieved together (about 20 s)
	@$(BIN)/python examples/demo.py

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
	$(BIN)/python -m pytest tests/conformance -v

# An environment of its own: its pytest plugin would load in every run of ours.
build/schemathesis/ready: constraints.txt
	@$(BIN)/python -m venv build/schemathesis
	@build/schemathesis/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt schemathesis
	@touch $@

conformance-librdkafka: $(READY)  ## librdkafka's own C tests, fetched and built once (ARGUMENTS='--only 0081')
	PYTHONPATH=tests $(BIN)/python -m conformance.librdkafka $(ARGUMENTS)

conformance-list: $(READY)  ## write docs/conformance/librdkafka.md from the list of tests that do not pass
	PYTHONPATH=tests $(BIN)/python -m conformance.librdkafka --write-list

chaos: $(READY)  ## two hundred kill -9 under load, and the other long proofs
	PENSTOCK_KILL_CYCLES=200 PENSTOCK_QUEUE_KILL_CYCLES=100 PENSTOCK_SCHEDULE_KILL_CYCLES=100 $(BIN)/python -m pytest tests/cluster -v --timeout 3600

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

serve: $(READY)  ## a node on 127.0.0.1:9092, its data in build/data
	@mkdir -p build/data
	$(BIN)/penstock serve --data-dir build/data --kafka 127.0.0.1:9092 --metrics 127.0.0.1:9644

clean:  ## everything that was made, the virtual environment too
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
