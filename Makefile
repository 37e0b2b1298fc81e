# The same few commands serve people and CI. `make help` lists them.
PYTHON ?= $(shell command -v python3.11 || command -v python3 || echo python3.11)
VENV := .venv/bin
SEEDS ?= 1000:1200
PEERS ?= build/peers
export TORCH_INDEX

.DEFAULT_GOAL := help
.PHONY: help preflight setup setup-dev demo test test-unit test-slurm nightly sim bench bench-full bench-report \
    bench-l2 bench-catalog bench-routing bench-relay bench-tools compile-router lint types clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

preflight:  ## says what this machine lacks for the demo, and what to do about it
	@$(PYTHON) bench/demo/preflight.py

setup:  ## installs what the demo needs into .venv; does nothing when that is current
	@$(PYTHON) bench/demo/preflight.py install
	@$(PYTHON) bench/demo/install.py run

setup-dev:  ## the same, with what tests, lint and types need
	@$(PYTHON) bench/demo/preflight.py install
	@$(PYTHON) bench/demo/install.py test

demo: preflight setup  ## two replicas share a prefix through one directory (NAMESPACE=/mnt/... for a real mount)
	@$(VENV)/python -m bench.demo

# Two rounds: what may run side by side, then what wants the machine for itself.
test: preflight setup-dev  ## all tests, those on real engines included (about 10 GB of memory)
	@status=0; \
	$(VENV)/python -m pytest -n 2 -m "not engine and not alone and not nightly" || status=1; \
	$(VENV)/python -m pytest -m "(engine or alone) and not nightly" || status=1; \
	exit $$status

test-unit: setup-dev  ## all tests but those on real engines and the crash test
	$(VENV)/python -m pytest -n 2 -m "not engine and not alone and not nightly"

# Needs Debian's munge, slurmctld, slurmd, slurm-client and shellcheck; no root, no Slurm set up.
test-slurm: preflight setup-dev  ## launch/slurm on four virtual nodes, then with real engines (about 10 GB)
	@status=0; export PYTEST_DEBUG_TEMPROOT=$$(mktemp -d); \
	$(VENV)/python -m pytest -n 2 --dist loadfile tests/slurm -m "not engine and not nightly" || status=1; \
	$(VENV)/python -m pytest tests/slurm -m "engine and not nightly" || status=1; \
	rm -rf "$$PYTEST_DEBUG_TEMPROOT"; exit $$status

nightly: setup-dev  ## the longer runs: more engines, the ten-minute crash test
	$(VENV)/python -m pytest -m nightly
	$(VENV)/python -m tests.crash.fleet --seconds 600

sim: setup-dev  ## the simulation with many more seeds (SEEDS=1000:1200; hours for thousands)
	SHAREDFS_STOP_STRIDE=1 $(VENV)/python -m pytest -q -n 2 tests/protocol
	$(VENV)/python -m tests.sim --seeds $(SEEDS) --keep-going --transcript 0

# Without the throttling file system the cases still run; what needs it is recorded as not measured.
bench: setup-dev  ## the benchmark's quick profile and its page, under 15 minutes (BENCH_DIR=DIR on a mount)
	-@$(MAKE) --no-print-directory bench-tools
	$(VENV)/python -m bench run all --quick $(if $(BENCH_DIR),--dir $(BENCH_DIR)); status=$$?; \
	$(VENV)/python -m bench report; exit $$status

bench-full: setup-dev  ## everything, with more rounds: hours; the page too
	-@$(MAKE) --no-print-directory bench-tools
	-@$(VENV)/python -m pip install -q --no-deps ray==2.60.0  # else `nodes` takes local processes
	$(VENV)/python -m bench run all --full $(if $(BENCH_DIR),--dir $(BENCH_DIR)); status=$$?; \
	$(VENV)/python -m bench report; exit $$status

bench-report: setup-dev  ## the newest results again as a page, and docs/RESULTS.md
	$(VENV)/python -m bench report --docs

bench-l2: setup-dev  ## cost of lookup, load and store beside LMCache's own file adapters
	$(VENV)/python -m bench.l2 --dir /dev/shm

bench-catalog: setup-dev  ## memory and speed of the catalog with 10^6 chunks
	$(VENV)/python -m bench.catalog

bench-routing: setup-dev  ## the router's decisions against others' on traces (TRACE=PATH for a file; hours)
	$(VENV)/python -m bench.routing $(if $(TRACE),--trace $(TRACE))

# The peers get an environment of their own; without gcc the compiled rows are left out.
bench-relay: setup-dev  ## what relaying costs beside two other routers (PEERS=DIR for their environment)
	-@$(MAKE) --no-print-directory compile-router
	$(VENV)/python -m bench.relay --venv $(PEERS) --rounds 3 --prefixes 200000 \
	    $$([ -d build/compiled/router ] && echo --compiled build/compiled)

bench-tools:  ## builds the throttling file system (apt install gcc pkg-config libfuse3-dev fuse3)
	@$(PYTHON) bench/throttle/available.py
	@$(MAKE) -s -C bench/throttle

compile-router: setup-dev  ## the router's hot modules as machine code, below build/compiled; their tests (needs gcc)
	$(VENV)/python -m router.compiling build/compiled
	PYTHONSAFEPATH=1 PYTHONPATH=build/compiled:. $(VENV)/pytest -q -o pythonpath= tests/router/decide tests/router/relay

lint: setup-dev  ## ruff: format and rules
	$(VENV)/ruff format --check .
	$(VENV)/ruff check .

types: setup-dev  ## mypy, strict
	$(VENV)/mypy

clean:  ## removes what the demo made below .demo/ (not .venv)
	rm -rf .demo
