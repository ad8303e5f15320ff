# Every target sets up what it needs in .venv; second and later runs don't reinstall.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
PARALLEL := --numprocesses auto --dist worksteal
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
TORCH ?= $(shell sed -n 's/^torch==//p' constraints.txt)
PINS := --constraint $(VENV)/constraints.txt

.PHONY: demo test test-all fuzz mutants lint format bench docs notebook package clean

demo: $(VENV)/installed-all  ## train a small network with AdamW and with ours: table, picture
	$(BIN)/sketchy demo --out runs/demo

test: $(VENV)/installed-dev  ## the default suite
	$(BIN)/python -m pytest $(PARALLEL)

test-all: $(VENV)/installed-dev $(VENV)/installed-integrations  ## the default suite and the slow tests
	$(BIN)/python -m pytest $(PARALLEL) -m ""

fuzz: $(VENV)/installed-dev  ## the fuzzers with new random seeds, for two hours or SKETCHY_FUZZ_MINUTES
	$(BIN)/python tests/fuzz.py

mutants: $(VENV)/installed-dev  ## small changes to the math that no test notices; 15 minutes, and resumes
	$(BIN)/python tests/mutants.py

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/installed-galore  ## nothing else should be running
	$(BIN)/python -m benchmarks.speed.frequent_directions
	$(BIN)/python -m benchmarks.speed.pca
	$(BIN)/python -m benchmarks.speed.online_learning
	$(BIN)/python -m benchmarks.speed.step_time
	$(BIN)/python -m benchmarks.speed.scaling

docs: $(VENV)/installed-docs  ## site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

notebook: $(VENV)/installed-dev  ## run the notebook of examples/, and keep its pictures
	$(BIN)/python -c 'import nbclient, nbformat as f; p = "examples/from_adamw.ipynb"; n = f.read(p, 4); nbclient.execute(n, record_timing=False); f.write(n, p)'

package: $(VENV)/installed-dev  ## dist/: wheel and sdist; the README's lines run from each in an empty environment
	$(BIN)/python -m build --no-isolation --outdir dist
	$(BIN)/python -m pytest tests/test_package.py

clean:
	rm -rf $(VENV) site dist runs .pytest_cache .mypy_cache .ruff_cache .import_linter_cache

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# torch first and pinned: a loose requirement may resolve to a build many times larger
$(VENV)/installed-torch: $(VENV)/constraints.txt | $(BIN)/python
	@echo "Installing torch into $(VENV) ..."
	$(PIP) install $(PINS) torch
	@touch $@

# `make clean; make test TORCH=2.6.0` tests with another torch
$(VENV)/constraints.txt: constraints.txt | $(BIN)/python
	sed 's/^torch==.*/torch==$(TORCH)/' constraints.txt > $@

# transformers and bitsandbytes, which it requires, play no part in its AdamW
$(VENV)/installed-galore: $(VENV)/installed-bench
	$(PIP) install $(PINS) --no-deps galore-torch
	@touch $@

$(VENV)/installed-%: pyproject.toml hatch_build.py $(VENV)/installed-torch
	@echo "Installing sketchy[$*] into $(VENV) ..."
	$(PIP) install $(PINS) --editable ".[$*]"
	@touch $@
