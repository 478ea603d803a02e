# The same commands on a laptop and in CI. `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SERVING := $(VENV)/.serving
STAMP := $(VENV)/.installed
DOCS := $(VENV)/.docs
MODULES := web/node_modules/.package-lock.json
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Where this is set, each of the thousands of processes of the tests would compile all of turnwire again.
export PYTHONDONTWRITEBYTECODE :=
# More than cores: many tests wait for processes.
WORKERS ?= 4
TESTS ?=
FUZZ_S ?= 60
REV ?= main
PHASES ?=
ROUNDS ?= 5
FUZZ_EXAMPLES ?= 200
SOAK_S ?= 3600
VERSIONS ?= oldest newest
CHAOS_SEED ?=
CHAOS_PACE ?= 1
AGENTS ?=
SHELL_SCRIPTS := .ci/run .github/actions/check/check.sh scripts/install_peers.sh $(wildcard bench/peers/*.sh deploy/*.sh web/page/scripts/*.sh)

.DEFAULT_GOAL := help
.PHONY: help serve cluster soak test test-all test-versions check docs bench bench-compare walk fuzz peers web page screenshots agents fix clean

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

$(STAMP): $(SERVING) requirements-dev.lock $(wildcard packages/*/pyproject.toml)
	@echo "installing into $(VENV) the tools of development (about a minute, once)"
	@$(PIP) --require-hashes -r requirements-dev.lock
	@$(PIP) --no-deps --no-build-isolation -e packages/turnwire-agent -e packages/turnwire-check -e packages/turnwire-testing
	@touch $@

$(DOCS): $(SERVING) requirements-docs.lock
	$(PIP) --require-hashes -r requirements-docs.lock
	@touch $@

serve: $(SERVING) ## start the daemon with its built-in agent
	$(BIN)/turnwire serve

cluster: $(STAMP) ## start three nodes on one PostgreSQL with nginx before them; needs both programs
	$(BIN)/python -m scripts.cluster

test: $(STAMP) ## before each push: under 6 minutes, needs Python only, .venv grows to 800 MB: make test TESTS=tests/unit
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "not full and not soak" --ignore=tests/architecture $(TESTS)

test-all: test ## adds about 15 minutes of PostgreSQL, browser, nginx, Caddy, node peers (make peers web), kills and faults
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "full and not soak" $(TESTS)

# The lock files are for this repository; users get what the bounds of pyproject.toml allow.
test-versions: $(addprefix test-with-,$(VERSIONS)) ## make test with the oldest and newest allowed dependencies: make test-versions VERSIONS=oldest

test-with-%: $(SERVING)
	@echo "installing the $* allowed versions into build/venv-$* (minutes)"
	$(BIN)/python scripts/versions.py $* build/venv-$*
	$(MAKE) test VENV=build/venv-$*

# One process: what it looks for is timing. Each test prints its seed; a failure names it and how to repeat it.
soak: $(STAMP) ## hours of kills, faults, power cuts and random search: make soak SOAK_S=600 TESTS=tests/cluster
	TURNWIRE_SOAK=1 SOAK_S=$(SOAK_S) CHAOS_SEED=$(CHAOS_SEED) CHAOS_PACE=$(CHAOS_PACE) $(BIN)/python -m pytest -rA --tb=short -m "soak or soaked" $(TESTS)
	$(if $(TESTS),,$(MAKE) fuzz FUZZ_S=$(SOAK_S) FUZZ_EXAMPLES=2000)

check: $(STAMP) ## format, lint, types, architecture, generated files
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright
	$(BIN)/python scripts/draw_turn.py --check
	$(BIN)/python scripts/write_conformance.py --check
	$(BIN)/python scripts/prose.py --check
	$(BIN)/python -m pytest -q tests/architecture
	@if [ -x $(BIN)/shellcheck ]; then $(BIN)/shellcheck $(SHELL_SCRIPTS); else echo "shellcheck: not installed"; fi
	@if [ -d web/node_modules ]; then npm --prefix web run --silent check; else echo "web: not checked; run: make web"; fi

fix: $(STAMP) ## format, apply automatic fixes, write generated files
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/python scripts/draw_turn.py
	$(BIN)/python scripts/write_conformance.py

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
	$(BIN)/python -m turnwire_testing.realagents $(AGENTS)

bench: $(STAMP) ## measure the daemon, the SDK and the page: make bench PHASES="turns delay"
	$(BIN)/python -m bench $(PHASES)

bench-compare: $(STAMP) ## measure the code here against another revision, in turns: make bench-compare REV=main PHASES="turns bursts"
	$(BIN)/python -m bench.compare $(REV) $(PHASES) --rounds $(ROUNDS)

walk: $(STAMP) ## count the modules that one request passes through; fail if there are more than before
	$(BIN)/python scripts/walk.py --check

fuzz: $(STAMP) ## fuzz the parsers of peers' bytes, and every route by its OpenAPI document
	$(PIP) atheris==3.0.0
	$(BIN)/python -m fuzz $(FUZZ_S)
	FUZZ_EXAMPLES=$(FUZZ_EXAMPLES) $(BIN)/python -m pytest -q tests/server/test_schemathesis.py

clean: ## remove what the commands made
	rm -rf $(VENV) build .peers .pytest_cache .ruff_cache .hypothesis web/node_modules web/client/dist web/client/.build
