# Everything runs from .venv, which any target sets up by itself. PYTHON chooses the interpreter (3.11+).
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $$($(BIN)/python -c 'import os; print(os.cpu_count() + 1)') --dist loadfile --no-loadscope-reorder

.PHONY: demo test test-deep lint type bench gpu-check golden clean

# The signal-dilution stress test, end to end on the packaged MiniLM weights. No server, no hub.
demo: $(STAMP)
	$(BIN)/permafrost run experiments/demo.yaml

# A process per core and one more, as some tests wait for programs that they start; a thread per process: small tests do not
# gain from more. A file's tests stay together, and files start in order: the long ones (crash, flows) are the first.
test: $(STAMP)
	$(PYTEST) -m "not deep" $(ARGS)

# Long tests of what shorter ones also touch: a hundred kills, every kind of damage to every kind of file, a scheduled run, ...
test-deep: $(STAMP)
	$(PYTEST) -m deep $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/codespell

type: $(STAMP)
	$(BIN)/pyright

bench: $(STAMP)
	for name in extraction reading token_graph fit training_free efficiency memory; do $(BIN)/python -W ignore -m benchmarks.$$name || exit 1; done

# Every family, recipe, head and probe on this machine's GPU against the CPU's numbers, then a table of speed. Says so and
# does nothing where there is no GPU.
gpu-check: $(STAMP)
	$(BIN)/python -W ignore -m benchmarks.gpu_check

# Write the golden files again; look at the diff and explain it in the commit. tests/formats is not among
# them: old bytes must stay as they were written.
golden: $(STAMP)
	for file in $$(grep -rl "def regenerate" tests | grep -v test_formats); do PYTHONPATH=. $(BIN)/python $$file || exit 1; done

clean:
	rm -rf .venv

# torch first and by itself, so that whichever build of the pinned version is there (CPU or CUDA) stays. pip compiles on one
# core; compileall takes all. Packages hold templates that are no Python, so its exit code says nothing.
PIP_FLAGS := --quiet --disable-pip-version-check --no-compile --constraint constraints.txt
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "permafrost needs Python 3.11 or newer, this is " + sys.version)'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install $(PIP_FLAGS) torch==2.13.0
	$(BIN)/python -m pip install $(PIP_FLAGS) --editable '.[dev]'
	$(BIN)/python -m compileall -qq -j 0 .venv/lib || true
	touch $(STAMP)
