# Two commands do everything on a bare machine with Python 3.11 or newer: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
DEMO ?= recollect-demo

.PHONY: demo test lint picture clean

demo: .venv/installed
	$(BIN)/recollect demo --out $(DEMO)

test: .venv/installed-dev
	$(BIN)/python -m pytest -n auto

lint: .venv/installed-dev
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/mypy
	$(BIN)/lint-imports

# The pictures and tables in README.md and docs/ are made by these commands.
picture: demo
	cp $(DEMO)/pairs.png docs/images/pairs.png

.venv/bin/python:
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "Python 3.11 or newer is needed, this is " + sys.version.split()[0]'
	$(PYTHON) -m venv .venv

# torch first and by its exact version: an open range would pull several gigabytes of CUDA packages.
.venv/installed: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	touch $@

.venv/installed-dev: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv $(DEMO) .mypy_cache .ruff_cache .pytest_cache .hypothesis
