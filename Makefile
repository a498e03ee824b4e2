# make demo: sets all up and runs the whole way on the bundled sample
# make test: sets all up and passes the tests
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DEMO := runs/demo

.PHONY: demo test lint setup clean

setup: $(VENV)/.installed

# torch first and alone: a loose range, resolved together with the rest, may pull gigabytes of CUDA libraries.
$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]'
	touch $@

# The validators of cluster/ and infra/, 300 MB that nothing but the tests needs.
$(VENV)/.installed-infra: $(VENV)/.installed
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev,infra]'
	touch $@

demo: setup
	rm -rf $(DEMO)
	$(BIN)/python pipeline/build_corpus.py --config configs/demo.yaml
	$(BIN)/python trainer/pretrain.py --config configs/demo-train.yaml
	$(BIN)/bertmill export $(DEMO)/bert-demo --to $(DEMO)/model
	$(BIN)/bertmill demo-summary $(DEMO)

test: setup lint $(VENV)/.installed-infra
	$(BIN)/python -m pytest -n 2 --dist loadgroup --no-loadscope-reorder

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(DEMO) build dist *.egg-info
