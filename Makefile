# Everything a person or CI does with capplan. `make` alone lists the targets.
#
# Needs Python >= 3.11 with its venv module, and make. All else goes into $(VENV).

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.capplan-ready

# The study that `make report` runs (a file, or the name of a bundled scenario), and an optional trace to run it on.
SCENARIO ?= chat-service
TRACE ?=
REPORT_FLAGS ?=

# Processes pytest uses; extra flags for pytest and JupyterLab.
WORKERS ?= auto
PYTEST_FLAGS ?=
LAB_FLAGS ?=

.DEFAULT_GOAL := help
.PHONY: help report lab test lint format bench validation lock wheel hooks clean
.DELETE_ON_ERROR:

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

report: $(READY)  ## run the workbook: SCENARIO=file.yaml TRACE=trace.csv, into reports/<name>/
	@scenario=$$(basename '$(SCENARIO)'); trace=$$(basename '$(TRACE)'); \
	name=$${scenario%.*}$${trace:+-$${trace%%.*}}; \
	$(BIN)/capplan report '$(SCENARIO)' $(if $(TRACE),--trace '$(TRACE)') \
	  --out "reports/$$name" $(REPORT_FLAGS)

lab: $(READY)  ## open the tour in JupyterLab
	@$(BIN)/jupyter labextension disable --level=sys_prefix \
	  '@jupyterlab/apputils-extension:announcements' >/dev/null 2>&1
	$(BIN)/jupyter lab $(LAB_FLAGS) notebooks/00_tour.ipynb

test: lint  ## everything CI runs: lint, then every test
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -rs $(PYTEST_FLAGS)

lint: $(READY)  ## style, types, layers, and notebooks free of outputs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	find notebooks tests -name '*.ipynb' -not -path '*/.*' -exec $(BIN)/nbstripout --verify --keep-id {} +

format: $(READY)  ## mend what can be mended without a decision
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	find notebooks tests -name '*.ipynb' -not -path '*/.*' -exec $(BIN)/nbstripout --keep-id {} +

bench: $(READY)  ## time what must be quick
	for script in tests/benchmarks/*.py; do echo "$$script"; $(BIN)/python "$$script" || exit 1; done

validation: $(READY)  ## replay the measured runs in CAPPLAN_DATA, into data/validation/
	@test -n "$$CAPPLAN_DATA" || \
	  { echo 'CAPPLAN_DATA names no folder of measured runs: data/validation/ stays as it is' >&2; exit 2; }
	$(BIN)/python data/validation/make_table.py
	$(BIN)/python data/validation/make_circumstances.py
	$(BIN)/python data/validation/make_kernels.py

lock:  ## pin the newest versions inside pyproject's ranges (LOCK_FLAGS= keeps pins that fit)
	$(PYTHON) -m venv build/lock
	build/lock/bin/pip install --quiet uv
	build/lock/bin/uv pip compile --universal --python-version 3.11 --extra dev \
	  --generate-hashes --no-annotate --custom-compile-command 'make lock' --quiet \
	  $(LOCK_FLAGS) pyproject.toml --output-file requirements.lock
LOCK_FLAGS ?= --upgrade

wheel: $(READY)  ## build the wheel into dist/
	$(BIN)/hatchling build --target wheel

hooks: $(READY)  ## readable notebook diffs, and `make lint` before each commit
	git config diff.percent.textconv '$(abspath $(BIN))/jupytext --to py:percent --output -'
	$(BIN)/pre-commit install

clean:  ## remove builds and caches; reports, runs and the environment stay
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -type d -prune -exec rm -rf {} +

# The environment: made once, brought up to date when the lock or pyproject.toml changes.
$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'capplan needs Python 3.11 or newer: make PYTHON=/path/to/python3' >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo 'this Python lacks venv; on Debian or Ubuntu: apt-get install python3-venv' >&2; exit 1; }
	@echo 'making $(VENV) from requirements.lock (about a minute)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -qq --disable-pip-version-check --no-input \
	  --require-hashes --requirement requirements.lock
	$(BIN)/python -m pip install -qq --disable-pip-version-check --no-input \
	  --no-deps --no-build-isolation --editable .
	@touch $@
