# Everything that this repository does, by name. `make` lists it.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# The SDK needs Python >= 3.12: the first one found here is used, whatever `python3` means.
PYTHON ?= $(shell for p in python3.14 python3.13 python3.12 python3 $(HOME)/.pyenv/versions/3.1[2-9]*/bin/python; do \
	"$$p" -c 'import sys, venv; sys.exit(sys.version_info < (3, 12))' >/dev/null 2>&1 && { echo "$$p"; break; }; done)
UV_VERSION := 0.13.9
VENV := .venv
BIN := $(VENV)/bin
DEVCLUSTER := python3 -m devcluster
PYTEST := $(BIN)/python -m pytest

CONTEXT ?=
REGISTRY ?=
SET ?=
DEMO_FLAGS = $(if $(CONTEXT),--context $(CONTEXT)) $(if $(REGISTRY),--registry $(REGISTRY)) $(foreach value,$(SET),--set $(value))

.PHONY: help
help: ## list the targets
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## /{printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## the main job on a real local cluster (CONTEXT=name REGISTRY=host/path: on yours; SET=key=value: a value of the chart)
	$(DEVCLUSTER) demo $(DEMO_FLAGS)

.PHONY: test
test: lint programs ## the tests of every change
	$(MAKE) --jobs=2 test-faults test-without-pods
	$(MAKE) test-e2e

.PHONY: test-without-pods
test-without-pods: ## unit and cluster tests, one after the other
	$(MAKE) test-unit
	$(MAKE) test-cluster

.PHONY: test-unit
test-unit: $(VENV)/installed helm s3 kube-score ## pure tests, and those of docs/compatibility.md: minutes
	$(PYTEST) --numprocesses=3 --dist=loadfile tests/unit tests/contract

.PHONY: test-cluster
test-cluster: $(VENV)/installed helm control-plane ## the control loop against a real API server: minutes
	$(PYTEST) --numprocesses=3 --dist=worksteal tests/cluster --every-right-is-used

.PHONY: test-e2e
test-e2e: $(VENV)/installed cluster images s3 ## real pods, real NeMo Gym, gVisor, and attacks from inside
	$(PYTEST) tests/e2e tests/security

.PHONY: test-faults
test-faults: $(VENV)/installed cluster images ## the sandbox's layers taken away, parts killed under jobs: mostly waits
	$(PYTEST) tests/layers
	$(PYTEST) tests/chaos

.PHONY: nightly
nightly: bench-gateway test-helm3 test-named-cluster test-nightly chaos soak environments test-repair ## what `make test` leaves out

.PHONY: test-nightly
test-nightly: test-checks test-browser cluster images s3 ## the tests that take too long for every change
	$(PYTEST) -m nightly --ignore=tests/local_cluster \
		--deselect=tests/unit/test_chart_checks.py --deselect=tests/unit/test_report_in_browser.py

.PHONY: test-repair
test-repair: $(VENV)/installed cluster ## the local cluster killed and stopped: what is on it is gone afterwards, but for its images
	$(PYTEST) -m nightly tests/local_cluster

.PHONY: chaos
chaos: $(VENV)/installed cluster images ## 200 jobs while everything is killed (CHAOS_SEED=n: another plan, CHAOS_JOBS=n: fewer); report in build/
	$(PYTEST) -m chaos tests/chaos --capture=no

.PHONY: soak
soak: $(VENV)/installed helm control-plane ## whether the operator's memory grows with thousands of jobs (MINUTES=n); figures in build/
	PYTHONPATH=operator:tests:. $(BIN)/python bench/soak.py $(MINUTES)

.PHONY: test-helm3
test-helm3: $(VENV)/installed ## the chart, with the other major version of Helm
	$(DEVCLUSTER) build helm3
	HELM="$$(python3 -c 'from devcluster import paths; print(paths.bin_path("helm3"))')" $(PYTEST) tests/unit/test_chart.py

.PHONY: test-checks
test-checks: $(VENV)/installed helm kube-score ## what the chart and the operator make, judged by checkov
	$(PYTHON) -m venv $(VENV)/checks
	$(BIN)/uv pip sync --quiet --python $(VENV)/checks/bin/python --require-hashes requirements-checks.lock
	$(PYTEST) -m nightly tests/unit/test_chart_checks.py

.PHONY: test-browser
test-browser: $(VENV)/installed ## report.html in headless Chromium, Debian's package
	command -v chromium >/dev/null || { apt-get update && apt-get install --yes --no-install-recommends chromium; }
	$(PYTEST) -m nightly tests/unit/test_report_in_browser.py

.PHONY: test-named-cluster
test-named-cluster: $(VENV)/installed cluster ## the demo with CONTEXT and REGISTRY, a real registry and Helm 3
	$(DEVCLUSTER) build helm3
	$(PYTEST) tests/demo/test_named_cluster.py

.PHONY: lint
lint: $(VENV)/installed ## style and import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PYTHONPATH=operator $(BIN)/lint-imports

.PHONY: cluster
cluster: ## start the local cluster (builds what is missing)
	$(DEVCLUSTER) up

.PHONY: cluster-down
cluster-down: ## stop exactly what `make cluster` started
	$(DEVCLUSTER) down

.PHONY: cluster-status
cluster-status: ## what runs, and where its logs are
	$(DEVCLUSTER) status

.PHONY: programs
programs: ## build all that the tests need, programs and images side by side, and start nothing
	$(DEVCLUSTER) build all

.PHONY: helm
helm: ## build Helm, which the chart's tests render with
	$(DEVCLUSTER) build helm

.PHONY: kube-score
kube-score: ## build kube-score, which judges what the chart and the operator make
	$(DEVCLUSTER) build kube-score

.PHONY: control-plane
control-plane: ## build etcd and the API server, which cluster tests start for themselves
	$(DEVCLUSTER) build etcd kubernetes

.PHONY: s3
s3: ## build the S3 server that tests read from and write to
	$(DEVCLUSTER) build s3

.PHONY: images
images: cluster ## build the images and load those that changed
	$(DEVCLUSTER) images load

.PHONY: bench
bench: $(VENV)/installed cluster images ## measure: latency, rollouts per second, memory
	PYTHONPATH=operator:tests:. $(BIN)/python bench/run.py

.PHONY: bench-rows
bench-rows: $(VENV)/installed ## measure: 100,000 rows through the evaluator, without Gym
	PYTHONPATH=operator:tests:. $(BIN)/python bench/many_rows.py

.PHONY: bench-gateway
bench-gateway: $(VENV)/installed ## measure: what a model call costs on its way through the gateway
	PYTHONPATH=operator:tests:. $(BIN)/python bench/gateway.py

.PHONY: bench-hosts
bench-hosts: $(VENV)/installed ## measure: rollouts per second of 1, 2 and 4 hosts, without Gym
	PYTHONPATH=operator:tests:. $(BIN)/python bench/hosts.py

.PHONY: environments
environments: $(VENV)/installed cluster images ## NeMo Gym's own environments, one after the other, measured
	PYTHONPATH=operator:tests:. $(BIN)/python bench/environments.py

.PHONY: crds
crds: $(VENV)/installed ## generate crds/ and the pages about them from the API models
	PYTHONPATH=operator $(BIN)/python -m nhx_gym_operator.api.crds crds/ charts/nhx-gym-operator/files/crds/
	PYTHONPATH=operator $(BIN)/python -m nhx_gym_operator.api.origins_page docs/api-sources.md
	PYTHONPATH=operator $(BIN)/python -m nhx_gym_operator.cli.conditions_page docs/conditions.md
	PYTHONPATH=operator:tests $(BIN)/python -m support.stuck docs/troubleshooting.md

.PHONY: format
format: $(VENV)/installed ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: lock
lock: $(VENV)/installed ## resolve the locked requirements of tests and checks anew
	$(BIN)/uv pip compile --generate-hashes --no-header --python-version 3.12 --extra dev pyproject.toml -o requirements-dev.lock
	echo 'checkov==3.3.30' | $(BIN)/uv pip compile --generate-hashes --no-header --python-version 3.12 - -o requirements-checks.lock

$(VENV)/installed: requirements-dev.lock
	@[ -n "$(PYTHON)" ] || { echo "No Python >= 3.12 with venv found: install one, or name it with PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet uv==$(UV_VERSION)
	$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements-dev.lock
	@touch $@
