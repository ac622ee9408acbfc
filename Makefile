# What people run; each target may be repeated. EXTRA=cpu or gpu chooses the build of vLLM, PYTHON the interpreter.
SHELL := /bin/bash
# Worker processes import the same large libraries again and again: their bytecode is worth keeping.
unexport PYTHONDONTWRITEBYTECODE
PYTHON ?= python3
EXTRA ?= cpu
BIN := .venv/bin
INSTALLED := .venv/.installed-$(EXTRA)
EMBEDDING_MODEL := .models/all-minilm-l6-v2
LANGUAGE_MODEL := .models/smollm2-135m-instruct
QUESTION ?= What colour is the lamp of the lighthouse?

.PHONY: help setup models demo test lint format bench samples lock clean

help:  ## show the targets
	@sed -nE 's/^([a-z]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

setup: $(INSTALLED)  ## create .venv and install what requirements/ pins

# The pins are complete, and leave out what must not be installed: --no-deps, so that nothing is resolved here.
INSTALL := pip install --python $(BIN)/python --no-deps
$(INSTALLED): requirements/$(EXTRA).txt requirements/uv.sh pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=... setup")'
	@test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$$(grep '^uv==' $<)"
	requirements/uv.sh $(EXTRA) $(INSTALL) --requirements $<
	requirements/uv.sh $(EXTRA) $(INSTALL) --no-build-isolation --editable .
	@rm -f .venv/.installed-* && touch $@

models: $(EMBEDDING_MODEL) $(LANGUAGE_MODEL)  ## fetch the small models that demo and tests use into .models/

$(EMBEDDING_MODEL) $(LANGUAGE_MODEL): | $(INSTALLED)
	$(BIN)/python -m jobs.fetch_models $@

demo: $(INSTALLED) $(EMBEDDING_MODEL)  ## ingest the sample documents and search them
	$(BIN)/batchmill run pipelines/demo.yaml --run-dir runs/demo
	$(BIN)/batchmill outcomes runs/demo
	$(BIN)/batchmill search --uri out/demo/lance --table documents --limit 3 "$(QUESTION)"
	@echo "The report lies at runs/demo/report.html"

test: $(INSTALLED) $(EMBEDDING_MODEL) $(LANGUAGE_MODEL)  ## run all tests; ARGS="-k chunk" runs some
	$(BIN)/python -m pytest $(ARGS)

lint: $(INSTALLED)  ## check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED)  ## mend style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(INSTALLED) $(EMBEDDING_MODEL)  ## measure, and print a table of results
	$(BIN)/python tests/benchmarks/documents.py $(ARGS)

samples: $(INSTALLED)  ## make the sample documents that are not plain text again
	$(BIN)/python pipelines/samples/generate.py

# Pins that hold stay; UPGRADE=--upgrade takes the newest of everything.
LOCK = pip compile pyproject.toml --python-version 3.11 --quiet \
	--no-header --no-annotate --extra dev --extra models $(UPGRADE)
lock: $(INSTALLED)  ## pin what pyproject.toml asks for in requirements/
	requirements/uv.sh cpu $(LOCK) --extra cpu --override requirements/cpu-overrides.txt --output-file requirements/cpu.txt
	requirements/uv.sh gpu $(LOCK) --extra gpu --output-file requirements/gpu.txt

clean:  ## remove what demo and tests leave behind; .venv and .models stay
	rm -rf runs out build *.egg-info .pytest_cache .mypy_cache .ruff_cache
