# Two commands: `make audit` and `make test`. Each sets up what it needs, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
SOURCES := pyproject.toml constraints.txt
WORKERS ?= 2

.PHONY: audit test test-all lint clean

audit: $(VENV)/.core
	$(BIN)/fedleak audit

test: $(VENV)/.dev
	$(BIN)/ruff check src tests
	$(BIN)/ruff format --check src tests
	$(BIN)/mypy
	$(BIN)/python -m pytest -q -n $(WORKERS) -m "not slow"

# What is slow or needs more: the whole default audit twice, kill sweeps, Flower, Ray, Opacus, a browser, the wheel.
test-all: $(VENV)/.all
	$(BIN)/python -m pytest -q -m slow
	$(BIN)/python -m pytest -q -n $(WORKERS) -m "not slow" tests/integrations tests/examples

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
	$(PIP) --editable '.[dev,flower,opacus,dp]'
	@touch $@ $(VENV)/.dev $(VENV)/.core

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
