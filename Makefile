# Two commands on a fresh machine: `make quickstart` and `make test`.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
RUN ?= runs/quickstart

.PHONY: help setup quickstart test check bench probes chaos test-cgroup2 clean

help:
	@grep -E '^[a-z0-9-]+:.*##' Makefile | sed 's/:.*##/  -/'

setup: .stamps/setup ## install everything: Debian packages, virtual environment, native program

.stamps/setup: pyproject.toml setup.py tools/setup.sh $(wildcard native/*.[ch])
	PYTHON=$(PYTHON) VENV=$(VENV) sh tools/setup.sh
	@mkdir -p .stamps && touch .stamps/setup

quickstart: setup ## train a small policy by trial and error in real sandboxes, then report
	$(BIN)/trialyard doctor
	$(BIN)/trialyard train configs/quickstart.toml --out $(RUN) --or-resume

test: setup ## static checks and the whole test suite
	$(MAKE) check
	$(BIN)/python -m pytest

check: setup ## format, lint, layers, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy

bench: setup ## every benchmark, each with its comparison
	$(BIN)/trialyard bench all

probes: setup ## every hostile program of tests/probes
	TRIALYARD_ALL_PROBES=1 $(BIN)/python -m pytest tests/probes -q

chaos: setup ## kill 200 supervisors at random moments; nothing may be left
	TRIALYARD_CHAOS_KILLS=200 $(BIN)/python -m pytest tests/scenario/test_chaos.py -q --timeout 1800

test-cgroup2: setup ## the sandbox tests on Debian's cloud kernel with cgroup version 2, in qemu
	$(BIN)/python tools/cgroup2/run.py

clean: ## remove what setup and runs made
	rm -rf $(VENV) .stamps runs build src/*.egg-info src/trialyard/_native
