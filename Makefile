# Each target sets itself up from nothing: it needs Python 3.11 or newer, make and a C compiler.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST_WORKERS ?= 2

.PHONY: demo test lint types docs bench peers browser viewer clean

demo: $(VENV)/installed
	$(BIN)/metreg demo -o demo --overwrite

test: lint types
	$(BIN)/python -m pytest -n $(PYTEST_WORKERS)

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/installed-dev
	$(BIN)/mypy

# pages, the examples in them, and links: warnings are errors. One thread each: the gallery's images are small
SPHINX = OMP_NUM_THREADS=1 $(BIN)/sphinx-build -q -W --keep-going -d docs/_build/doctrees
docs: $(VENV)/installed-docs
	$(SPHINX) -b html docs docs/_build/html
	$(SPHINX) -b doctest docs docs/_build/doctest
	$(SPHINX) -b linkcheck docs docs/_build/linkcheck
	@echo "docs/_build/html/index.html"

bench: $(VENV)/installed
	$(BIN)/metreg bench pair --size 96 112 96 --map-factor 0.5
	$(BIN)/python benchmarks/learning.py

# ANTs pins other versions of numpy and scipy, so metreg's peers live in an environment of their own; tests use it, and so
# may `metreg bench peers --environment .venv-peers`
peers: .venv-peers/installed

# the tests marked browser open reports in Debian's chromium, and are skipped without it
browser:
	@if command -v chromium >/dev/null; then :; \
	elif command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
		apt-get install -qq -y --no-install-recommends chromium >/dev/null \
		|| { apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium >/dev/null; } \
		|| echo "warning: chromium could not be installed; tests in a browser are skipped"; \
	else echo "no chromium: tests in a browser are skipped. As root: apt-get install chromium"; fi

# the viewer of the reports, from npm; without it they show still slices
viewer: $(VENV)/pip
	@$(BIN)/python tools/fetch_viewer.py || true

clean:
	rm -rf $(VENV) .venv-peers demo docs/_build src/metreg/report/vendor

$(VENV)/pip:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt setuptools
	@touch $@

$(VENV)/installed: $(VENV)/pip pyproject.toml constraints.txt setup.py tools/fetch_viewer.py
	$(BIN)/python -m pip install -q --no-build-isolation -c constraints.txt -e .
	@$(MAKE) -s viewer
	@touch $@

$(VENV)/installed-dev $(VENV)/installed-docs: $(VENV)/installed-%: $(VENV)/installed
	$(BIN)/python -m pip install -q --no-build-isolation -c constraints.txt -e ".[$*]"
	@touch $@

.venv-peers/installed: src/metreg/bench/peers.txt src/metreg/bench/peers_torch.txt | $(VENV)/installed
	$(BIN)/python -m metreg.bench.environment .venv-peers
