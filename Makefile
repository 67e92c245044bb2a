# Two commands matter: 'make book' and 'make test'. Each sets up what it needs, once.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PROFILE ?= quick

.PHONY: help setup book test lint serve clean lock smoke

help:  ## say what each target does
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 10

setup: $(STAMP)  ## install the locked environment into .venv (about 6 GB, most of it torch)

$(STAMP): requirements.lock pyproject.toml
	@echo "setup: installing the locked environment into $(VENV)"
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v <= (3, 13) else "Python 3.11, 3.12 or 3.13 is needed, this is %d.%d; use make PYTHON=python3.11" % v)'
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -r requirements.lock
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(STAMP)

book: $(STAMP)  ## execute the notebooks (PROFILE=quick) and render the book
	@echo "book: executing stale notebooks with profile $(PROFILE), then rendering"
	@$(BIN)/fedlib book --profile $(PROFILE)

smoke: $(STAMP)  ## the same at the smallest size, in minutes, to check the plumbing
	@$(BIN)/fedlib book --profile smoke

test: $(STAMP)  ## run all tests
	@echo "test: running all tests"
	@$(BIN)/python -m pytest -q

lint: $(STAMP)  ## check style and types
	@echo "lint: ruff and mypy"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/nbstripout --verify $$(find notebooks -name '*.ipynb')

serve: book  ## serve the rendered book on localhost:8000
	@$(BIN)/python -m http.server --directory book/_build/html --bind 127.0.0.1 8000

clean:  ## remove everything generated: executed notebooks, pages, runs, caches (not .venv)
	@echo "clean: removing generated files"
	@rm -rf book/_executed book/_generated book/_build .fedlib .pytest_cache .mypy_cache .ruff_cache

lock:  ## resolve the newest versions into requirements.lock (needs uv)
	@echo "# Exact versions of the whole stack, for Python 3.11 to 3.13. Made by 'make lock'; installed without resolution." > requirements.lock
	@uv pip compile pyproject.toml --universal --python-version 3.11 --all-extras --no-header --no-annotate --upgrade >> requirements.lock
