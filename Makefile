# Each target does its own set-up into .venv, once, and again only when pyproject.toml or constraints.txt changed.
PYTHON ?= $(or $(shell command -v python3.11),$(shell command -v python3))
BIN := .venv/bin
READY := .venv/.ready

PEERS := .venv-bench/.ready
FRAMEWORKS := .venv-frameworks/.ready
MINDFORMERS := .venv-mindformers/.ready
BROWSER := .venv-browser/.ready
DIST := .venv-dist/.ready
OBJECTS := .venv-objects/.ready

# Else each process of the tests, some hundred, compiles what it imports.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test bytecode test-long simulate test-frameworks test-mindformers test-browser test-objects torture-objects serve-demo pictures demo-mindformers dist torture mutants bench bench-quick docs lint clean
.DELETE_ON_ERROR:

demo: $(READY)
	@$(BIN)/python examples/digits/demo.py

# What is measured by coverage, and so runs at two thirds of its speed: the tests of the modules that decide, and of
# what journals may hold.
MEASURED := tests/core tests/retention/test_decide.py \
	$(patsubst %,tests/resume/test_%.py,conversion faults lineage position register remedies resolver) \
	tests/evidence $(patsubst %,tests/scan/test_%.py,order plain_histories two_starts) \
	$(patsubst %,tests/journal/test_%.py,hostile_journals whose_word)

test: $(READY)
	@$(MAKE) --no-print-directory --jobs 2 lint bytecode docs
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest $(MEASURED) --numprocesses 4 --dist loadfile
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report
	$(BIN)/python -m pytest tests $(addprefix --ignore=,$(MEASURED)) --numprocesses 4 --dist loadfile \
		--no-loadscope-reorder

# Compiles what tests import, MindSpore above all: else all processes of the first run do so at once, each for itself.
bytecode: $(READY)
	-@$(BIN)/python -m pytest --collect-only --quiet tests > /dev/null

test-long: $(READY)
	$(BIN)/python -m pytest tests -m long

# Its own conftest.py only: that of all tests starts a PostgreSQL, and leaves this folder out.
test-frameworks: $(FRAMEWORKS)
	.venv-frameworks/bin/python -m pytest --confcutdir=tests/frameworks tests/frameworks

test-mindformers: $(MINDFORMERS)
	.venv-mindformers/bin/python -m pytest --confcutdir=tests/mindformers tests/mindformers

# With Debian's Chromium: apt-get install chromium
test-browser: $(BROWSER)
	.venv-browser/bin/python -m pytest --confcutdir=tests/browser tests/browser

# With a server for object storage: OpenStack Swift.
test-objects: $(OBJECTS)
	.venv-objects/bin/python -m pytest --confcutdir=tests/objects tests/objects

# 500 processes that copy are killed.
torture-objects: $(OBJECTS)
	.venv-objects/bin/python -m pytest --confcutdir=tests/objects tests/objects -m long -s

# Several runs with a made-up history, in a browser.
serve-demo: $(READY)
	@$(BIN)/python examples/serve_demo.py

# The pictures in docs/pictures: what a start decides, and the pages of the same history.
pictures: $(READY) $(BROWSER)
	@$(BIN)/python examples/picture.py > docs/pictures/start.svg
	@.venv-browser/bin/python -m tests.browser.pictures

demo-mindformers: $(MINDFORMERS)
	@.venv-mindformers/bin/python examples/mindformers/demo.py

# HISTORIES=N of the simulated world, from number SEED on.
HISTORIES ?= 1000
SEED ?= 0
simulate: $(READY)
	$(BIN)/python -m tests.world --histories $(HISTORIES) --seed $(SEED) --keep build/found

# What would be released: built, checked, and tried in an empty environment of each Python that is here.
dist: $(READY) $(DIST)
	@rm -rf dist
	$(BIN)/python -m build --outdir dist .
	.venv-dist/bin/twine check --strict dist/*
	$(BIN)/python -m pytest tests/packaging -m ""

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
	$(BIN)/codespell
	$(BIN)/python -m tests.docs.prose

# The pip that comes with Python 3.11 takes a quarter longer.
$(READY): pyproject.toml constraints.txt
	@echo "setting up .venv (MindSpore alone is 800 MB: the first time takes minutes)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --upgrade pip
	@$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt \
		--editable '.[mindspore,postgres,serve,examples,dev]'
	@touch $@

# What ckptstore is measured against needs another numpy than MindSpore does.
$(PEERS): bench/peers.txt
	@echo "setting up .venv-bench (1.6 GB: the first time takes minutes)"
	@test -x .venv-bench/bin/python || $(PYTHON) -m venv .venv-bench
	@.venv-bench/bin/python -m pip install --quiet --disable-pip-version-check --requirement bench/peers.txt
	@touch $@

# TensorFlow needs another numpy than MindSpore does. PyTorch is that of the system's Python, which gets ckptstore.
$(FRAMEWORKS): tests/frameworks/requirements.txt pyproject.toml
	@echo "setting up .venv-frameworks (1.6 GB: the first time takes minutes)"
	@test -x .venv-frameworks/bin/python || $(PYTHON) -m venv .venv-frameworks
	@.venv-frameworks/bin/python -m pip install --quiet --disable-pip-version-check \
		--requirement tests/frameworks/requirements.txt --editable .
	@/usr/bin/python3 -m venv --system-site-packages --without-pip .venv-frameworks/torch && \
		.venv-frameworks/bin/python -m pip --python .venv-frameworks/torch/bin/python install --quiet \
		--disable-pip-version-check --editable . || rm -rf .venv-frameworks/torch
	@touch $@

$(BROWSER): tests/browser/requirements.txt pyproject.toml constraints.txt
	@echo "setting up .venv-browser"
	@test -x .venv-browser/bin/python || $(PYTHON) -m venv .venv-browser
	@.venv-browser/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		--requirement tests/browser/requirements.txt --editable '.[serve]'
	@touch $@

$(OBJECTS): tests/objects/requirements.txt pyproject.toml constraints.txt
	@echo "setting up .venv-objects (MindSpore alone is 800 MB: the first time takes minutes)"
	@test -x .venv-objects/bin/python || $(PYTHON) -m venv .venv-objects
	@.venv-objects/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		--requirement tests/objects/requirements.txt --editable '.[objects,mindspore,postgres]' pytest
	@touch $@

$(DIST): tests/packaging/requirements.txt
	@echo "setting up .venv-dist"
	@test -x .venv-dist/bin/python || $(PYTHON) -m venv .venv-dist
	@.venv-dist/bin/python -m pip install --quiet --disable-pip-version-check \
		--requirement tests/packaging/requirements.txt
	@touch $@

# MindFormers asks for another MindSpore and an older pyarrow than it runs with: what it needs is listed by itself.
$(MINDFORMERS): tests/mindformers/requirements.txt pyproject.toml constraints.txt
	@echo "setting up .venv-mindformers (2 GB: the first time takes minutes)"
	@test -x .venv-mindformers/bin/python || $(PYTHON) -m venv .venv-mindformers
	@.venv-mindformers/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		--editable '.[mindspore]' pytest safetensors
	@.venv-mindformers/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
		--requirement tests/mindformers/requirements.txt
	@touch $@

clean:
	rm -rf .venv .venv-bench .venv-frameworks .venv-mindformers .venv-browser .venv-objects .venv-dist build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage
