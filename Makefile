# `make reproduce`, `make serve` and `make test` do all the set-up on a fresh machine; a second call sets up nothing.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
READY = $(VENV)/.ready
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check
UV = 0.9.5
PIP_AUDIT = 2.10.1

.PHONY: reproduce serve test test-all docs-check bench lint audit clean

# uv takes two minutes for what takes pip six. Where it cannot be had, or finds no packages, pip goes on.
$(READY): requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) uv==$(UV) && $(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --requirement requirements.lock \
		|| $(PIP) --requirement requirements.lock
	$(PIP) --no-deps --no-build-isolation --editable .
	touch $(READY)

reproduce: $(READY)
	$(BIN)/retable reproduce

serve: $(READY)
	$(BIN)/retable serve

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Tests of the tasks' tools, which serve no table, run where a tool or a room that it needs differs from `main`.
test: lint
	$(BIN)/python -m pytest -m "not slow" --tools changed

test-all: lint
	$(BIN)/python -m pytest

# Each command of README and docs, in a terminal; what is trained stays in build/docs-check, for the next time.
docs-check: $(READY)
	$(BIN)/python -m pytest -n 0 tests/test_documents.py tests/test_documents_run.py

bench: $(READY)
	$(BIN)/python -m benchmarks

# Known vulnerabilities of what the lock names. The tool has an environment of its own: it is in no lock. Without
# --strict, a package that the service does not know, and a service that cannot be reached, would pass for sound.
audit:
	$(PYTHON) -m venv build/audit
	build/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit==$(PIP_AUDIT)
	build/audit/bin/pip-audit --strict --disable-pip --no-deps --requirement requirements.lock

clean:
	rm -rf $(VENV) results build
