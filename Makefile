# `make lab` opens the course, `make test` runs every test. Needs Python >= 3.11, make and a network for the first run.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
SITE_READY := $(VENV)/site-ready
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadscope
# One thread a worker: two workers with two threads each are slower than either.
TEST_ENV := OMP_NUM_THREADS=1 LABKIT_SCALE=ci LABKIT_PROGRESS=0 PYTHONHASHSEED=0
NBVAL := --nbval-lax --nbval-cell-timeout=300 --nbval-kernel-name=python3

.PHONY: lab test browser notebooks colab lanes site lint bench clean

lab: $(READY)
	$(BIN)/jupyter lab notebooks/00_start_here.ipynb

test: $(READY)
	$(TEST_ENV) $(PYTEST) tests
	$(TEST_ENV) $(PYTEST) $(NBVAL) notebooks
	$(BIN)/python -m labkit notebooks solve build/solved
	$(TEST_ENV) LABKIT_STRICT=1 $(PYTEST) $(NBVAL) build/solved

# Every notebook in a real JupyterLab, and every page of the site, in Chromium.
browser: $(SITE_READY)
	$(TEST_ENV) $(PYTEST) -m "course or site" tests/browser

# Run every notebook in place at scale laptop, so that the stored outputs are fresh.
notebooks: $(READY)
	$(BIN)/python -m labkit notebooks run --scale laptop

# Self-contained copies for Colab; REPO=owner/name TAG=v1 adds badges.
colab: $(READY)
	$(BIN)/python -m labkit colab build/colab $(if $(REPO),--repo $(REPO)) $(if $(TAG),--tag $(TAG))

# The course in other environments: LANE=colab, lowest or newest; all three without it.
lanes: $(READY)
	$(BIN)/python -m labkit lanes $(LANE)

site: $(SITE_READY)
	$(BIN)/python -m labkit site build/site

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

bench: $(READY)
	$(BIN)/python -m labkit bench

clean:
	rm -rf $(VENV) build

# `ready` is written last. A folder without it was left by an interrupted install, and is made anew; one that is older than
# the lock only gets what has changed.
$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Python %d.%d is too old: this course needs Python 3.11 or newer; run make with PYTHON=python3.11" % sys.version_info[:2] if sys.version_info < (3, 11) else 0)'
	@if [ -d $(VENV) ] && [ ! -e $(READY) ]; then echo "The last install did not finish: starting it again."; rm -rf $(VENV); fi
	@if [ ! -d $(VENV) ]; then $(PYTHON) -m venv $(VENV); fi
	@rm -f $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock --editable '.[lab,test]'
	@touch $(READY)

$(SITE_READY): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock --editable '.[site]'
	@touch $(SITE_READY)
