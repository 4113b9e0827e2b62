# Two commands: `make audit` and `make test`. Each sets up what it needs, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
SOURCES := pyproject.toml constraints.txt
WORKERS ?= 2
# Slow tests that take all cores themselves, or measure time.
ALONE := tests/integrations tests/audit/test_executors_ray.py tests/whole/test_default_audit.py
FLOOR := .venv-floor
FLOOR_FLOWER := flwr[simulation]==1.24.*

.PHONY: audit test test-all test-floor lint clean

audit: $(VENV)/.core
	$(BIN)/fedleak audit

test: $(VENV)/.dev
	$(BIN)/ruff check src tests
	$(BIN)/ruff format --check src tests
	$(BIN)/mypy
	$(BIN)/python -m pytest -q -n $(WORKERS) -m "not slow"

# What is slow or needs more: the whole default audit twice, kill sweeps, Flower, Ray, Opacus, a browser, the wheel.
test-all: $(VENV)/.all
	$(BIN)/python -m pytest -q -n $(WORKERS) -m slow $(addprefix --ignore=,$(ALONE))
	$(BIN)/python -m pytest -q -m slow $(ALONE)
	$(BIN)/python -m pytest -q -n $(WORKERS) -m "not slow" tests/integrations tests/examples
	$(MAKE) test-floor

# The oldest Flower that is supported, in an environment of its own. It is also where superlink and supernodes talk gRPC.
test-floor: $(FLOOR)/.ready
	$(FLOOR)/bin/python -m pytest -q -n $(WORKERS) $(wildcard tests/integrations/test_flower_[!o]*.py)

$(FLOOR)/.ready: $(SOURCES)
	$(PYTHON) -m venv $(FLOOR)
	$(FLOOR)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
	  --editable '.[dev,flower]' '$(FLOOR_FLOWER)'
	@touch $@

lint: $(VENV)/.dev
	$(BIN)/ruff check --fix src tests
	$(BIN)/ruff format src tests
	$(BIN)/mypy

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'fedleak needs Python 3.11 or newer; name one with: make PYTHON=/path/to/python3.11'; exit 2; }
	$(PYTHON) -m venv $(VENV)

# A stamp is newer than the files it depends on, so an unchanged checkout installs nothing.
$(VENV)/.core: $(SOURCES) | $(BIN)/python
	$(PIP) --editable .
	@touch $@

$(VENV)/.dev: $(SOURCES) | $(BIN)/python
	$(PIP) --editable '.[dev]'
	@touch $@ $(VENV)/.core

$(VENV)/.all: $(SOURCES) | $(BIN)/python
	$(PIP) --editable '.[dev,flower,ray,opacus,dp]'
	@touch $@ $(VENV)/.dev $(VENV)/.core

clean:
	rm -rf $(VENV) $(FLOOR) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
