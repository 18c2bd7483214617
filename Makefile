# Everything runs from .venv, which any target sets up by itself. PYTHON chooses the interpreter (3.11+).
PYTHON ?= python3
BIN := .venv/bin
# What is installed: torch, what the program needs, what its tests need too, what long tests need besides, and the tools of
# who changes it; and what builds the site.
TORCH := .venv/.torch
STAMP := .venv/.installed
TESTS := .venv/.tests
DEEP := .venv/.deep
TOOLS := .venv/.tools
DOCS := .venv/.docs
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest --dist $(DIST) --no-loadscope-reorder -n $$($(BIN)/python -c 'import os; print(os.cpu_count() + $(MORE))')

# What Python compiles is kept, also where the environment forbids it, as images do: tests start hundreds of processes, and
# each would compile every file of ours again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-deep test-night install-check campaign lint type docs bench papers gpu-check sbom golden clean

# The signal-dilution stress test, end to end on the packaged MiniLM weights. No server, no hub.
demo: $(STAMP)
	$(BIN)/permafrost run experiments/demo.yaml

# A process per core and one more, as some tests wait for programs that they start (of the long ones many do); a thread per
# process: small tests do not gain from more. A file's tests stay together, and files start in order: the long ones (crash,
# flows) are the first.
test: MORE = 1
test: DIST = loadgroup
test-deep test-night: MORE = 2
test-deep test-night: DIST = loadfile
test: $(TESTS)
	$(PYTEST) -m "not deep" $(ARGS)

# Long tests of what shorter ones also touch: two dozen kills (PERMAFROST_KILLS=300 for more), every kind of damage to every
# kind of file, the other families, more examples of what is drawn, a scheduled run, ...
test-deep: $(DEEP)
	HYPOTHESIS_PROFILE=deep $(PYTEST) -m "(deep or hypothesis) and not night and not install" $(ARGS)

# What takes minutes each: an empty box to its nightly runs, a night that fails, a small campaign, documented workers, and kills,
# stops and real data of which test-deep has some. Before a release, and after a change of engines or deployments.
test-night: $(DEEP)
	$(PYTEST) -m night $(ARGS)

# What docker/Dockerfile installs, in an empty environment, with its entry point and its list of packages, and an experiment
# with the lowest and the newest libraries that are allowed: minutes. The other tests of both read their lines.
install-check: $(DEEP)
	$(BIN)/python -m pytest -m install $(ARGS)

# Faults on purpose, for hours: kills, lost workers, full disks, lost rights, many writers, a clock that goes back, every file
# of a home damaged, every format fuzzed. Goes on where it was stopped; build/campaign/log.jsonl has each trial.
# ARGS="--only kills --n 50" runs some, ARGS=--summary only counts what the log has.
campaign: $(TESTS)
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m tests.campaign $(ARGS)

lint: $(TOOLS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/codespell

type: $(TOOLS)
	$(BIN)/pyright

# The pages as a site with search, in build/docs, with references made from the models and the docstrings; a broken link or
# any other warning fails. Nothing in it comes from elsewhere: open build/docs/index.html.
docs: $(DOCS)
	OMP_NUM_THREADS=1 $(BIN)/python -m docs.site.build build/docs

bench: $(TESTS)
	for name in extraction reading token_graph graph_encoder fit training_free efficiency memory engines; do $(BIN)/python -W ignore -m benchmarks.$$name || exit 1; done

# The small experiments of the papers, which take hours and go on where they were stopped; what came of their claims is
# written to docs/papers/outcomes.md. ARGS="--only glot/table2 va" runs some.
papers: $(TESTS)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.papers $(ARGS)

# Every family, recipe, head and probe on this machine's GPU against the CPU's numbers, then a table of speed. Says so and
# does nothing where there is no GPU.
gpu-check: $(TESTS)
	$(BIN)/python -W ignore -m benchmarks.gpu_check

# What is installed in .venv, with versions and licences, for people and (CycloneDX) for programs; images carry their own.
# The tool stays outside: with what it needs, each process that imports Prefect would compile a grammar for 1.4 s.
sbom: $(STAMP)
	mkdir -p build
	$(PYTHON) -m venv build/sbom
	build/sbom/bin/python -m pip install $(PIP_FLAGS) cyclonedx-bom
	build/sbom/bin/cyclonedx-py environment --output-reproducible --output-file build/sbom.cdx.json $(BIN)/python
	$(BIN)/python -c 'import json; found = json.load(open("build/sbom.cdx.json"))["components"]; print(*sorted("{name} {version}".format(**c) for c in found), sep="\n")'

# Write the golden files again; look at the diff and explain it in the commit. tests/formats is not among
# them: old bytes must stay as they were written.
golden: $(TESTS)
	for file in $$(grep -rl "def regenerate" tests | grep -v test_formats); do PYTHONPATH=. $(BIN)/python $$file || exit 1; done

clean:
	rm -rf .venv

# torch first and by itself, so that whichever build of the pinned version is there (CPU or CUDA) stays; setuptools, which
# builds us, with it, as a build environment of our own would take longer than the build. pip compiles on one core, compileall
# on all, and leaves out what is rarely or never imported: that is compiled when it is. Packages hold templates that are no
# Python, so its exit code says nothing. Torch is compiled while the others are installed.
PIP_FLAGS := --quiet --disable-pip-version-check --no-compile --constraint constraints.txt
RARE := /(tests|torch/(_inductor|testing)|transformers/models|pip|sympy/physics|scipy/signal|dask/dataframe|tornado/test)/
UNUSED := /(fontTools|pygments/lexers|apprise|networkx|dateparser|aiohttp|rich_rst|cyclopts|setuptools)/
COMPILE := $(BIN)/python -m compileall -qq -j 0 -x '$(RARE)|$(UNUSED)'
$(TORCH): constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "permafrost needs Python 3.11 or newer, this is " + sys.version)'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install $(PIP_FLAGS) torch==2.13.0 setuptools
	touch $@

$(STAMP): EXTRAS :=
$(TESTS): EXTRAS := [test]
$(TESTS): WITH := $(STAMP)
$(DEEP): EXTRAS := [deep]
$(DEEP): WITH := $(STAMP) $(TESTS) $(DOCS)
$(DOCS): EXTRAS := [docs]
$(DOCS): WITH := $(STAMP)
$(TOOLS): EXTRAS := [dev]
$(TOOLS): WITH := $(STAMP) $(TESTS)
$(STAMP) $(TESTS) $(DEEP) $(TOOLS) $(DOCS): pyproject.toml constraints.txt $(TORCH)
	$(COMPILE) .venv/lib/python*/site-packages/torch & \
	$(BIN)/python -m pip install $(PIP_FLAGS) --no-build-isolation --editable '.$(EXTRAS)'; status=$$?; wait; exit $$status
	$(COMPILE) .venv/lib || true
	touch $(WITH) $@
