# The same commands on a laptop and in CI. `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SERVING := $(VENV)/.serving
STAMP := $(VENV)/.installed
DOCS := $(VENV)/.docs
MODULES := web/node_modules/.package-lock.json
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Where this is set, each of the thousands of processes of the tests would compile the whole of turnwire anew.
export PYTHONDONTWRITEBYTECODE :=
WORKERS ?= 3
TESTS ?=
FUZZ_S ?= 60
REV ?= main
PHASES ?=
ROUNDS ?= 5
FUZZ_EXAMPLES ?= 200
CHAOS_S ?= 3600
CHAOS_SEED ?=
CHAOS_PACE ?= 1
AGENTS ?=

.DEFAULT_GOAL := help
.PHONY: help serve cluster chaos test check docs bench bench-cluster bench-compare flame walk fuzz peers web page screenshots agents fix clean

help: ## list the commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 15

# What serving needs, and no more: the first `make serve` is short.
$(SERVING): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "turnwire needs Python 3.11 or newer; this is `$(PYTHON) --version`. Try: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	@echo "installing what serving needs into $(VENV) (about 15 s, once): 1/3 a virtual environment"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "2/3 the `grep -c == requirements.lock` packages of requirements.lock"
	@$(PIP) --require-hashes -r requirements.lock
	@echo "3/3 turnwire itself"
	@$(PIP) --no-deps --no-build-isolation -e .
	@touch $@

$(STAMP): $(SERVING) requirements-dev.lock
	@echo "installing into $(VENV) the tools of development (about a minute, once)"
	@$(PIP) --require-hashes -r requirements-dev.lock
	@touch $@

$(DOCS): $(SERVING) requirements-docs.lock
	$(PIP) --require-hashes -r requirements-docs.lock
	@touch $@

serve: $(SERVING) ## start the daemon with its built-in agent
	$(BIN)/turnwire serve

cluster: $(STAMP) ## start three nodes on one PostgreSQL with nginx before them; needs both programs
	$(BIN)/python -m scripts.cluster

chaos: $(STAMP) ## disturb a cluster under load for an hour: make chaos CHAOS_S=600
	CHAOS_STRICT=1 CHAOS_S=$(CHAOS_S) CHAOS_SEED=$(CHAOS_SEED) CHAOS_PACE=$(CHAOS_PACE) $(BIN)/python -m pytest -x tests/cluster/test_faults.py

test: $(STAMP) ## run all tests, or those of a folder: make test TESTS=tests/unit
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(TESTS)

check: $(STAMP) ## format, lint, types, architecture, generated files
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright
	$(BIN)/python scripts/draw_turn.py --check
	$(BIN)/python scripts/write_requirements.py --check
	$(BIN)/python scripts/write_checklists.py --check
	$(BIN)/python scripts/write_conformance.py --check
	$(BIN)/python scripts/write_security.py --check
	$(BIN)/python scripts/write_troubleshooting.py --check
	$(BIN)/python scripts/write_man.py --check
	$(BIN)/python scripts/size_report.py
	$(BIN)/python -m pytest -q -n $(WORKERS) tests/architecture
	@if [ -d web/node_modules ]; then npm --prefix web run --silent check; else echo "web: not checked; run: make web"; fi

fix: $(STAMP) ## format, mend what a tool can mend, redraw generated files
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/python scripts/draw_turn.py
	$(BIN)/python scripts/write_requirements.py
	$(BIN)/python scripts/write_checklists.py
	$(BIN)/python scripts/write_conformance.py
	$(BIN)/python scripts/write_security.py
	$(BIN)/python scripts/write_troubleshooting.py
	$(BIN)/python scripts/write_man.py

docs: $(DOCS) ## build the documentation as a site in build/docs; a link that leads nowhere fails
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -b html docs build/docs

peers: $(STAMP) ## install the official ACP SDKs that the interop tests and the bench talk to
	PYTHON=$(PYTHON) scripts/install_peers.sh

# npm writes it when all is installed.
$(MODULES): web/package-lock.json
	npm --prefix web ci --silent
	@touch $@

web: $(MODULES) ## install the tools of web/ and build the TypeScript client
	npm --prefix web run --silent build

page: $(MODULES) ## build the page into the package, where it is kept: serving needs no Node
	npm --prefix web run --silent page

screenshots: $(STAMP) ## draw the pictures of the page in docs/images; needs chromium
	$(BIN)/python -m scripts.screenshots

agents: $(STAMP) ## run the known agents of npm and PyPI behind a daemon, or some: make agents AGENTS=claude,codex
	$(BIN)/python -m realagents $(AGENTS)

bench: $(STAMP) ## measure against baselines and against other SDKs, in one run
	$(BIN)/python -m bench

bench-cluster: $(STAMP) ## measure PostgreSQL and several nodes beside SQLite, about four minutes; needs PostgreSQL
	$(BIN)/python -m bench.cluster

bench-compare: $(STAMP) ## measure the code here against another revision, in turns: make bench-compare REV=main PHASES="turns bursts"
	$(BIN)/python -m bench.compare $(REV) $(PHASES) --rounds $(ROUNDS)

flame: $(STAMP) ## draw where the daemon's time goes, as flame graphs in build/flame: a burst, and 1,000 turns
	$(PIP) py-spy==0.4.3
	$(BIN)/python -m bench.flame

walk: $(STAMP) ## count the modules that one request passes through
	$(BIN)/python scripts/walk.py

fuzz: $(STAMP) ## feed what reads peers' bytes with mutated input, and every route with what its document allows
	$(PIP) atheris==3.0.0
	$(BIN)/python -m fuzz $(FUZZ_S)
	FUZZ_EXAMPLES=$(FUZZ_EXAMPLES) $(BIN)/python -m pytest -q tests/server/test_schemathesis.py

clean: ## remove what the commands made
	rm -rf $(VENV) build .peers .pytest_cache .ruff_cache .hypothesis web/node_modules web/client/dist web/client/.build
