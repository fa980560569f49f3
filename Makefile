# shoal: `make run` trains the default arm, `make test` passes the tests. `make help` lists the rest.
.DEFAULT_GOAL := help
SHELL := /bin/bash

VENV       ?= .venv
PYTHON     ?= python3
# Python 3.8 of the actors that Isaac Gym needs; the tests say so when it is not there.
PYTHON38   ?= $(firstword $(wildcard $(HOME)/.pyenv/versions/3.8.*/bin/python) $(shell command -v python3.8))
# The CPU build of torch: a tenth of the size of the CUDA build that Linux gets by default. For a GPU:
# make run TORCH_SPEC=torch TORCH_INDEX=
TORCH_SPEC  ?= torch==2.13.0
TORCH_INDEX ?= --extra-index-url https://download.pytorch.org/whl/cpu
RUN_FILE   ?= configs/arm_reach.toml
ARGS       ?=
BIN        := $(VENV)/bin

.PHONY: help
help:  ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

# --- set-up ----------------------------------------------------------------------------------------------------------
.PHONY: install
install: $(VENV)/.installed  ## make the venv and install everything into it (once)

$(VENV)/.installed: pyproject.toml deploy/make/check_python.sh
	@bash deploy/make/check_python.sh "$(PYTHON)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade-strategy only-if-needed "$(TORCH_SPEC)" $(TORCH_INDEX)
	$(BIN)/pip install --quiet -e ".[replay,learner,sim,report,dev,bench]"
	@touch $@

# --- use -------------------------------------------------------------------------------------------------------------
.PHONY: run
run: install  ## train the default arm on this machine; RUN_FILE=… and ARGS="--run.seed 2" choose another
	@$(BIN)/shoal up $(RUN_FILE) $(ARGS)

.PHONY: up
up:  ## everything on this machine with docker compose, built and watched; settings: deploy/.env
	docker compose -f deploy/compose.yaml up --build --detach --wait $(ARGS)

.PHONY: down
down:  ## stop what `make up` started; the data stay
	docker compose -f deploy/compose.yaml --profile operator down $(ARGS)

# --- tests -----------------------------------------------------------------------------------------------------------
.PHONY: test
test: install  ## unit and integration tests
	$(BIN)/python -m pytest -m "not e2e and not deploy" $(ARGS)

.PHONY: e2e
e2e: install  ## real processes: training runs, kill -9 of each service
	$(BIN)/python -m pytest -m e2e tests/e2e $(ARGS)

.PHONY: chaos
chaos: install  ## kill, freeze, cut, fill, damage: nothing may be lost or doubled; ARGS=--quick for six minutes
	$(BIN)/python -m tests.chaos $(ARGS)

.PHONY: deploy-test
deploy-test: install  ## machines with a real systemd, and docker compose on a real engine (root; minutes)
	@bash deploy/make/deploy_machine.sh
	$(BIN)/python -m pytest -m deploy tests/deploy $(ARGS)

.PHONY: fuzz
fuzz: install  ## fuzz decoders, servicers, readers of files; ARGS="--minutes 60", --target NAME, --engine atheris
	$(BIN)/python -m tests.fuzz $(ARGS)

.PHONY: soak
soak: install  ## full speed on small rings for ten minutes: nothing may grow; ARGS=--quick, "--hours 8"
	$(BIN)/python -m tests.soak $(ARGS)

.PHONY: load
load: install  ## one replay against 64 and 256 light actors; ARGS="--seconds 60"
	$(BIN)/python -m tests.soak.load $(ARGS)

.PHONY: audit-dependencies
audit-dependencies: install  ## known weaknesses of what is installed and of what images install, by pip-audit; needs a network
	@bash deploy/make/audit_dependencies.sh $(BIN)/python

.PHONY: test38
test38:  ## the 3.8 job: common and actor without torch, in a venv of Python 3.8
	bash deploy/make/test38.sh "$(PYTHON38)"

.PHONY: test-replay
test-replay:  ## the replay in a venv without torch
	bash deploy/make/test_replay.sh "$(PYTHON)"

# --- benchmarks ------------------------------------------------------------------------------------------------------
.PHONY: bench-replay
bench-replay: install  ## the replay beside Reverb, cpprb, TorchRL; ARGS=--quick for two minutes, --help for more
	bash deploy/make/bench_replay.sh $(BIN)/python --docs docs/benchmarks.md $(ARGS)

.PHONY: bench-learner
bench-learner: install  ## updates a second fed by the replay, against batches in memory; ARGS=--quick for a minute
	$(BIN)/python -m bench.learner --docs docs/benchmarks.md $(ARGS)

.PHONY: bench-parameters
bench-parameters: install  ## publish to swap with 1, 16, 128 readers; ARGS=--quick for two minutes
	$(BIN)/python -m bench.parameters --docs docs/benchmarks.md $(ARGS)

.PHONY: bench-gradients
bench-gradients: install  ## gradients on the wire beside hivemind and DDP; ARGS=--quick for half a minute
	bash deploy/make/bench_gradients.sh $(BIN)/python "$(TORCH_SPEC) $(TORCH_INDEX)" --docs docs/benchmarks.md $(ARGS)

.PHONY: bench-actor
bench-actor: install  ## the actor beside its bare loop, at 4,096 lanes, by the dozen; ARGS=--quick for three minutes
	$(BIN)/python -m bench.actor --docs docs/benchmarks.md $(ARGS)

.PHONY: bench-lockstep
bench-lockstep: install  ## asynchronous training beside lockstep, five seeds each: twenty minutes of a quiet machine
	$(BIN)/python -m bench.lockstep $(ARGS)

# --- dashboards ------------------------------------------------------------------------------------------------------
.PHONY: dashboards
dashboards: install  ## write the dashboards of deploy/grafana anew from their generator (Python 3.11 or newer)
	$(BIN)/python -m deploy.grafana.generator

.PHONY: dashboards-picture
dashboards-picture: install  ## draw the dashboards' queries from a live run, with prometheus on the path: five minutes
	$(BIN)/python -m tests.e2e.dashboard_picture shoal-overview=docs/images/overview.png \
		shoal-staleness=docs/images/dashboard_staleness.png $(ARGS)

# --- release ---------------------------------------------------------------------------------------------------------
.PHONY: dist
dist:  ## build dist/shoal-VERSION.tar.gz and the wheel, and try the wheel in a venv of its own
	bash deploy/make/dist.sh "$(PYTHON)"

.PHONY: lock
lock:  ## lock what the images install, in deploy/constraints: the newest versions that fit
	bash deploy/make/lock.sh "$(PYTHON)"

# --- checks ----------------------------------------------------------------------------------------------------------
.PHONY: check
check: install lint types contracts proto-check deploy-check  ## format, lint, types, contracts, generated code, deploy/

.PHONY: lint
lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

.PHONY: types
types: install
	$(BIN)/mypy

.PHONY: contracts
contracts: install
	$(BIN)/lint-imports

.PHONY: deploy-check
deploy-check: install  ## the files of deploy/ by promtool, amtool, systemd-analyze and the compose schema
	bash deploy/make/deploy_check.sh $(BIN)

.PHONY: format
format: install  ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.PHONY: proto
proto:  ## regenerate the code of proto/
	bash deploy/make/proto.sh proto "$(PYTHON)"

.PHONY: proto-check
proto-check:  ## fail if the generated code is not that of proto/
	bash deploy/make/proto_check.sh "$(PYTHON)"

.PHONY: clean
clean:  ## remove venvs and caches; runs/ stays
	rm -rf $(VENV) .venv-* .cache build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
