SHELL = /bin/bash
LINT_PATHS = zoo_plugins tests scripts examples docs

# `make format CHECK=--check` only looks
CHECK =

pytest:
	python -m pytest

type:
	mypy

lint:
	ruff check $(LINT_PATHS)

format:
	ruff check --select I $(if $(CHECK),,--fix) $(LINT_PATHS)
	ruff format $(CHECK) $(LINT_PATHS)

commit-checks: format type lint

# build/docs/index.html; needs the extra `docs`
docs:
	python scripts/fill_results.py --check
	python -m sphinx -q --fail-on-warning --keep-going -d build/doctrees docs build/docs

# Ask the web whether links to other sites still lead somewhere
linkcheck:
	python -m sphinx -q -b linkcheck -d build/doctrees docs build/linkcheck

.PHONY: pytest type lint format commit-checks docs linkcheck
