SHELL = /bin/bash
LINT_PATHS = zoo_plugins tests scripts examples

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

.PHONY: pytest type lint format commit-checks
