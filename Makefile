# Perdure. `make` alone lists the targets.
# Every target first sets up missing parts: the environment from requirements.lock, then the Temporal server (`up`
# downloads it in parallel with the start of the other parts).

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin
STAMP := $(VENV)/.synced
STARTED := perdure.api.app, perdure.cli.app, perdure.apps.bootstrap, perdure.pages.app, \
	perdure.worker.queues, perdure.worker.__main__, perdure.workflows.turn_run, perdure.workflows.turn_wait
export PATH := $(CURDIR)/$(RUN):$(PATH)

.DEFAULT_GOAL := help
.PHONY: help setup up demo test check soak search bench crashtable lock clean

help: ## list the targets
	@echo "Perdure: AI agent turns that survive"; echo
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Perdure needs Python 3.11 or newer; set one, such as: make PYTHON=python3.12" >&2; exit 1; }
	@echo "Setting up the environment in $(VENV) (about 1.3 GB, once)"
	@$(RUN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)  # also after an interrupted setup
	@awk '/^uv==/ {on=1} on {print} on && !/\\$$/ {exit}' requirements.lock > $(VENV)/uv.lock
	@$(RUN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $(VENV)/uv.lock
	@$(RUN)/uv pip sync --quiet --require-hashes --python $(RUN)/python requirements.lock
	@ln -sf ../../bin/perdure $(RUN)/perdure
# The modules that a start imports are compiled once, here. Otherwise each process of the first start compiles them, and
# of every start if PYTHONDONTWRITEBYTECODE is set (measured: 20 s of CPU instead of 7). It takes 5 s of CPU; uv's own
# --compile-bytecode, which compiles all installed packages, takes 14.
	@PYTHONDONTWRITEBYTECODE= $(RUN)/python -c "import $(STARTED)" || true
	@touch $@

setup: $(STAMP) ## set up the environment and the Temporal server
	@$(RUN)/python -m perdure.local

up: $(STAMP) ## start everything in the foreground, with the examples, and print the addresses
	@$(MAKE) --no-print-directory jail || echo "Continuing without it: code blocks return an error" >&2
	@$(RUN)/python -m perdure up --examples

demo: setup ## watch one turn pause, lose its workers to kill -9, and finish with one effect
	@$(RUN)/python -m perdure.cli.demo

test: setup jail chromium pooler ## test every promise on real components, with the checks: what CI runs
	@$(MAKE) --no-print-directory -j2 static $(COLLECTED)
	@$(RUN)/pytest -rfER -n $(AT_ONCE) --no-loadscope-reorder

soak: setup jail chromium pooler ## repetitions, large data, long kills, measured times; writes docs/figures/soak.md
	@$(RUN)/python -m tests.soak

# Most tests wait more than they compute, so more files run in parallel than there are cores, each process with its own
# parts. Those with a stack take longest and come first.
# Bytecode is written here whatever the environment sets: tests start about a hundred processes with the same imports.
AT_ONCE ?= 5
test check soak: export PYTHONDONTWRITEBYTECODE =
COLLECTED := $(VENV)/.collected
# Compiles the tests' modules once after a change, in parallel with the static checks, instead of in each process of the
# run. It takes 6 s of CPU even if there is nothing to compile.
$(COLLECTED): $(STAMP) $(shell find tests -name '*.py')
	@$(RUN)/pytest --collect-only -qq >/dev/null || true  # the run reports failures
	@touch $@

# Installs the packages $(2), for $(3), if none of the commands $(1) exists and the user is root.
define install
	@for each in $(1); do PATH="$$PATH:/usr/sbin" command -v $$each >/dev/null && exit 0; done; \
		{ [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && echo "Installing $(2), for $(3)" && \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $(2) >/dev/null; } || \
		{ echo "Install what $(3) need: apt-get install $(2) (or your system's package)" >&2; exit 1; }
endef

.PHONY: jail chromium pooler
jail: # the sandbox of code blocks
	$(call install,bwrap,bubblewrap,code blocks)
chromium: # the browser for the tests of the pages
	$(call install,chromium chromium-browser google-chrome,chromium fonts-dejavu-core,the tests of the pages)
pooler: # PgBouncer for its tests, which start it themselves
	$(call install,pgbouncer,pgbouncer,the tests behind a pooler)

check: $(STAMP) ## format, lint, types, import rules, prose, unit tests: two minutes
	@$(MAKE) --no-print-directory -j2 static unit

.PHONY: unit
unit:
	@$(RUN)/pytest -n 4 tests/unit tests/topologies

search: $(STAMP) ## look for new counterexamples: 1,000 random cases per property; `make test` always uses the same cases
	@$(RUN)/pytest --hypothesis-profile=search -n 2 --dist worksteal tests/unit tests/topologies

.PHONY: static code prose
static: code prose
quietly = @output=$$($(RUN)/$(1) 2>&1) || { echo "$$output"; exit 1; }  # what succeeds prints nothing between test results
code: $(STAMP)
	$(call quietly,ruff format --check .)
	$(call quietly,ruff check .)
	$(call quietly,mypy .)
	$(call quietly,lint-imports --no-cache)
prose: $(STAMP) # separate, since it takes most of the CPU of the static checks: 7 s of 10
	$(call quietly,python -m tests.repo.prose)

bench: setup ## side by side with hand-written Temporal and plain LangGraph
	@$(RUN)/python -m bench

crashtable: setup ## kill -9 at every point of a turn, many turns together, as a table
	@$(RUN)/python -m tests.acceptance.kill_matrix

lock: ## write requirements.lock again from pyproject.toml
	@$(RUN)/uv pip compile --generate-hashes --universal --python-version 3.11 --no-header --all-extras \
		pyproject.toml -o requirements.lock --quiet --upgrade

clean: ## remove the environment; the data in .perdure/ stays
	@rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
