# make demo   an environment, the default model, an answer
# make test   every test
# make gate   compiles every Triton kernel for cards that are not here; TRITON=3.6.0 does it by that version
# make soak   two minutes of a server under twice the load that it sustains; needs a quiet machine
# make check  ruff, mypy and the fast tests: before every commit
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# One worker a core; the tests of a file stay together, as they share what is slow to make. Files come in the order of
# tests/conftest.py, else those with few tests come last, however long. Commands that tests start find compiled modules.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto --dist loadfile \
	--no-loadscope-reorder

.PHONY: demo test gate soak check lint install model clean

demo: install
	$(BIN)/tokenloom generate --chat "What is the capital of France?" max_tokens=48

test: install model
	$(PYTEST)

# Another Triton lies in front of the environment's own.
gate: install $(if $(TRITON),$(VENV)/triton-$(TRITON))
	PYTHONPATH=$(if $(TRITON),$(VENV)/triton-$(TRITON)) $(BIN)/python benchmarks/triton_gate.py --quiet

$(VENV)/triton-%:
	$(BIN)/python -m pip install --quiet --no-deps --target $@ triton==$*

# Requests are short, so that a minute has many. What else runs for a moment may spoil an attempt.
soak: install model
	$(BIN)/python benchmarks/serving_soak.py --seconds 60 --settle-seconds 30 --probe-seconds 10 --prompt-tokens 16 \
		--output-tokens 8 --length-spread 0 --attempts 3

check: lint
	$(PYTEST) -m "not slow"

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy benchmarks

install: $(STAMP)

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --editable '.[dev]'
	touch $(STAMP)

# The tests fail, rather than skip, without the default model.
model: install
	$(BIN)/python -c "from tokenloom.loader.sources import resolve_model; print(resolve_model('default').name)"

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache dist build
