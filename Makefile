# make demo: sets up everything and runs both jobs on the bundled sample
# make test: sets up everything and runs all tests
# make check: everything that takes only minutes: no Ray, no servers, no other processes
# make docs: builds the documentation into site/
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DEMO := runs/demo
# Empty: where it is set, each process that the tests start compiles every module of ours again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test all-tests check light lint docs setup clean

setup: $(VENV)/.installed

# torch first and alone: a loose range, resolved together with the rest, may pull gigabytes of CUDA libraries.
$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]'
	touch $@

# Triton, and the validators of cluster/ and infra/: 600 MB to fetch that only the tests need.
$(VENV)/.installed-infra: $(VENV)/.installed
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev,docs,infra,triton]'
	touch $@

demo: setup
	rm -rf $(DEMO)
	$(BIN)/python pipeline/build_corpus.py --config configs/demo.yaml
	$(BIN)/python trainer/pretrain.py --config configs/demo-train.yaml
	$(BIN)/bertmill export $(DEMO)/bert-demo --to $(DEMO)/model
	$(BIN)/bertmill demo-summary $(DEMO)

test: setup $(VENV)/.installed-infra
	$(MAKE) -j 2 lint all-tests

# Three processes for two cores: tests with Ray wait for starts and time limits.
all-tests: setup $(VENV)/.installed-infra
	$(BIN)/python -m pytest -n 3 --dist loadgroup --no-loadscope-reorder

# mypy is one process: beside the tests it takes time that they leave free.
check: setup
	$(MAKE) -j 2 --output-sync=target lint light

light: setup
	$(BIN)/python -m pytest -n 2 --dist loadgroup --no-loadscope-reorder \
		-m "not (ray or s3 or gs or process or gpu)"

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: setup
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

clean:
	rm -rf $(DEMO) build dist site *.egg-info
