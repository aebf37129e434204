# `make reproduce`, `make serve` and `make test` do all the set-up on a fresh machine; a second call sets up nothing.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
READY = $(VENV)/.ready
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check
UV = 0.9.5
PIP_AUDIT = 2.10.1
SITE = build/site-env
MKDOCS ?= $(SITE)/bin/mkdocs

.DEFAULT_GOAL := $(READY)
.PHONY: reproduce serve lint check test quick test-all docs docs-check bench audit clean

# TORCH=cpu takes PyTorch's wheels for CPUs, of the lock's versions, and none of NVIDIA's packages.
TORCH ?= gpu
ifeq ($(TORCH),cpu)
LOCK = build/requirements-cpu.lock
CPU = --extra-index-url https://download.pytorch.org/whl/cpu
UVCPU = --index-strategy unsafe-best-match
else
LOCK = requirements.lock
endif

build/requirements-cpu.lock: requirements.lock
	mkdir -p build
	sed -E '/^(nvidia-|cuda-|triton==)/d; s/^(torch|torchvision)==([^ ]+)/\1==\2+cpu/' requirements.lock > $@

# uv takes two minutes for what takes pip six. Where it cannot be had, or finds no packages, pip goes on.
$(READY): $(LOCK) pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) uv==$(UV) && $(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python $(CPU) $(UVCPU) --requirement $(LOCK) \
		|| $(PIP) $(CPU) --requirement $(LOCK)
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

# What a commit needs: style, types by the daemon (a minute the first time, seconds after that), and the quick tests of
# what changed since the merge base with $(BASE).
BASE ?= main
check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/dmypy run -- --num-workers 0
	tests=$$($(BIN)/python -m tests.changed $(BASE)) && { test -z "$$tests" || $(BIN)/python -m pytest -q -m "not slow" $$tests; }

# Style and types beside the tests, which wait a quarter of their time for servers and for Ray.
test:
	$(MAKE) --no-print-directory -j2 lint quick

# Tests of the tasks' tools, which serve no table, run where their task or the platform differs from `main`; on `main` all run.
quick: $(READY)
	$(BIN)/python -m pytest -m "not slow" --tools changed

test-all: lint
	$(BIN)/python -m pytest

$(SITE)/.ready: pyproject.toml
	$(PYTHON) -m venv $(SITE)
	$(SITE)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(SITE)/bin/python -m pip install --quiet --disable-pip-version-check --group docs
	touch $@

# The documents as a site, in build/site. Building asks for no network; a warning, such as a broken link, is an error.
docs: $(SITE)/.ready
	NO_MKDOCS_2_WARNING=1 $(MKDOCS) build --strict

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

# Results stay: they may be a night's work.
clean:
	rm -rf $(VENV) build
