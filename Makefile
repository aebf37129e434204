# `make reproduce`, `make serve` and `make test` do all the set-up on a fresh machine; a second call sets up nothing.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
READY = $(VENV)/.ready

.PHONY: reproduce serve test test-all bench lint clean

$(READY): requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $(READY)

reproduce: $(READY)
	$(BIN)/retable reproduce --scale smoke

serve: $(READY)
	$(BIN)/retable serve

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest -m "not slow"

test-all: lint
	$(BIN)/python -m pytest

bench: $(READY)
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) results build
