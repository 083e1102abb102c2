# Each target sets itself up from nothing: it needs Python 3.11 or newer, make and a C compiler.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST_WORKERS ?= 2

.PHONY: demo test lint types docs bench peers clean

demo: $(VENV)/installed
	$(BIN)/metreg demo -o demo --overwrite

test: lint types
	$(BIN)/python -m pytest -n $(PYTEST_WORKERS)

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/installed-dev
	$(BIN)/mypy

docs: $(VENV)/installed-docs
	$(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

bench: $(VENV)/installed
	$(BIN)/python benchmarks/iteration.py
	$(BIN)/python benchmarks/learning.py

# ANTs pins other versions of numpy and scipy, so it lives in an environment of its own; tests/test_ants.py uses it
peers: .venv-peers/installed

clean:
	rm -rf $(VENV) .venv-peers demo docs/_build

$(VENV)/pip:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt setuptools
	@touch $@

$(VENV)/installed: $(VENV)/pip pyproject.toml constraints.txt
	$(BIN)/python -m pip install -q --no-build-isolation -c constraints.txt -e .
	@touch $@

$(VENV)/installed-dev $(VENV)/installed-docs: $(VENV)/installed-%: $(VENV)/installed
	$(BIN)/python -m pip install -q --no-build-isolation -c constraints.txt -e ".[$*]"
	@touch $@

.venv-peers/installed: constraints-peers.txt
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install -q -r constraints-peers.txt
	@touch $@
