# `make test` and `make demo` work from a fresh clone: they make their own environment in .venv first.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
WORKERS ?= 2
DIST = --dist loadfile --no-loadscope-reorder  # a file is one worker's, so that its servers start once; tests/conftest.py orders them
# Which build of torch: the address of a package index, e.g. the one for CPU builds that pytorch.org names. Without it pip's own
# indexes decide (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL); the public one gives a CUDA build of several GB on Linux.
TORCH_INDEX ?=
PIP_INSTALL = pip install --quiet --constraint constraints.txt $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))

.PHONY: setup test test-fast check pytest coverage browser demo dist docs format bench clean

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/$(PIP_INSTALL) --editable ".[dev,hf,bench,ray,serve,export,docs]"
	@$(BIN)/python tools/installed.py $(VENV)
	@touch $@

test: check pytest  ## style, types, then all tests but the browser's

test-fast: setup  ## while working: style, and the tests that need neither servers nor more than a second or two
	$(BIN)/ruff check .
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(WORKERS) $(DIST) --ignore tests/browser --ignore tests/serve -m "not slow"

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

pytest: setup
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(WORKERS) $(DIST) --ignore tests/browser  # one thread each: workers share the cores

coverage: setup  ## all tests again, counting the lines of src/navia that they run
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(WORKERS) $(DIST) --ignore tests/browser --cov --cov-fail-under=90

browser: setup  ## pages in a real Chromium, which must be installed
	OMP_NUM_THREADS=1 $(BIN)/pytest tests/browser

demo: setup
	$(BIN)/navia demo

dist: setup  ## wheel and source package; the wheel runs the demo in an empty environment, away from the sources
	rm -rf dist
	$(BIN)/python -m build --quiet --outdir dist
	$(PYTHON) -m venv dist/venv
	dist/venv/bin/$(PIP_INSTALL) "$$(ls dist/*.whl)[bench]"
	cd dist && venv/bin/navia demo --limit 64 --out demo.html

docs: setup  ## the documentation as a site, in site/
	$(BIN)/mkdocs build --strict

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup
	$(BIN)/python benchmarks/speed.py

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache dist site
