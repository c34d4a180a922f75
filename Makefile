# What there is to run here, a line each. Variables can be set: make test PYTHON=python3.13, make fuzz TARGETS=config EACH=600
PYTHON ?= $(firstword $(wildcard .venv/bin/python) python3)
TARGETS ?= $(shell $(PYTHON) -c 'from tests.fuzz.targets import TARGETS; print(*TARGETS)')
EACH ?= 60

.DEFAULT_GOAL := help
.PHONY: help test lint docs site fuzz bench

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-7s%s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

test: ## every test
	$(PYTHON) -m pytest

lint: ## style, types, and the levels of imports
	$(PYTHON) -m ruff check . && $(PYTHON) -m ruff format --check . && $(PYTHON) -m mypy && $(dir $(PYTHON))lint-imports

docs: ## run the commands in the documents, write what they print now, show where that changed something
	-@LLMCALC_UPDATE_DOCS=1 $(PYTHON) -m pytest --tb=no -k console tests/test_docs.py; git diff --stat -- README.md docs

site: ## the documents as a site in site/, with no warning (needs the extra docs)
	NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict

fuzz: ## fuzz the readers of files that nobody has to trust, EACH=60 seconds each; what fails lies in build/ (needs atheris)
	@mkdir -p build; for t in $(TARGETS); do echo "== $$t"; $(PYTHON) -m tests.fuzz.run $$t --seconds $(EACH) --artifacts build || exit 1; done

bench: ## every benchmark against its limit, ten minutes or so in all (needs the extra test)
	@code=0; for b in benchmarks/*.py; do echo "== $$b"; $(PYTHON) -m benchmarks.$$(basename $$b .py) || code=1; done; exit $$code
