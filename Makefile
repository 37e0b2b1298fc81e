# The same few commands serve people and CI. `make help` lists them.
PYTHON ?= $(shell command -v python3.11 || command -v python3 || echo python3.11)
VENV := .venv/bin
export TORCH_INDEX

.DEFAULT_GOAL := help
.PHONY: help preflight setup setup-dev demo test test-unit lint types clean

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

test: preflight setup-dev  ## all tests, those on real engines included (about 10 GB of memory)
	$(VENV)/python -m pytest

test-unit: setup-dev  ## all tests but those on real engines
	$(VENV)/python -m pytest -m "not engine"

lint: setup-dev  ## ruff: format and rules
	$(VENV)/ruff format --check .
	$(VENV)/ruff check .

types: setup-dev  ## mypy, strict
	$(VENV)/mypy

clean:  ## removes what the demo made below .demo/ (not .venv)
	rm -rf .demo
