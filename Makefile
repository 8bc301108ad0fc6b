# Every target is one line that calls a script or the command line. A fresh machine needs python3 (3.11 or newer) and make.

PYTHON ?= python3
BIN := .venv/bin

# Compiled modules are kept: every process that a test starts would compile all of them again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help venv check format test simulate mutate demo up down bench bench-drain bench-http
help:  ## what there is
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "%-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: .venv/ready
.venv/ready: requirements-dev.lock pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

lock:  ## pin the newest allowed versions
	uv pip compile -q pyproject.toml --generate-hashes --no-emit-index-url --no-annotate --no-header -o requirements.lock
	uv pip compile -q pyproject.toml --group dev --generate-hashes --no-emit-index-url --no-annotate --no-header -c requirements.lock -o requirements-dev.lock

check: venv  ## linters, types, layers, formatting
	$(BIN)/ruff check --quiet
	$(BIN)/ruff format --quiet --check
	$(BIN)/mypy controller hack tests
	$(BIN)/lint-imports --no-cache
	$(BIN)/codespell

format: venv  ## apply the formatting
	$(BIN)/ruff check --quiet --fix
	$(BIN)/ruff format --quiet

test: check  ## every test: pure, on real MySQL servers, on a real Kubernetes
	$(BIN)/python -m pytest --numprocesses 2 --dist loadgroup --no-loadscope-reorder tests/unit tests/mysql tests/simulation tests/cluster

simulate: venv  ## seeded runs with every fault, in virtual time: SEEDS=10000 FIRST_SEED=1
	$(BIN)/python -m tests.simulation --seeds $(or $(SEEDS),10000) --first-seed $(or $(FIRST_SEED),1)

mutate: venv  ## change each rule in one place at a time; its tests must notice (MODULES="payments.decide …"; half an hour)
	$(BIN)/python -m hack.mutation $(MODULES)

demo: venv  ## the main job on a real cluster, while processes are killed
	$(BIN)/python -m hack.demo

up: venv  ## a development cluster that stays
	$(BIN)/python -m hack.demo --stay

down: venv  ## take the development cluster away
	$(BIN)/python -m hack.cluster down

bench: bench-drain bench-peers bench-http bench-peak  ## all benchmarks: half an hour

bench-drain: venv  ## claim → charge → settle against the floor, and beside finished jobs
	$(BIN)/python -m hack.bench.drain $(BENCH)

bench-peers: venv  ## against db-scheduler and killbill-queue (needs a JDK)
	$(BIN)/python -m hack.bench.peers $(BENCH)

bench-http: venv  ## one claimer against a provider that takes 200 ms, or hangs
	$(BIN)/python -m hack.bench.http $(BENCH)

bench-peak: venv  ## 500,000 subscriptions due at one midnight
	$(BIN)/python -m hack.bench.peak $(BENCH)
