# Each target does its own set-up into .venv, once, and again only when pyproject.toml or constraints.txt changed.
PYTHON ?= $(or $(shell command -v python3.11),$(shell command -v python3))
BIN := .venv/bin
READY := .venv/.ready

PEERS := .venv-bench/.ready

.PHONY: demo test test-long torture mutants bench bench-quick docs lint clean
.DELETE_ON_ERROR:

demo: $(READY)
	@$(BIN)/python examples/digits/demo.py

test: $(READY) lint docs
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest tests/core tests/resume tests/retention tests/scan --numprocesses 4 --dist loadfile
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report
	$(BIN)/python -m pytest tests --ignore=tests/core --ignore=tests/resume --ignore=tests/retention \
		--ignore=tests/scan --numprocesses 4 --dist loadfile --no-loadscope-reorder

test-long: $(READY)
	$(BIN)/python -m pytest tests -m long

torture: $(READY)
	$(BIN)/python -m tests.crash.report

mutants: $(READY)
	$(BIN)/python -m bench.mutants

bench: $(READY) $(PEERS)
	@$(BIN)/python -m bench

bench-quick: $(READY) $(PEERS)
	@$(BIN)/python -m bench --quick

# The pages keep their places, so that links mean the same in the tree and on the site. A dead one is an error.
docs: $(READY)
	@rm -rf build/pages && mkdir -p build/pages
	@ln -s $(addprefix $(CURDIR)/,$(wildcard *.md) docs examples bench) build/pages/
	$(BIN)/mkdocs build --strict

lint: $(READY)
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --quiet --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

$(READY): pyproject.toml constraints.txt
	@echo "setting up .venv (MindSpore alone is 800 MB: the first time takes minutes)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		--editable '.[mindspore,postgres,examples,dev]'
	@touch $@

# What ckptstore is measured against needs another numpy than MindSpore does.
$(PEERS): bench/peers.txt
	@echo "setting up .venv-bench (1.6 GB: the first time takes minutes)"
	@test -x .venv-bench/bin/python || $(PYTHON) -m venv .venv-bench
	@.venv-bench/bin/python -m pip install --quiet --disable-pip-version-check --requirement bench/peers.txt
	@touch $@

clean:
	rm -rf .venv .venv-bench build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage
