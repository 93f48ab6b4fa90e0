# Every target sets up what it needs first; the README names `make demo` and `make test`.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
E2E_CLUSTERS ?= 2
FUZZ_MINUTES ?= 10
VENV := .venv
BIN := $(VENV)/bin
PYTHONDONTWRITEBYTECODE ?= $(CI)
export PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test chaos nvml-sim nvml-needs test-nvml test-nvml-sanitized fuzz lint format catalogue proto image wheels image-lock e2e-build e2e e2e-daemonset e2e-versions cluster bench
.DEFAULT_GOAL := help

help: ## this list
	@grep -E '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 22

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or later is needed; set PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

setup: $(VENV)/.installed ## the virtual environment, with every version pinned

demo: setup ## the main job on a simulated DGX: no root, no GPU, no cluster
	$(BIN)/tesela demo

test: setup ## unit, contract, plugin and wire tests: no root, no GPU
	$(BIN)/pytest -n 2 --dist loadgroup

chaos: setup ## claims come and go while everything fails, CHAOS_MINUTES=3 (or CHAOS_ROUNDS=50, CHAOS_SEED=...)
	PYTHONPATH=tests $(BIN)/python -m chaos

nvml-sim: ## a libnvidia-ml.so.1 that shows any program the simulator's GPUs (a C compiler)
	@$(MAKE) --no-print-directory -C nvml-sim

$(VENV)/.strangers: $(VENV)/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[strangers]'
	touch $@

nvml-needs: setup
	@PYTHONPATH=tests $(BIN)/python -m nvml.needs

test-nvml: nvml-needs nvml-sim $(VENV)/.strangers ## that library under NVIDIA's binding, nvitop, go-nvml, mig-parted: 3 minutes (root, Go, a C compiler)
	$(BIN)/pytest -n 2 --dist loadgroup -m "not gpu and not cluster" tests/contract/test_nvml*.py tests/nvml

test-nvml-sanitized: nvml-needs nvml-sim $(VENV)/.strangers ## the library under ASan, UBSan and TSan: contract, Go binding, fuzz corpus (as test-nvml)
	$(BIN)/pytest -n 2 --dist loadgroup -m library tests/nvml/test_sanitizers.py tests/nvml/test_fuzz_library.py

fuzz: setup nvml-sim ## looks for new bad input to the simulator and the library, FUZZ_MINUTES=10
	PYTHONPATH=tests $(BIN)/python -m nvml.fuzz $(FUZZ_MINUTES)

lint: setup ## ruff, mypy --strict, import rules, drift of what is generated
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python proto/generate.py --check
	$(BIN)/python daemonset/monitoring/generate.py --check
	PYTHONPATH=tests $(BIN)/python -m e2e.versions.table --check
	$(BIN)/python -m image check
	$(BIN)/python deviceclasses/generate.py --check
	$(BIN)/python daemonset/chart/generate.py --check

format: setup ## rewrites files as lint wants them
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

catalogue: setup ## rewrites deviceclasses/profiles, and what the chart has from elsewhere
	$(BIN)/python deviceclasses/generate.py
	$(BIN)/python daemonset/chart/generate.py

proto: setup ## regenerates driver/tesela/pb from proto/
	$(BIN)/python proto/generate.py

image: setup ## the container image as build/tesela-VERSION-ARCH.tar, with what is in it beside it; BASE=, IMAGE_ARGS=--help
	$(BIN)/python -m image build $(if $(BASE),--base $(BASE)) $(IMAGE_ARGS)

wheels: setup ## fills wheels/ for `docker build .`; IMAGE_ARGS="--arch arm64" for another processor than this one's
	$(BIN)/python -m image wheels $(IMAGE_ARGS)

image-lock: setup ## image/lock anew from pyproject.toml and constraints.txt, with hashes, for both processors
	$(BIN)/python -m image lock

e2e-build: setup ## what `make e2e` needs: Debian packages and binaries of Kubernetes, built once per machine (root)
	PYTHONPATH=tests $(BIN)/python -m e2e.harness.build
	PYTHONPATH=tests $(BIN)/python -m e2e.harness.container_image

e2e: setup nvml-sim ## a real Kubernetes on this machine (root): builds it once, then runs tests/e2e on clusters side by side
	$(BIN)/pytest tests/e2e --ignore tests/e2e/daemonset -n $(E2E_CLUSTERS) --dist loadfile

e2e-daemonset: setup nvml-sim ## what daemonset/ ships, of the image, from its installation to its removal on such a cluster (root)
	$(BIN)/pytest tests/e2e/daemonset

e2e-versions: setup nvml-sim ## API servers and schedulers of older Kubernetes on our slices (root): builds them once, VERSIONS="1.34 1.36" for some
	PYTHONPATH=tests $(BIN)/python -m e2e.versions $(VERSIONS)
	PYTHONPATH=tests $(BIN)/python -m e2e.versions.table

cluster: setup nvml-sim ## that Kubernetes with GPUs='h100-80gb*2' and the driver, or GPUS=none and the image alone, to type at (root)
	@PYTHONPATH=tests $(BIN)/python -m e2e.harness.by_hand $(DRIVER_ARGS)

bench: setup nvml-sim ## what a prepare, a start and idling cost, on a real API server (root); BENCH_ARGS=--help
	PYTHONPATH=tests $(BIN)/python -m bench $(BENCH_ARGS)
